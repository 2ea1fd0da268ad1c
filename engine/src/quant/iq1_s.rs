//! IQ1_S: 256 weights in 50 bytes, in sub-blocks of 32, eight weights at a time from a grid of 2048 points.
//!
//! weight = (d * (2 * scale + 1)) * (number ± 1/8). Source: `dequantize_row_iq1_s` in ggml-quants.c.

use super::codebook::shifted;
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16, grids};

/// The scale of the scales.
const D: Field = Field::first("d", Part::Scale, 2);
/// The low 8 bits of each point.
const QS: Field = D.then("qs", Part::Codes, 32);
/// A little-endian u16 per sub-block: the upper 3 bits of four points, the scale in three, and the shift's sign.
const QH: Field = QS.then("qh", Part::Packed, 16);

/// The numbers, shifted either way.
pub(super) const LEVELS: &[f32] = &[-1.125, -0.875, -0.125, 0.125, 0.875, 1.125];

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ1_S,
    fields: &[D, QS, QH],
    content: Content::Codes(Codes { levels: LEVELS, run: 32 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 50], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    for (sub, (high, out)) in QH.of::<16>(b).as_chunks::<2>().0.iter().zip(out.as_chunks_mut::<32>().0).enumerate() {
        let high = u16::from_le_bytes(*high);
        let scale = d * f32::from(2 * (high >> 12 & 7) + 1);
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let point = usize::from(b[QS.at(4 * sub + l)]) | usize::from(high >> (3 * l) & 7) << 8;
            shifted(&grids::IQ1[point], high & 0x8000 != 0, scale, out);
        }
    }
}
