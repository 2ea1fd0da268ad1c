//! Q4_1: 32 weights in 20 bytes.
//!
//! weight = q * d + m. Source: `dequantize_row_q4_1` in ggml-quants.c.

use super::{Content, Field, Format, GgmlType, Offset, Part, Quants, f16};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// The offset.
const M: Field = D.then("m", Part::Offset, 2);
/// 4 bits a quant: weight `j` in the low, `j + 16` in the high half of byte `j`.
const QS: Field = M.then("qs", Part::Quants, 16);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q4_1,
    fields: &[D, M, QS],
    content: Content::Quants(Quants { offset: Offset::PerBlock, run: 32, stride: 16, mmq_sums: true }),
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16::at(b, &D), f16::at(b, &M));
    for j in 0..16 {
        let q = b[QS.at(j)];
        out[j] = i32::from(q & 0x0f) as f32 * d + m;
        out[j + 16] = i32::from(q >> 4) as f32 * d + m;
    }
}
