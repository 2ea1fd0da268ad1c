//! Q5_1: 32 weights in 24 bytes.
//!
//! weight = q * d + m. Source: `dequantize_row_q5_1` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16, nibbles};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// The offset.
const M: Field = D.then("m", Part::Offset, 2);
/// The fifth (highest) bit of each quant, a little-endian u32.
const QH: Field = M.then("qh", Part::HighBits, 4);
/// 4 bits of each quant (see `nibbles.rs`).
const QS: Field = QH.then("qs", Part::Quants, 16);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q5_1,
    fields: &[D, M, QH, QS],
    content: Content::Quants(Quants { offset: Offset::PerBlock, run: 32, stride: 16 }),
    dot: ActivationFormat::Q8_1,
    mmq: Mmq::Ds4,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16::at(b, &D), f16::at(b, &M));
    let high = u32::from_le_bytes(*QH.of(b));
    nibbles::unpack(QS.of(b), high, out, |q| q as f32 * d + m);
}
