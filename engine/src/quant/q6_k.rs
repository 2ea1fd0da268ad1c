//! Q6_K: 256 weights in 210 bytes, as two halves of 128, each of four runs of 32.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..128 | the low 4 bits: 64 bytes per half; runs 0 and 1 in the low, 2 and 3 in the high halves |
//! | 128..192 | the upper 2 bits: 32 bytes per half; run `r` at bits `2r` |
//! | 192..208 | 16 signed 8-bit scales, one per 16 weights |
//! | 208..210 | `d`, f16 scale of the scales |
//!
//! weight = (d * scale) * (q - 32). Source: `dequantize_row_q6_K` in
//! ggml-quants.c.

use super::f16;

/// Unpacks one block.
#[inline(always)]
pub fn dequantize_block(b: &[u8; 210], out: &mut [f32; 256]) {
    let d = f16::at(b, 208);
    for half in 0..2 {
        for sixteen in 0..2 {
            let scale = |run: usize| d * f32::from(b[192 + 8 * half + 2 * run + sixteen] as i8);
            let (s0, s1, s2, s3) = (scale(0), scale(1), scale(2), scale(3));
            for i in 0..16 {
                let l = 16 * sixteen + i;
                let a = b[64 * half + l];
                let c = b[64 * half + 32 + l];
                let high = b[128 + 32 * half + l];
                let q0 = (a & 0x0f) | (high & 0x03) << 4;
                let q1 = (c & 0x0f) | (high & 0x0c) << 2;
                let q2 = (a >> 4) | (high & 0x30);
                let q3 = (c >> 4) | (high & 0xc0) >> 2;
                let at = 128 * half + l;
                out[at] = s0 * (i32::from(q0) - 32) as f32;
                out[at + 32] = s1 * (i32::from(q1) - 32) as f32;
                out[at + 64] = s2 * (i32::from(q2) - 32) as f32;
                out[at + 96] = s3 * (i32::from(q3) - 32) as f32;
            }
        }
    }
}
