//! IQ3_XXS: 256 weights in 98 bytes, in sub-blocks of 32, four weights at a time from a grid of 256 points.
//!
//! weight = (d * (0.5 + scale) / 2) * ±magnitude. Source: `dequantize_row_iq3_xxs` in ggml-quants.c.

use super::codebook::{even_signs, signed};
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16, grids};

/// The scale of the scales.
const D: Field = Field::first("d", Part::Scale, 2);
/// A point a byte; ggml's structure counts the next field in.
const QS: Field = D.then("qs", Part::Codes, 64);
/// 32 bits per sub-block: seven signs for every eight weights, and the scale in the upper four.
const SCALES_AND_SIGNS: Field = QS.then("scales_and_signs", Part::Packed, 32);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ3_XXS,
    fields: &[D, QS, SCALES_AND_SIGNS],
    content: Content::Codes(Codes {
        levels: &[-62.0, -52.0, -44.0, -36.0, -28.0, -20.0, -12.0, -4.0, 4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0],
        run: 32,
    }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 98], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    let both = SCALES_AND_SIGNS.of::<32>(b).as_chunks::<4>().0;
    for (sub, (both, out)) in both.iter().zip(out.as_chunks_mut::<32>().0).enumerate() {
        let both = u32::from_le_bytes(*both);
        let scale = d * (0.5 + (both >> 28) as f32) * 0.5;
        for (l, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let signs = even_signs(both >> (7 * (l / 2))) >> (4 * (l % 2));
            signed(&grids::IQ3_XXS[usize::from(b[QS.at(8 * sub + l)])], signs, scale, out);
        }
    }
}
