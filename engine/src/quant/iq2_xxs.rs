//! IQ2_XXS: 256 weights in 66 bytes, in sub-blocks of 32, eight weights at a time from a grid of 256 points.
//!
//! weight = (d * (0.5 + scale) / 4) * ±magnitude. Source: `dequantize_row_iq2_xxs` in ggml-quants.c.

use super::codebook::{even_signs, signed};
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16, grids};

/// The scale of the scales.
const D: Field = Field::first("d", Part::Scale, 2);
/// Per sub-block four bytes of points, then 32 bits: seven signs a point, and the scale in the upper four.
const QS: Field = D.then("qs", Part::Packed, 64);

/// The magnitudes with both signs.
pub(super) const LEVELS: &[f32] = &[-43.0, -25.0, -8.0, 8.0, 25.0, 43.0];

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ2_XXS,
    fields: &[D, QS],
    content: Content::Codes(Codes { levels: LEVELS, run: 32 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    for (sub, out) in QS.of::<64>(b).as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let [p0, p1, p2, p3, rest @ ..] = *sub;
        let rest = u32::from_le_bytes(rest);
        let scale = d * (0.5 + (rest >> 28) as f32) * 0.25;
        for (l, (point, out)) in [p0, p1, p2, p3].into_iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
            signed(&grids::IQ2_XXS[usize::from(point)], even_signs(rest >> (7 * l)), scale, out);
        }
    }
}
