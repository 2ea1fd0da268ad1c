//! Q4_K: 256 weights in 144 bytes, as eight sub-blocks of 32.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..2 | `d`, f16 scale of the scales |
//! | 2..4 | `dmin`, f16 scale of the offsets |
//! | 4..16 | eight 6-bit scales and eight 6-bit offsets (see `k_scales.rs`) |
//! | 16..144 | quants of 4 bits: 32 bytes per pair of sub-blocks, the even one in the low halves |
//!
//! weight = (d * scale) * q - (dmin * offset). Source: `dequantize_row_q4_K`
//! in ggml-quants.c.

use super::{f16, k_scales};

/// Unpacks one block.
#[inline(always)]
pub fn dequantize_block(b: &[u8; 144], out: &mut [f32; 256]) {
    unpack(b, out, |product| product);
}

/// Unpacks one block, the products `d * scale` and `dmin * offset` passed
/// through `product` before they are used.
#[inline(always)]
pub(super) fn unpack(b: &[u8; 144], out: &mut [f32; 256], product: impl Fn(f32) -> f32) {
    let d = f16::at(b, 0);
    let dmin = f16::at(b, 2);
    let (scales, mins) = k_scales::of_block(b);
    for pair in 0..4 {
        let d0 = product(d * f32::from(scales[2 * pair]));
        let m0 = product(dmin * f32::from(mins[2 * pair]));
        let d1 = product(d * f32::from(scales[2 * pair + 1]));
        let m1 = product(dmin * f32::from(mins[2 * pair + 1]));
        for l in 0..32 {
            let q = b[16 + 32 * pair + l];
            out[64 * pair + l] = d0 * i32::from(q & 0x0f) as f32 - m0;
            out[64 * pair + 32 + l] = d1 * i32::from(q >> 4) as f32 - m1;
        }
    }
}
