//! F32: plain numbers, 4 bytes each, little-endian IEEE binary32.

/// Reads one number.
#[inline(always)]
pub fn dequantize_block(b: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*b);
}
