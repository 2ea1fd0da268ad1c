//! Q2_0: 64 weights in 18 bytes.
//!
//! weight = (q - 1) * d. Source: `dequantize_row_q2_0` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// 2 bits a quant: four neighbours to a byte.
const QS: Field = D.then("qs", Part::Quants, 16);

const ZERO: u8 = 1;

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q2_0,
    fields: &[D, QS],
    content: Content::Quants(Quants { offset: Offset::ZeroPoint(ZERO), run: 64, stride: 1 }),
    dot: ActivationFormat::Q8_0,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 18], out: &mut [f32; 64]) {
    let d = f16::at(b, &D);
    for (j, out) in out.iter_mut().enumerate() {
        let q = b[QS.at(j / 4)] >> (2 * (j % 4)) & 3;
        *out = (i32::from(q) - i32::from(ZERO)) as f32 * d;
    }
}
