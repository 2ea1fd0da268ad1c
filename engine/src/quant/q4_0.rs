//! Q4_0: 32 weights in 18 bytes.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..2 | `d`, f16 scale |
//! | 2..18 | 32 quants of 4 bits; weight `j` in the low, `j + 16` in the high half of byte `j` |
//!
//! weight = (q - 8) * d. Source: `dequantize_row_q4_0` in ggml-quants.c.

use super::f16;

/// Unpacks one block.
#[inline(always)]
pub fn dequantize_block(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16::at(b, 0);
    for j in 0..16 {
        let q = b[2 + j];
        out[j] = (i32::from(q & 0x0f) - 8) as f32 * d;
        out[j + 16] = (i32::from(q >> 4) - 8) as f32 * d;
    }
}
