//! IQ4_XS: 256 weights in 136 bytes, in sub-blocks of 32, each weight one of the 16 numbers of IQ4_NL.
//!
//! weight = (d * (scale - 32)) * number. Source: `dequantize_row_iq4_xs` in ggml-quants.c.

use super::codebook::{self, IQ4};
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16, iq4_nl};

/// The scale of the scales.
const D: Field = Field::first("d", Part::Scale, 2);
/// The upper 2 bits of the sub-blocks' scales, a little-endian u16.
const SCALES_H: Field = D.then("scales_h", Part::SubScalesHigh, 2);
/// The low 4 bits of the sub-blocks' scales, two to a byte.
const SCALES_L: Field = SCALES_H.then("scales_l", Part::SubScales, 4);
/// 4 bits a weight: 16 bytes a sub-block, its first 16 weights in the low halves.
const QS: Field = SCALES_L.then("qs", Part::Codes, 128);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ4_XS,
    fields: &[D, SCALES_H, SCALES_L, QS],
    content: Content::Codes(Codes { levels: iq4_nl::LEVELS, run: 32 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    let high = u16::from_le_bytes(*SCALES_H.of(b));
    let quants = QS.of::<128>(b).as_chunks::<16>().0;
    for (sub, (quants, out)) in quants.iter().zip(out.as_chunks_mut::<32>().0).enumerate() {
        let low = b[SCALES_L.at(sub / 2)] >> (4 * (sub % 2)) & 0x0f;
        let scale = i32::from(low) | i32::from(high >> (2 * sub) & 3) << 4;
        codebook::nibbles(quants, &IQ4, d * (scale - 32) as f32, out);
    }
}
