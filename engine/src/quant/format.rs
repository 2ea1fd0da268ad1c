//! What a block format is. Each format's file describes it once; the decoders' offsets, the planes on a device, the
//! names of fields in a report and the faults of a decoder derive from that.

use super::{FORMATS, GgmlType};
use std::ops::Range;

/// A format that [`super::dequantize`] unpacks. Source: the block structures in
/// ggml-common.h and the `dequantize_row_*` functions in ggml-quants.c.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    /// Its type: name, weights and bytes per block.
    pub ty: GgmlType,
    /// The fields of a block, in the order of its bytes.
    pub fields: &'static [Field],
    /// What stands in them.
    pub content: Content,
}

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// One 32-bit IEEE float.
    F32,
    /// One 16-bit IEEE float.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Small integers under scales.
    Quants(Quants),
}

/// What the integers of a block mean: weight = scale * quant, and an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quants {
    /// What makes the unsigned quants signed.
    pub offset: Offset,
    /// Consecutive weights that share a scale.
    pub run: usize,
    /// Distance of the weights that share a byte of [`Part::Quants`]: of so many
    /// bytes, byte `j` holds weight `j` lowest, then `j + stride`, and so on.
    pub stride: usize,
    /// Whether llama.cpp's matrix-matrix kernels for CUDA are given the sums of
    /// the activations (DS4 of `mmq_get_q8_1_ds_layout` in mmq.cuh, else D4).
    pub mmq_sums: bool,
}

/// What is added to the quants, or taken off them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// Nothing: the quants are signed bytes.
    None,
    /// A constant is taken off every quant before it is scaled.
    ZeroPoint(u8),
    /// [`Part::Offset`] is added to every scaled quant.
    PerBlock,
    /// [`Part::Offset`] times the sub-block's offset is taken off every scaled
    /// quant.
    PerSubBlock,
}

/// What a field of a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The scale of the whole block, f16.
    Scale,
    /// The offset of the whole block, or the scale of its offsets, f16.
    Offset,
    /// Scales and offsets of the sub-blocks, six bits each (`k_blocks.rs`).
    PackedScales,
    /// Scales of the sub-blocks, a signed byte each.
    ByteScales,
    /// The upper bits of the quants.
    HighBits,
    /// The quants, or their low bits.
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

impl Field {
    /// The field of `len` bytes that a block begins with.
    pub(super) const fn first(name: &'static str, part: Part, len: usize) -> Self {
        Self { name, part, bytes: 0..len }
    }

    /// The field of `len` bytes after this one.
    pub(super) const fn then(&self, name: &'static str, part: Part, len: usize) -> Self {
        Self { name, part, bytes: self.bytes.end..self.bytes.end + len }
    }

    /// Its `N` bytes, which is its length.
    #[inline(always)]
    pub(super) fn of<'a, const N: usize>(&self, block: &'a [u8]) -> &'a [u8; N] {
        block[self.bytes.clone()].try_into().expect("the field has this length")
    }

    /// Where its byte `i` stands in the block.
    #[inline(always)]
    pub(super) const fn at(&self, i: usize) -> usize {
        self.bytes.start + i
    }
}

impl Format {
    /// Whether the fields are as long as the block.
    pub(super) const fn fills_its_block(&self) -> bool {
        self.fields[self.fields.len() - 1].bytes.end == self.ty.type_size()
    }

    /// The field that says `part`.
    pub fn field(&self, part: Part) -> Option<&'static Field> {
        self.fields.iter().find(|f| f.part == part)
    }

    /// The field of the sub-blocks' scales.
    pub fn sub_scales(&self) -> Option<&'static Field> {
        self.field(Part::PackedScales).or_else(|| self.field(Part::ByteScales))
    }

    /// The meaning of the quants; `None` for plain numbers.
    pub fn quants(&self) -> Option<Quants> {
        if let Content::Quants(quants) = self.content { Some(quants) } else { None }
    }

    /// Bits of a weight that stand in the field that says `part`.
    pub fn bits(&self, part: Part) -> usize {
        self.field(part).map_or(0, |f| 8 * f.bytes.len() / self.ty.block_size())
    }

    /// The floats of a block, each with the bits of its last two bytes that make NaN or infinity where all are set.
    fn exponents(&self) -> Vec<(&'static Field, u16)> {
        let bits = |field: &Field| match (field.part, self.content) {
            (Part::Scale | Part::Offset, _) | (Part::Number, Content::F16) => Some(0x7c00),
            (Part::Number, Content::F32 | Content::Bf16) => Some(0x7f80),
            (Part::Number, Content::Quants(_))
            | (Part::PackedScales | Part::ByteScales | Part::HighBits | Part::Quants, _) => None,
        };
        self.fields.iter().filter_map(|field| Some((field, bits(field)?))).collect()
    }

    /// The blocks of `bytes` in which a scale, an offset or a number is NaN or infinite, which is where weights are: each
    /// with the first such field.
    pub fn not_finite<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = (usize, &'static Field)> + use<'a> {
        let exponents = self.exponents();
        bytes.chunks_exact(self.ty.type_size()).enumerate().filter_map(move |(at, block)| {
            let found = exponents.iter().find(|(field, bits)| {
                let end = field.bytes.end;
                u16::from_le_bytes([block[end - 2], block[end - 1]]) & bits == *bits
            });
            found.map(|(field, _)| (at, *field))
        })
    }

    /// Makes `quant` of every quant of a block, as stored: before an offset.
    pub fn set_quants(&self, block: &mut [u8], quant: u8) {
        let mut rest = u32::from(quant);
        for part in [Part::Quants, Part::HighBits] {
            if let Some(field) = self.field(part) {
                let bits = self.bits(part);
                let own = rest & ((1 << bits) - 1);
                let byte = (0..8).step_by(bits).fold(0, |byte, shift| byte | own << shift);
                block[field.bytes.clone()].fill(byte as u8);
                rest >>= bits;
            }
        }
    }
}

impl GgmlType {
    /// The description of the type's blocks; `None` for a type that this crate does not unpack.
    pub fn format(self) -> Option<&'static Format> {
        FORMATS.iter().find(|f| f.ty == self)
    }

    /// Whether [`super::dequantize`] unpacks it.
    pub fn is_supported(self) -> bool {
        self.format().is_some()
    }
}
