//! Q8_0: 32 weights in 34 bytes.
//!
//! weight = q * d. Source: `dequantize_row_q8_0` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// A signed byte a quant.
const QS: Field = D.then("qs", Part::Quants, 32);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q8_0,
    fields: &[D, QS],
    content: Content::Quants(Quants { offset: Offset::None, run: 32, stride: 32 }),
    dot: ActivationFormat::Q8_0,
    mmq: Mmq::D4,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16::at(b, &D);
    for j in 0..32 {
        out[j] = i32::from(b[QS.at(j)] as i8) as f32 * d;
    }
}
