//! Q5_0: 32 weights in 22 bytes.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..2 | `d`, f16 scale |
//! | 2..6 | the fifth (highest) bit of each quant; weight `j` at bit `j` of a little-endian u32 |
//! | 6..22 | the low 4 bits; weight `j` in the low, `j + 16` in the high half of byte `j` |
//!
//! weight = (q - 16) * d. Source: `dequantize_row_q5_0` in ggml-quants.c.

use super::f16;

/// Unpacks one block.
#[inline(always)]
pub fn dequantize_block(b: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16::at(b, 0);
    let high = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
    for j in 0..16 {
        let q = u32::from(b[6 + j]);
        let low = (q & 0x0f) | ((high >> j) & 1) << 4;
        let up = (q >> 4) | ((high >> (j + 16)) & 1) << 4;
        out[j] = (low as i32 - 16) as f32 * d;
        out[j + 16] = (up as i32 - 16) as f32 * d;
    }
}
