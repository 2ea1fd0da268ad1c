//! What Q4_K and Q5_K share: super-blocks of eight sub-blocks of 32, each with a 6-bit scale and a 6-bit offset.
//!
//! weight = (d * scale) * q - (dmin * offset). Source: `dequantize_row_q4_K`
//! and `dequantize_row_q5_K` in ggml-quants.c.

use super::{Field, Part, f16};

/// The scale of the scales.
pub(super) const D: Field = Field::first("d", Part::Scale, 2);
/// The scale of the offsets.
pub(super) const DMIN: Field = D.then("dmin", Part::Offset, 2);
/// Eight scales and eight offsets: see [`scales`].
pub(super) const SCALES: Field = DMIN.then("scales", Part::PackedScales, 12);

/// The eight scales and eight offsets of a block, each 0 to 63.
///
/// Sub-blocks 0..4: the low 6 bits of bytes 0..4 (scales) and 4..8 (offsets). Sub-blocks 4..8: the low 4 bits from the
/// halves of bytes 8..12 (scale low, offset high), the upper 2 from the top bits of bytes 0..4 and 4..8. Source:
/// `get_scale_min_k4` in ggml-quants.c.
#[inline(always)]
pub(super) fn scales(block: &[u8]) -> ([u8; 8], [u8; 8]) {
    let b: &[u8; 12] = SCALES.of(block);
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = b[j] & 0x3f;
        mins[j] = b[j + 4] & 0x3f;
        scales[j + 4] = (b[j + 8] & 0x0f) | (b[j] >> 6) << 4;
        mins[j + 4] = (b[j + 8] >> 4) | (b[j + 4] >> 6) << 4;
    }
    (scales, mins)
}

/// Unpacks one block, the products `d * scale` and `dmin * offset` passed through `product` before they are used.
///
/// `quants` are 4 bits each: 32 bytes per pair of sub-blocks, the even one in the low halves. `high` has a fifth:
/// weight `l` of sub-block `s` at bit `s` of byte `l`.
#[inline(always)]
pub(super) fn unpack(
    b: &[u8], quants: &[u8; 128], high: Option<&[u8; 32]>, product: impl Fn(f32) -> f32, out: &mut [f32; 256],
) {
    let (d, dmin) = (f16::at(b, &D), f16::at(b, &DMIN));
    let (scales, mins) = scales(b);
    for pair in 0..4 {
        let d0 = product(d * f32::from(scales[2 * pair]));
        let m0 = product(dmin * f32::from(mins[2 * pair]));
        let d1 = product(d * f32::from(scales[2 * pair + 1]));
        let m1 = product(dmin * f32::from(mins[2 * pair + 1]));
        for l in 0..32 {
            let q = quants[32 * pair + l];
            let high = high.map_or(0, |high| high[l] >> (2 * pair));
            let q0 = (q & 0x0f) | (high & 1) << 4;
            let q1 = (q >> 4) | (high & 2) << 3;
            out[64 * pair + l] = d0 * i32::from(q0) as f32 - m0;
            out[64 * pair + 32 + l] = d1 * i32::from(q1) as f32 - m1;
        }
    }
}
