//! The 12 bytes of 6-bit scales and offsets that Q4_K and Q5_K share.

/// Unpacks eight scales and eight offsets, each 0 to 63.
///
/// Sub-blocks 0..4: the low 6 bits of bytes 0..4 (scales) and 4..8 (offsets).
/// Sub-blocks 4..8: the low 4 bits from the halves of bytes 8..12 (scale low,
/// offset high), the upper 2 from the top bits of bytes 0..4 and 4..8.
/// Source: `get_scale_min_k4` in ggml-quants.c.
#[inline(always)]
pub(super) fn unpack(b: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = b[j] & 0x3f;
        mins[j] = b[j + 4] & 0x3f;
        scales[j + 4] = (b[j + 8] & 0x0f) | (b[j] >> 6) << 4;
        mins[j + 4] = (b[j + 8] >> 4) | (b[j + 4] >> 6) << 4;
    }
    (scales, mins)
}

/// Bytes 4..16 of a Q4_K or Q5_K block: the packed scales.
#[inline(always)]
pub(super) fn of_block<const B: usize>(b: &[u8; B]) -> ([u8; 8], [u8; 8]) {
    of_bytes(b)
}

/// As [`of_block`], for a block of either length.
#[inline(always)]
pub(super) fn of_bytes(b: &[u8]) -> ([u8; 8], [u8; 8]) {
    let mut packed = [0; 12];
    packed.copy_from_slice(&b[4..16]);
    unpack(&packed)
}
