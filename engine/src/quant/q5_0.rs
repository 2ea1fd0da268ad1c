//! Q5_0: 32 weights in 22 bytes.
//!
//! weight = (q - 16) * d. Source: `dequantize_row_q5_0` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16, nibbles};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// The fifth (highest) bit of each quant, a little-endian u32.
const QH: Field = D.then("qh", Part::HighBits, 4);
/// 4 bits of each quant (see `nibbles.rs`).
const QS: Field = QH.then("qs", Part::Quants, 16);

const ZERO: u8 = 16;

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q5_0,
    fields: &[D, QH, QS],
    content: Content::Quants(Quants { offset: Offset::ZeroPoint(ZERO), run: 32, stride: 16 }),
    dot: ActivationFormat::Q8_0,
    mmq: Mmq::D4,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16::at(b, &D);
    let high = u32::from_le_bytes(*QH.of(b));
    nibbles::unpack(QS.of(b), high, out, |q| (q - i32::from(ZERO)) as f32 * d);
}
