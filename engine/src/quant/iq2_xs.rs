//! IQ2_XS: 256 weights in 74 bytes, in sub-blocks of 16, eight weights at a time from a grid of 512 points.
//!
//! weight = (d * (0.5 + scale) / 4) * ±magnitude. Source: `dequantize_row_iq2_xs` in ggml-quants.c.

use super::codebook::{even_signs, signed};
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16, grids, iq2_xxs};

/// The scale of the scales.
const D: Field = Field::first("d", Part::Scale, 2);
/// A little-endian u16 per eight weights: the point in the low 9 bits, seven signs above.
const QS: Field = D.then("qs", Part::Packed, 64);
/// 4 bits a sub-block, the even one low.
const SCALES: Field = QS.then("scales", Part::SubScales, 8);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ2_XS,
    fields: &[D, QS, SCALES],
    content: Content::Codes(Codes { levels: iq2_xxs::LEVELS, run: 16 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 74], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    let points = QS.of::<64>(b).as_chunks::<2>().0;
    for (i, (point, out)) in points.iter().zip(out.as_chunks_mut::<8>().0).enumerate() {
        let (sub, point) = (i / 2, u16::from_le_bytes(*point));
        let scale = b[SCALES.at(sub / 2)] >> (4 * (sub % 2)) & 0x0f;
        let scale = d * (0.5 + f32::from(scale)) * 0.25;
        signed(&grids::IQ2_XS[usize::from(point & 511)], even_signs(u32::from(point >> 9)), scale, out);
    }
}
