//! Q4_1: 32 weights in 20 bytes.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..2 | `d`, f16 scale |
//! | 2..4 | `m`, f16 offset |
//! | 4..20 | 32 quants of 4 bits; weight `j` in the low, `j + 16` in the high half of byte `j` |
//!
//! weight = q * d + m. Source: `dequantize_row_q4_1` in ggml-quants.c.

use super::f16;

/// Unpacks one block.
#[inline(always)]
pub fn dequantize_block(b: &[u8; 20], out: &mut [f32; 32]) {
    let d = f16::at(b, 0);
    let m = f16::at(b, 2);
    for j in 0..16 {
        let q = b[4 + j];
        out[j] = i32::from(q & 0x0f) as f32 * d + m;
        out[j + 16] = i32::from(q >> 4) as f32 * d + m;
    }
}
