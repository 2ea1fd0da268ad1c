//! Blocks of quantised weights decoded wrongly. Each fault changes the bytes
//! of a row, or what comes of them, around ggml's own `to_float`; where a block
//! has what, its format says ([`qdiff_engine::quant::Format`]).

use super::places::matrices;
use super::{Mutation, Param};
use crate::llama::gguf::to_float;
use half::f16;
use qdiff_engine::model::fault::Read;
use qdiff_engine::model::{Node, WeightSource};
use qdiff_engine::quant::{Content, Format, GgmlType, Offset, Part};

/// Decodes a row wrongly into `out`, with a parameter; gives false where its
/// format knows no such fault.
type DecodeFault = fn(&Row<'_>, f64, &mut [f32]) -> bool;

/// A row as it is stored.
struct Row<'a> {
    source: &'a dyn WeightSource,
    tensor: &'a str,
    row: usize,
    ty: GgmlType,
}

impl<'a> Row<'a> {
    fn of(source: &'a dyn WeightSource, tensor: &'a str, row: usize) -> Self {
        Self { source, tensor, row, ty: source.ggml_type(tensor) }
    }

    fn bytes(&self) -> &[u8] {
        self.source.row_bytes(self.tensor, self.row)
    }

    /// The format, if its quants have `low` bits in [`Part::Quants`] and `high`
    /// in [`Part::HighBits`].
    fn of_bits(&self, low: usize, high: impl Fn(usize) -> bool) -> Option<&'static Format> {
        self.ty.format().filter(|f| f.bits(Part::Quants) == low && high(f.bits(Part::HighBits)))
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> bool {
        to_float(self.ty.id() as _, bytes, out);
        true
    }

    /// Decodes after `edit` has changed every block.
    fn edited(&self, edit: impl Fn(&mut [u8]), out: &mut [f32]) -> bool {
        let mut bytes = self.bytes().to_vec();
        bytes.chunks_exact_mut(self.ty.type_size()).for_each(edit);
        self.decode(&bytes, out)
    }

    /// As [`Self::edited`], of the field that says `part`; false where there is none.
    fn edited_in(&self, part: Part, format: Option<&Format>, edit: impl Fn(&mut [u8]), out: &mut [f32]) -> bool {
        let field = format.and_then(|f| f.field(part));
        field.is_some_and(|f| self.edited(|block| edit(&mut block[f.bytes.clone()]), out))
    }
}

#[derive(Debug)]
struct ReadFault {
    value: f64,
    by: DecodeFault,
}

impl Read for ReadFault {
    fn row(&self, source: &dyn WeightSource, tensor: &str, row: usize, out: &mut [f32]) {
        // Formats that know no such fault are read as they are.
        if !(self.by)(&Row::of(source, tensor, row), self.value, out) {
            source.rows(tensor, row, out);
        }
    }
}

/// A K format: the first super-block alone is decoded.
fn early_return(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    if r.ty.block_size() != 256 || out.len() <= 256 {
        return false;
    }
    r.decode(r.bytes(), out);
    out[256..].fill(0.0);
    true
}

fn without_fifth(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    r.edited_in(Part::HighBits, r.of_bits(4, |high| high == 1), |bits| bits.fill(0), out)
}

fn without_high(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    r.edited_in(Part::HighBits, r.of_bits(4, |high| high == 2), |bits| bits.fill(0), out)
}

/// The packed six-bit scales and offsets exchange their places: bytes 0..4
/// with 4..8, and the halves of bytes 8..12.
fn scales_swapped(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    let edit = |packed: &mut [u8]| {
        for i in 0..4 {
            packed.swap(i, i + 4);
            packed[8 + i] = packed[8 + i].rotate_left(4);
        }
    };
    r.edited_in(Part::PackedScales, r.ty.format(), edit, out)
}

/// Sub-blocks 4 to 7 without the two upper bits of their scales and offsets.
fn scale_bits(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    let edit = |packed: &mut [u8]| packed[..8].iter_mut().for_each(|s| *s &= 0x3f);
    r.edited_in(Part::PackedScales, r.ty.format(), edit, out)
}

fn nibble_order(r: &Row<'_>, kind: f64, out: &mut [f32]) -> bool {
    let format = r.of_bits(4, |_| true);
    let Some(stride) = format.and_then(Format::quants).map(|q| q.stride) else {
        return false;
    };
    let low = |q: &[u8], i: usize| q[i / 2] >> (4 * (i % 2)) & 15;
    let edit = |quants: &mut [u8]| {
        if kind == 0.0 {
            quants.iter_mut().for_each(|q| *q = q.rotate_left(4));
            return;
        }
        // Two neighbours taken from one byte, where halves of a run belong.
        for run in quants.chunks_mut(stride) {
            let old = run.to_vec();
            for (i, q) in run.iter_mut().enumerate() {
                *q = low(&old, i) | low(&old, i + old.len()) << 4;
            }
        }
    };
    r.edited_in(Part::Quants, format, edit, out)
}

/// The number that is taken off every quant is not.
fn uncentred(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    let format = r.ty.format();
    let (Some(format), Some(Offset::ZeroPoint(zero))) = (format, format.and_then(Format::quants).map(|q| q.offset))
    else {
        return false;
    };
    // A quant of one above the zero point is worth its scale.
    let mut scales = vec![0f32; out.len()];
    r.edited(|block| format.set_quants(block, zero + 1), &mut scales);
    r.decode(r.bytes(), out);
    out.iter_mut().zip(scales).for_each(|(v, scale)| *v += f32::from(zero) * scale);
    true
}

fn unsigned(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    let Some(format) = r.of_bits(8, |high| high == 0) else {
        return false;
    };
    let (Some(scale), Some(quants)) = (format.field(Part::Scale), format.field(Part::Quants)) else {
        return false;
    };
    let blocks = r.bytes().chunks_exact(r.ty.type_size());
    for (block, out) in blocks.zip(out.chunks_exact_mut(r.ty.block_size())) {
        let d = f16::from_le_bytes([block[scale.bytes.start], block[scale.bytes.start + 1]]).to_f32();
        for (v, &q) in out.iter_mut().zip(&block[quants.bytes.clone()]) {
            *v = d * f32::from(q);
        }
    }
    true
}

fn as_f16(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    if r.ty.format().is_some_and(|f| matches!(f.content, Content::F32 | Content::F16)) {
        return false;
    }
    // The bytes from the row's start, two a weight, on into the rows below it.
    let (_, rows) = r.source.extent(r.tensor);
    let mut bytes = Vec::with_capacity(2 * out.len());
    let mut row = r.row;
    while bytes.len() < 2 * out.len() && row < rows {
        bytes.extend_from_slice(r.source.row_bytes(r.tensor, row));
        row += 1;
    }
    bytes.resize(2 * out.len(), 0);
    for (v, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *v = f16::from_le_bytes([pair[0], pair[1]]).to_f32();
    }
    true
}

/// Block i of a row begins `by` bytes times i further on than it should;
/// beyond the row stands zero.
fn stride(r: &Row<'_>, by: f64, out: &mut [f32]) -> bool {
    let size = r.ty.type_size();
    if r.ty.block_size() == 1 {
        return false;
    }
    let row = r.bytes();
    let step = (size as i64 + by as i64).max(0) as usize;
    let mut bytes = vec![0u8; row.len()];
    for (i, block) in bytes.chunks_exact_mut(size).enumerate() {
        for (j, byte) in block.iter_mut().enumerate() {
            *byte = row.get(i * step + j).copied().unwrap_or(0);
        }
    }
    r.decode(&bytes, out)
}

/// All of them, by the name of their mutation.
const WAYS: &[(&str, DecodeFault)] = &[
    ("kquant-early-return", early_return),
    ("q5-high-bit", without_fifth),
    ("q6k-high-bits", without_high),
    ("q4k-scale-min-swapped", scales_swapped),
    ("kquant-scale-bits", scale_bits),
    ("nibble-order", nibble_order),
    ("quant-offset-missing", uncentred),
    ("q8-unsigned", unsigned),
    ("quant-bytes-as-f16", as_f16),
    ("block-stride", stride),
];

/// Whether `name` is a mutation of this family.
pub fn knows(name: &str) -> bool {
    WAYS.iter().any(|(n, _)| *n == name)
}

/// Whether the format of `tensor` knows the mutation `name` of this family.
pub fn fits(name: &str, source: &dyn WeightSource, tensor: &str) -> bool {
    let mut out = vec![0f32; source.extent(tensor).0];
    WAYS.iter().any(|(n, by)| *n == name && by(&Row::of(source, tensor, 0), 0.0, &mut out))
}

fn read(node: &Node, by: DecodeFault, value: f64) -> Option<Node> {
    Some(node.reading(ReadFault { value, by }))
}

const FOUND: &str = "`qdiff weights` finds it where the reader is wrong, a run where the kernel is";

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "kquant-early-return",
        fits: Some(matrices),
        story: "of each row only the first block of 256 weights is used",
        seen: FOUND,
        remedy: "loop over all blocks of the row: n / 256 of them",
        apply: |node, _, _| read(node, early_return, 0.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "q5-high-bit",
        fits: Some(matrices),
        story: "the fifth bit of the quants is left out",
        seen: FOUND,
        remedy: "or the bit from qh into each quant before the offset is taken off",
        apply: |node, _, _| read(node, without_fifth, 0.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "q6k-high-bits",
        fits: Some(matrices),
        story: "the two upper bits of the quants are left out",
        seen: FOUND,
        remedy: "or the two bits from qh into each quant before 32 is taken off",
        apply: |node, _, _| read(node, without_high, 0.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "q4k-scale-min-swapped",
        fits: Some(matrices),
        story: "the six-bit scales and offsets of the sub-blocks are taken for each other",
        seen: FOUND,
        remedy: "bytes 0..4 hold scales and 4..8 offsets; bytes 8..12 scales in the low, offsets in the high halves",
        apply: |node, _, _| read(node, scales_swapped, 0.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "kquant-scale-bits",
        fits: Some(matrices),
        story: "the upper two bits of the scales and offsets of sub-blocks 4 to 7 are left out",
        seen: FOUND,
        remedy: "they are the top bits of bytes 0..8 of the packed scales",
        apply: |node, _, _| read(node, scale_bits, 0.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "nibble-order",
        fits: Some(matrices),
        story: "the halves of the quant bytes are taken in the wrong order (0: low for high, 1: neighbours in one byte)",
        seen: FOUND,
        remedy: "the low halves of a run come first, then the high halves",
        params: &[Param {
            name: "kind",
            help: "0: low and high exchanged, 1: neighbours taken from one byte",
            default: 0.0,
            search: &[1.0],
        }],
        apply: |node, values, _| read(node, nibble_order, values[0]),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "quant-offset-missing",
        fits: Some(matrices),
        story: "the zero point of the quants is not taken off",
        seen: FOUND,
        remedy: "take half of the quants' range, 2^(bits - 1), off each quant before scaling",
        apply: |node, _, _| read(node, uncentred, 0.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "q8-unsigned",
        fits: Some(matrices),
        story: "the quants of Q8_0 are read without sign",
        seen: FOUND,
        remedy: "the quants of Q8_0 are signed bytes",
        apply: |node, _, _| read(node, unsigned, 0.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "quant-bytes-as-f16",
        fits: Some(matrices),
        story: "the bytes of quantised blocks are taken for f16 values",
        seen: "plausible shapes, garbage values, often NaN or 65504",
        remedy: "dequantise by the tensor's type; only type 1 is f16",
        apply: |node, _, _| read(node, as_f16, 0.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "block-stride",
        fits: Some(matrices),
        story: "blocks are read at a wrong distance from each other",
        seen: FOUND,
        remedy: "use the size of the format's block: its scales and its quants (ggml's type_size)",
        params: &[Param {
            name: "by",
            help: "bytes by which a block is taken to be too large",
            default: 2.0,
            search: &[-2.0, 4.0, -4.0, 1.0, -1.0],
        }],
        apply: |node, values, _| if values[0] == 0.0 { None } else { read(node, stride, values[0]) },
        ..Mutation::PLAIN
    },
];
