//! Q4_0: 32 weights in 18 bytes.
//!
//! weight = (q - 8) * d. Source: `dequantize_row_q4_0` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16, nibbles};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// 4 bits of each quant (see `nibbles.rs`).
const QS: Field = D.then("qs", Part::Quants, 16);

const ZERO: u8 = 8;

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q4_0,
    fields: &[D, QS],
    content: Content::Quants(Quants { offset: Offset::ZeroPoint(ZERO), run: 32, stride: 16 }),
    dot: ActivationFormat::Q8_0,
    mmq: Mmq::Ds4,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16::at(b, &D);
    nibbles::unpack(QS.of(b), 0, out, |q| (q - i32::from(ZERO)) as f32 * d);
}
