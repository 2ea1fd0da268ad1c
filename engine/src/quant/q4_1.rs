//! Q4_1: 32 weights in 20 bytes.
//!
//! weight = q * d + m. Source: `dequantize_row_q4_1` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16, nibbles};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// The offset.
const M: Field = D.then("m", Part::Offset, 2);
/// 4 bits of each quant (see `nibbles.rs`).
const QS: Field = M.then("qs", Part::Quants, 16);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q4_1,
    fields: &[D, M, QS],
    content: Content::Quants(Quants { offset: Offset::PerBlock, run: 32, stride: 16 }),
    dot: ActivationFormat::Q8_1,
    mmq: Mmq::Ds4,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16::at(b, &D), f16::at(b, &M));
    nibbles::unpack(QS.of(b), 0, out, |q| q as f32 * d + m);
}
