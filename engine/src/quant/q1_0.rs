//! Q1_0: 128 weights in 18 bytes.
//!
//! weight = d where its bit is set, else −d. Source: `dequantize_row_q1_0` in ggml-quants.c.

use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// A bit a weight.
const QS: Field = D.then("qs", Part::Codes, 16);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q1_0,
    fields: &[D, QS],
    content: Content::Codes(Codes { levels: &[-1.0, 1.0], run: 128 }),
    dot: ActivationFormat::Q8_0,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 18], out: &mut [f32; 128]) {
    let d = f16::at(b, &D);
    for (j, out) in out.iter_mut().enumerate() {
        *out = if b[QS.at(j / 8)] >> (j % 8) & 1 == 1 { d } else { -d };
    }
}
