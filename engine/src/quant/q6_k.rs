//! Q6_K: 256 weights in 210 bytes, as two halves of 128, each of four runs of 32.
//!
//! weight = (d * scale) * (q - 32). Source: `dequantize_row_q6_K` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16};

/// The low 4 bits: 64 bytes per half; runs 0 and 1 in the low, 2 and 3 in the high halves.
const QL: Field = Field::first("ql", Part::Quants, 128);
/// The upper 2 bits: 32 bytes per half; run `r` at bits `2r`.
const QH: Field = QL.then("qh", Part::HighBits, 64);
/// 16 scales, one per 16 weights.
const SCALES: Field = QH.then("scales", Part::ByteScales, 16);
/// The scale of the scales.
const D: Field = SCALES.then("d", Part::Scale, 2);

const ZERO: u8 = 32;

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q6_K,
    fields: &[QL, QH, SCALES, D],
    content: Content::Quants(Quants { offset: Offset::ZeroPoint(ZERO), run: 16, stride: 64 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::D4,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    let centred = |q: u8| (i32::from(q) - i32::from(ZERO)) as f32;
    for half in 0..2 {
        for sixteen in 0..2 {
            let scale = |run: usize| d * f32::from(b[SCALES.at(8 * half + 2 * run + sixteen)] as i8);
            let (s0, s1, s2, s3) = (scale(0), scale(1), scale(2), scale(3));
            for i in 0..16 {
                let l = 16 * sixteen + i;
                let a = b[QL.at(64 * half + l)];
                let c = b[QL.at(64 * half + 32 + l)];
                let high = b[QH.at(32 * half + l)];
                let at = 128 * half + l;
                out[at] = s0 * centred((a & 0x0f) | (high & 0x03) << 4);
                out[at + 32] = s1 * centred((c & 0x0f) | (high & 0x0c) << 2);
                out[at + 64] = s2 * centred((a >> 4) | (high & 0x30));
                out[at + 96] = s3 * centred((c >> 4) | (high & 0xc0) >> 2);
            }
        }
    }
}
