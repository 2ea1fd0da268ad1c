//! Q2_K: 256 weights in 84 bytes, in sub-blocks of 16.
//!
//! weight = (d * scale) * q - (dmin * offset). Source: `dequantize_row_q2_K` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16};

/// A byte per sub-block: its scale (low half) and its offset (high half).
const SCALES: Field = Field::first("scales", Part::SubScales, 16);
/// 2 bits a quant: 32 bytes per 128 weights, of which the first 32 stand lowest.
const QS: Field = SCALES.then("qs", Part::Quants, 64);
/// The scale of the scales.
const D: Field = QS.then("d", Part::Scale, 2);
/// The scale of the offsets.
const DMIN: Field = D.then("dmin", Part::Offset, 2);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q2_K,
    fields: &[SCALES, QS, D, DMIN],
    content: Content::Quants(Quants { offset: Offset::PerSubBlock, run: 16, stride: 32 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (f16::at(b, &D), f16::at(b, &DMIN));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let both = b[SCALES.at(sub)];
        let (scale, min) = (d * f32::from(both & 0x0f), dmin * f32::from(both >> 4));
        let (first, shift) = (32 * (sub / 8) + 16 * (sub % 2), 2 * (sub % 8 / 2));
        for (l, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(b[QS.at(first + l)] >> shift & 3) - min;
        }
    }
}
