//! TQ2_0: 256 weights in 66 bytes, each −d, 0, d (or 2d, which its quantiser never writes).
//!
//! weight = (q - 1) * d. Source: `dequantize_row_tq2_0` in ggml-quants.c.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Offset, Part, Quants, f16};

/// 2 bits a quant: 32 bytes per 128 weights, of which the first 32 stand lowest.
const QS: Field = Field::first("qs", Part::Quants, 64);
/// The scale.
const D: Field = QS.then("d", Part::Scale, 2);

const ZERO: u8 = 1;

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::TQ2_0,
    fields: &[QS, D],
    content: Content::Quants(Quants { offset: Offset::ZeroPoint(ZERO), run: 256, stride: 32 }),
    dot: ActivationFormat::Q8K,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16::at(b, &D);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (m, out) in out.iter_mut().enumerate() {
            let q = b[QS.at(32 * (run / 4) + m)] >> (2 * (run % 4)) & 3;
            *out = (i32::from(q) - i32::from(ZERO)) as f32 * d;
        }
    }
}
