//! Blocks of quantised weights decoded wrongly. Each fault changes the bytes of a row, or what comes of them, around
//! ggml's own `to_float`; where a block has what, its format says ([`qdiff_engine::quant::Format`]).

use super::stored_row::{DecodeFault, Row};
use super::{Apply, Fits, Mutation, Param};
use half::f16;
use qdiff_engine::model::WeightSource;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, Gather, State};
use qdiff_engine::quant::{Content, Format, Offset, Part};

/// A K format: the first super-block alone is decoded.
fn early_return(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    if r.ty.block_size() != 256 || out.len() <= 256 {
        return false;
    }
    r.decode(r.bytes(), out);
    out[256..].fill(0.0);
    true
}

/// Of quants with four low bits and so many high ones, the low ones alone.
fn without_high(r: &Row<'_>, bits: usize, out: &mut [f32]) -> bool {
    r.edited_in(Part::HighBits, r.of_bits(4, |high| high == bits), |bits| bits.fill(0), out)
}

/// The packed six-bit scales and offsets exchange their places: bytes 0..4 with 4..8, and the halves of bytes 8..12.
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

/// The packed six-bit scales and offsets taken as numbers of six bits in a row: a scale and an offset in turn, or all scales first.
fn scales_in_a_row(r: &Row<'_>, first: f64, out: &mut [f32]) -> bool {
    let edit = |packed: &mut [u8]| {
        let bits = packed.iter().rev().fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
        let six = |place: usize| (bits >> (6 * place)) as u8 & 63;
        let scale = |j: usize| if first == 0.0 { six(2 * j) } else { six(j) };
        let offset = |j: usize| if first == 0.0 { six(2 * j + 1) } else { six(8 + j) };
        for j in 0..4 {
            packed[j] = scale(j) | scale(4 + j) >> 4 << 6;
            packed[4 + j] = offset(j) | offset(4 + j) >> 4 << 6;
            packed[8 + j] = scale(4 + j) & 15 | offset(4 + j) << 4;
        }
    };
    r.edited_in(Part::PackedScales, r.ty.format(), edit, out)
}

fn nibble_order(r: &Row<'_>, kind: f64, out: &mut [f32]) -> bool {
    let Some((field, stride)) = r.ty.format().and_then(Format::nibbles) else {
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
    r.edited(|block| edit(&mut block[field.bytes.clone()]), out)
}

/// Points of a grid without the upper bits of their numbers.
fn low_points(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    let format = r.ty.format().filter(|f| f.codes().is_some_and(|codes| codes.run < f.ty.block_size()));
    r.edited_in(Part::HighBits, format, |bits| bits.fill(0), out)
}

/// Magnitudes without the signs beside them.
fn unsigned_points(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    r.edited_in(Part::Signs, r.ty.format(), |signs| signs.fill(0), out)
}

/// 4-bit codes taken for evenly spaced quants, of which the middle is taken off.
fn codes_as_quants(r: &Row<'_>, _: f64, out: &mut [f32]) -> bool {
    let (Some((field, stride)), Some(codes)) =
        (r.ty.format().and_then(Format::nibbles), r.ty.format().and_then(Format::codes))
    else {
        return false;
    };
    // The code of 1 is worth a scale: the ninth of 16 numbers in order, or the second where signs stand above the others.
    let one = if codes.levels.len() == 16 { 8 } else { 1 };
    r.edited(|block| block[field.bytes.clone()].fill(one | one << 4), out);
    let blocks = r.bytes().chunks_exact(r.ty.type_size());
    for (block, out) in blocks.zip(out.chunks_exact_mut(r.ty.block_size())) {
        let runs = block[field.bytes.clone()].chunks_exact(stride).zip(out.chunks_exact_mut(2 * stride));
        for (bytes, out) in runs {
            for (j, byte) in bytes.iter().enumerate() {
                out[j] *= f32::from(byte & 15) - 8.0;
                out[j + stride] *= f32::from(byte >> 4) - 8.0;
            }
        }
    }
    true
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
    let Some((source, tensor, mut row)) = r.of_weight else { return false };
    if r.ty.format().is_some_and(|f| matches!(f.content, Content::F32 | Content::F16)) {
        return false;
    }
    // The bytes from the row's start, two a weight, on into the rows below it.
    let (_, rows) = source.extent(tensor);
    let mut bytes = Vec::with_capacity(2 * out.len());
    while bytes.len() < 2 * out.len() && row < rows {
        bytes.extend_from_slice(source.row_bytes(tensor, row));
        row += 1;
    }
    bytes.resize(2 * out.len(), 0);
    for (v, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *v = f16::from_le_bytes([pair[0], pair[1]]).to_f32();
    }
    true
}

/// Block i of a row begins `by` bytes times i further on than it should; beyond the row stands zero.
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

impl Mutation {
    /// Whether it is the fault of decoding blocks of weights.
    pub fn decodes(&self) -> bool {
        self.decode.is_some()
    }

    /// Whether the format of `tensor` knows it, if it is the fault of decoding.
    pub fn is_known_to(&self, source: &dyn WeightSource, tensor: &str) -> bool {
        let mut out = vec![0f32; source.extent(tensor).0];
        self.decode.is_none_or(|by| by(&Row::of(source, tensor, 0), 0.0, &mut out))
    }

    /// The fault of decoding `by`.
    const fn decoding(name: &'static str, by: DecodeFault, story: &'static str, remedy: &'static str) -> Self {
        let fits: Fits = |_, n| match n.op.anatomy() {
            Anatomy::Contraction(Contraction::Weight(None)) | Anatomy::Gather(Gather::Rows) => true,
            // In a cache in blocks.
            Anatomy::State(State::Rows(_)) => true,
            _ => false,
        };
        let apply: Apply = |node, _, _| Some(node.clone());
        Self { name, fits: Some(fits), story, seen: FOUND, remedy, apply, decode: Some(by), ..Self::PLAIN }
    }
}

const FOUND: &str = "`qdiff weights` finds it if the reader is wrong, `qdiff run` if the kernel is wrong";

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation::decoding(
        "kquant-early-return",
        early_return,
        "only the first block of 256 weights of each row is used",
        "loop over all blocks of the row: n / 256 of them",
    ),
    Mutation::decoding(
        "q5-high-bit",
        |r, _, out| without_high(r, 1, out),
        "the fifth bit of the quants is left out",
        "or the bit from qh into each quant before the offset is taken off",
    ),
    Mutation::decoding(
        "q6k-high-bits",
        |r, _, out| without_high(r, 2, out),
        "the two upper bits of the quants are left out",
        "or the two bits from qh into each quant before 32 is taken off",
    ),
    Mutation::decoding(
        "q4k-scale-min-swapped",
        scales_swapped,
        "the six-bit scales and offsets of the sub-blocks are taken for each other",
        "bytes 0 to 3 hold scales and 4 to 7 offsets; bytes 8 to 11 scales in the low, offsets in the high halves",
    ),
    Mutation::decoding(
        "kquant-scale-bits",
        scale_bits,
        "the upper two bits of the scales and offsets of sub-blocks 4 to 7 are left out",
        "take the upper two bits of these scales and offsets from the top two bits of bytes 0 to 7 of the packed scales",
    ),
    Mutation {
        params: &[Param::new("first", "0: a scale and an offset in turn, 1: all scales before all offsets", 0.0)
            .searched(&[1.0])],
        ..Mutation::decoding(
            "kquant-scales-in-a-row",
            scales_in_a_row,
            "the packed scales and offsets are read as numbers of six bits in a row: {first}",
            "unpack them as get_scale_min_k4 does: the upper two bits of those of sub-blocks 4 to 7 are in bytes 0 to 7",
        )
    },
    Mutation {
        params: &[
            Param::new("kind", "0: low and high exchanged, 1: neighbours taken from one byte", 0.0).searched(&[1.0])
        ],
        ..Mutation::decoding(
            "nibble-order",
            nibble_order,
            "the halves of the quant bytes are taken in the wrong order: {kind}",
            "the low halves of a run come first, then the high halves",
        )
    },
    Mutation::decoding(
        "codes-as-quants",
        codes_as_quants,
        "the 4-bit codes of IQ4, MXFP4 or NVFP4 are taken for quants: 8 less than the code",
        "look each code up in the format's table (kvalues_iq4nl, kvalues_mxfp4)",
    ),
    Mutation::decoding(
        "grid-high-bits",
        low_points,
        "the upper bits of the grid points' numbers are left out",
        "or the bits from qh into the number of each point before the grid is looked up",
    ),
    Mutation::decoding(
        "grid-signs",
        unsigned_points,
        "the signs of the weights are left out",
        "negate each weight whose bit in signs is set",
    ),
    Mutation::decoding(
        "quant-offset-missing",
        uncentred,
        "the zero point of the quants is not taken off",
        "take half of the quants' range, 2^(bits - 1), off each quant before scaling",
    ),
    Mutation::decoding(
        "q8-unsigned",
        unsigned,
        "the quants of Q8_0 are read without sign",
        "the quants of Q8_0 are signed bytes",
    ),
    Mutation {
        seen: "plausible shapes, garbage values, often NaN or 65504",
        ..Mutation::decoding(
            "quant-bytes-as-f16",
            as_f16,
            "the bytes of quantised blocks are taken for f16 values",
            "dequantise by the tensor's type; only type 1 is f16",
        )
    },
    Mutation {
        params: &[Param::new("by", "bytes by which a block is taken to be too large", 2.0)
            .searched(&[-2.0, 4.0, -4.0, 1.0, -1.0])],
        apply: |node, values, _| (values[0] != 0.0).then(|| node.clone()),
        ..Mutation::decoding(
            "block-stride",
            stride,
            "blocks are read at a wrong distance from each other",
            "use the size of the format's block: its scales and its quants (ggml's type_size)",
        )
    },
];
