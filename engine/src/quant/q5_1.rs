//! Q5_1: 32 weights in 24 bytes.
//!
//! weight = q * d + m. Source: `dequantize_row_q5_1` in ggml-quants.c.

use super::{Content, Field, Format, GgmlType, Offset, Part, Quants, f16};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// The offset.
const M: Field = D.then("m", Part::Offset, 2);
/// The fifth (highest) bit of each quant: weight `j` at bit `j` of a little-endian u32.
const QH: Field = M.then("qh", Part::HighBits, 4);
/// The low 4 bits: weight `j` in the low, `j + 16` in the high half of byte `j`.
const QS: Field = QH.then("qs", Part::Quants, 16);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::Q5_1,
    fields: &[D, M, QH, QS],
    content: Content::Quants(Quants { offset: Offset::PerBlock, run: 32, stride: 16, mmq_sums: true }),
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16::at(b, &D), f16::at(b, &M));
    let high = u32::from_le_bytes(*QH.of(b));
    for j in 0..16 {
        let q = u32::from(b[QS.at(j)]);
        let low = (q & 0x0f) | ((high >> j) & 1) << 4;
        let up = (q >> 4) | ((high >> (j + 16)) & 1) << 4;
        out[j] = low as i32 as f32 * d + m;
        out[j + 16] = up as i32 as f32 * d + m;
    }
}
