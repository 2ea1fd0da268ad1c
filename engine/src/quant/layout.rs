//! What the bytes of a block mean: the fields of every format, by name.

use super::GgmlType;
use std::ops::Range;

/// What a field of a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The scale of the whole block, f16.
    Scale,
    /// The offset of the whole block, or the scale of its offsets, f16.
    Offset,
    /// The packed scales (and offsets) of sub-blocks.
    SubScales,
    /// The upper bits of the quants.
    HighBits,
    /// The quants, or their low four bits.
    Quants,
    /// A plain number.
    Number,
}

/// A field of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// ggml's name for it.
    pub name: &'static str,
    /// What it says.
    pub part: Part,
    /// Where it stands in the block.
    pub bytes: Range<usize>,
}

const fn field(name: &'static str, part: Part, from: usize, to: usize) -> Field {
    Field { name, part, bytes: from..to }
}

/// The fields of a block of type `ty`, in the order of its bytes; empty for a
/// type whose blocks this crate does not unpack. Source: the block structures
/// in ggml-common.h.
pub fn fields(ty: GgmlType) -> &'static [Field] {
    use Part::{HighBits, Number, Offset, Quants, Scale, SubScales};
    match ty {
        GgmlType::F32 => const { &[field("number", Number, 0, 4)] },
        GgmlType::F16 | GgmlType::BF16 => const { &[field("number", Number, 0, 2)] },
        GgmlType::Q8_0 => const { &[field("d", Scale, 0, 2), field("qs", Quants, 2, 34)] },
        GgmlType::Q4_0 => const { &[field("d", Scale, 0, 2), field("qs", Quants, 2, 18)] },
        GgmlType::Q4_1 => const { &[field("d", Scale, 0, 2), field("m", Offset, 2, 4), field("qs", Quants, 4, 20)] },
        GgmlType::Q5_0 => const { &[field("d", Scale, 0, 2), field("qh", HighBits, 2, 6), field("qs", Quants, 6, 22)] },
        GgmlType::Q5_1 => {
            const {
                &[
                    field("d", Scale, 0, 2),
                    field("m", Offset, 2, 4),
                    field("qh", HighBits, 4, 8),
                    field("qs", Quants, 8, 24),
                ]
            }
        }
        GgmlType::Q4_K => {
            const {
                &[
                    field("d", Scale, 0, 2),
                    field("dmin", Offset, 2, 4),
                    field("scales", SubScales, 4, 16),
                    field("qs", Quants, 16, 144),
                ]
            }
        }
        GgmlType::Q5_K => {
            const {
                &[
                    field("d", Scale, 0, 2),
                    field("dmin", Offset, 2, 4),
                    field("scales", SubScales, 4, 16),
                    field("qh", HighBits, 16, 48),
                    field("qs", Quants, 48, 176),
                ]
            }
        }
        GgmlType::Q6_K => {
            const {
                &[
                    field("ql", Quants, 0, 128),
                    field("qh", HighBits, 128, 192),
                    field("scales", SubScales, 192, 208),
                    field("d", Scale, 208, 210),
                ]
            }
        }
        _ => &[],
    }
}

/// Where the field that says `part` stands in a block of type `ty`.
pub fn part(ty: GgmlType, part: Part) -> Option<Range<usize>> {
    let found = fields(ty).iter().find(|f| f.part == part);
    found.map(|f| f.bytes.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_one_after_another_and_fill_the_block() {
        for &ty in GgmlType::ALL_SUPPORTED {
            let mut at = 0;
            for field in fields(ty) {
                assert_eq!(field.bytes.start, at, "{ty}: {}", field.name);
                at = field.bytes.end;
            }
            assert_eq!(at, ty.type_size(), "{ty}");
        }
    }
}
