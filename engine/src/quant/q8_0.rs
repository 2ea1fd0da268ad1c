//! Q8_0: 32 weights in 34 bytes.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..2 | `d`, f16 scale |
//! | 2..34 | 32 signed 8-bit quants |
//!
//! weight = q * d. Source: `dequantize_row_q8_0` in ggml-quants.c.

use super::f16;

/// Unpacks one block.
#[inline(always)]
pub fn dequantize_block(b: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16::at(b, 0);
    for j in 0..32 {
        out[j] = i32::from(b[2 + j] as i8) as f32 * d;
    }
}
