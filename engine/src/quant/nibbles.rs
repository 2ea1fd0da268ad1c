//! What Q4_0, Q4_1, Q5_0 and Q5_1 share: 32 quants in 16 bytes.

/// Unpacks one block by `weight`, which makes a weight of its quant.
///
/// `low` are 4 bits each: weight `j` in the low, `j + 16` in the high half of
/// byte `j`. `high` is the fifth (highest) bit: weight `j` at bit `j`.
#[inline(always)]
pub(super) fn unpack(low: &[u8; 16], high: u32, out: &mut [f32; 32], weight: impl Fn(i32) -> f32) {
    for j in 0..16 {
        let fifth = |j: usize| (((high >> j) & 1) << 4) as i32;
        out[j] = weight(i32::from(low[j] & 0x0f) | fifth(j));
        out[j + 16] = weight(i32::from(low[j] >> 4) | fifth(j + 16));
    }
}
