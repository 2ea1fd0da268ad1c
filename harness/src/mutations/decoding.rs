//! Blocks of quantised weights decoded wrongly. Each fault changes the bytes
//! of a row, or what comes of them, around ggml's own `to_float`.

use super::places::matrices;
use super::{Mutation, Param};
use crate::llama::gguf::to_float;
use half::f16;
use qdiff_engine::model::fault::Read;
use qdiff_engine::model::{Node, WeightSource};
use qdiff_engine::quant::{self, GgmlType, Part};

/// Decodes the row `row` of a tensor of type `ty` wrongly into `out`, with a
/// parameter; gives false where the type knows no such fault.
type Misdecode = fn(&Bytes<'_>, f64, &mut [f32]) -> bool;

/// The stored bytes of a row.
struct Bytes<'a> {
    source: &'a dyn WeightSource,
    tensor: &'a str,
    row: usize,
    ty: GgmlType,
}

impl Bytes<'_> {
    fn of_row(&self) -> &[u8] {
        self.source.row_bytes(self.tensor, self.row)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> bool {
        to_float(self.ty.id() as _, bytes, out);
        true
    }

    /// Decodes after `edit` has changed every block.
    fn edited(&self, edit: impl Fn(&mut [u8]), out: &mut [f32]) -> bool {
        let mut bytes = self.of_row().to_vec();
        bytes.chunks_exact_mut(self.ty.type_size()).for_each(edit);
        self.decode(&bytes, out)
    }
}

#[derive(Debug)]
struct Misdecoded {
    value: f64,
    by: Misdecode,
}

impl Read for Misdecoded {
    fn row(&self, source: &dyn WeightSource, tensor: &str, row: usize, out: &mut [f32]) {
        let ty = source.ggml_type(tensor);
        let bytes = Bytes { source, tensor, row, ty };
        // Formats that know no such fault are read as they are.
        if !(self.by)(&bytes, self.value, out) {
            source.rows(tensor, row, out);
        }
    }
}

/// Where the quants of 4 bits stand in a block.
fn nibbles(ty: GgmlType) -> Option<std::ops::Range<usize>> {
    quant::part(ty, Part::Quants).filter(|_| ty != GgmlType::Q8_0)
}

/// Where the fifth bits stand.
fn fifth_bits(ty: GgmlType) -> Option<std::ops::Range<usize>> {
    quant::part(ty, Part::HighBits).filter(|_| ty != GgmlType::Q6_K)
}

fn early_return(b: &Bytes<'_>, _: f64, out: &mut [f32]) -> bool {
    if b.ty.block_size() != 256 || out.len() <= 256 {
        return false;
    }
    b.decode(b.of_row(), out);
    out[256..].fill(0.0);
    true
}

fn without_fifth(b: &Bytes<'_>, _: f64, out: &mut [f32]) -> bool {
    let Some(bits) = fifth_bits(b.ty) else {
        return false;
    };
    b.edited(|block| block[bits.clone()].fill(0), out)
}

fn without_high(b: &Bytes<'_>, _: f64, out: &mut [f32]) -> bool {
    b.ty == GgmlType::Q6_K && b.edited(|block| block[128..192].fill(0), out)
}

/// The packed six-bit scales and offsets exchange their places: bytes 0..4
/// with 4..8, and the halves of bytes 8..12.
fn scales_swapped(b: &Bytes<'_>, _: f64, out: &mut [f32]) -> bool {
    if !matches!(b.ty, GgmlType::Q4_K | GgmlType::Q5_K) {
        return false;
    }
    let edit = |block: &mut [u8]| {
        let packed = &mut block[4..16];
        for i in 0..4 {
            packed.swap(i, i + 4);
            packed[8 + i] = packed[8 + i].rotate_left(4);
        }
    };
    b.edited(edit, out)
}

/// Sub-blocks 4 to 7 without the two upper bits of their scales and offsets.
fn scale_bits(b: &Bytes<'_>, _: f64, out: &mut [f32]) -> bool {
    if !matches!(b.ty, GgmlType::Q4_K | GgmlType::Q5_K) {
        return false;
    }
    b.edited(|block| block[4..12].iter_mut().for_each(|s| *s &= 0x3f), out)
}

fn nibble_order(b: &Bytes<'_>, kind: f64, out: &mut [f32]) -> bool {
    let Some(range) = nibbles(b.ty) else {
        return false;
    };
    let low = |q: &[u8], i: usize| q[i / 2] >> (4 * (i % 2)) & 15;
    let edit = |block: &mut [u8]| {
        let quants = &mut block[range.clone()];
        if kind == 0.0 {
            quants.iter_mut().for_each(|q| *q = q.rotate_left(4));
            return;
        }
        // Two neighbours taken from one byte, where halves of a run belong.
        let half = if b.ty == GgmlType::Q6_K { 64 } else { quants.len().min(32) };
        for run in quants.chunks_mut(half) {
            let old = run.to_vec();
            for (i, q) in run.iter_mut().enumerate() {
                *q = low(&old, i) | low(&old, i + old.len()) << 4;
            }
        }
    };
    b.edited(edit, out)
}

/// The number that is taken off every quant is not.
fn uncentred(b: &Bytes<'_>, _: f64, out: &mut [f32]) -> bool {
    let off = match b.ty {
        GgmlType::Q4_0 => 8.0,
        GgmlType::Q5_0 => 16.0,
        GgmlType::Q6_K => 32.0,
        _ => return false,
    };
    let bytes = b.of_row();
    b.decode(bytes, out);
    let blocks = bytes.chunks_exact(b.ty.type_size());
    for (block, out) in blocks.zip(out.chunks_exact_mut(b.ty.block_size())) {
        let at = if b.ty == GgmlType::Q6_K { 208 } else { 0 };
        let d = f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        for (i, v) in out.iter_mut().enumerate() {
            *v += off * if at == 0 { d } else { d * f32::from(block[192 + i / 16] as i8) };
        }
    }
    true
}

fn unsigned(b: &Bytes<'_>, _: f64, out: &mut [f32]) -> bool {
    if b.ty != GgmlType::Q8_0 {
        return false;
    }
    for (block, out) in b.of_row().chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (v, &q) in out.iter_mut().zip(&block[2..]) {
            *v = d * f32::from(q);
        }
    }
    true
}

fn as_f16(b: &Bytes<'_>, _: f64, out: &mut [f32]) -> bool {
    if matches!(b.ty, GgmlType::F16 | GgmlType::F32) {
        return false;
    }
    // The bytes from the row's start, two a weight, on into the rows below it.
    let (_, rows) = b.source.extent(b.tensor);
    let mut bytes = Vec::with_capacity(2 * out.len());
    let mut row = b.row;
    while bytes.len() < 2 * out.len() && row < rows {
        bytes.extend_from_slice(b.source.row_bytes(b.tensor, row));
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
fn stride(b: &Bytes<'_>, by: f64, out: &mut [f32]) -> bool {
    let size = b.ty.type_size();
    if b.ty.block_size() == 1 {
        return false;
    }
    let row = b.of_row();
    let step = (size as i64 + by as i64).max(0) as usize;
    let mut bytes = vec![0u8; row.len()];
    for (i, block) in bytes.chunks_exact_mut(size).enumerate() {
        for (j, byte) in block.iter_mut().enumerate() {
            *byte = row.get(i * step + j).copied().unwrap_or(0);
        }
    }
    b.decode(&bytes, out)
}

/// All of them, by the name of their mutation: for a reader's own check.
const WAYS: &[(&str, Misdecode)] = &[
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

/// Decodes one row of a weight as the mutation `name` would, with the value of
/// its parameter (0 where it has none). False if there is no such mutation, or
/// if the tensor's format knows no such fault; `out` is then undefined.
pub fn misdecode(
    name: &str,
    value: f64,
    source: &dyn WeightSource,
    (tensor, row): (&str, usize),
    out: &mut [f32],
) -> bool {
    let bytes = Bytes { source, tensor, row, ty: source.ggml_type(tensor) };
    WAYS.iter().find(|(n, _)| *n == name).is_some_and(|(_, by)| by(&bytes, value, out))
}

fn read(node: &Node, by: Misdecode, value: f64) -> Option<Node> {
    Some(node.reading(Misdecoded { value, by }))
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
        story: "the offset of the quants (8, 16 or 32) is not taken off",
        seen: FOUND,
        remedy: "take 8 (Q4_0), 16 (Q5_0) or 32 (Q6_K) off each quant before scaling",
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
        remedy: "use the size of the format's block: 18, 20, 22, 24, 34, 144, 176 or 210 bytes",
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
