//! Shared by the formats whose codes are indices of a table.

/// The 16 numbers of IQ4_NL and IQ4_XS. Source: `kvalues_iq4nl` in ggml-common.h.
pub(super) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the 16 numbers of the 4-bit float E2M1 (OCP Microscaling Formats): sign, two bits of exponent, one of mantissa.
pub(super) const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Writes twice as many weights as there are bytes: those of the low halves, then those of the high ones.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8], table: &[i8; 16], d: f32, out: &mut [f32]) {
    for (j, byte) in bytes.iter().enumerate() {
        out[j] = f32::from(table[usize::from(byte & 0x0f)]) * d;
        out[j + bytes.len()] = f32::from(table[usize::from(byte >> 4)]) * d;
    }
}

/// Writes a point of a grid with bit `j` of `signs` set where weight `j` is negative.
#[inline(always)]
pub(super) fn signed<const N: usize>(point: &[i8; N], signs: u8, d: f32, out: &mut [f32]) {
    for (j, (out, v)) in out.iter_mut().zip(point).enumerate() {
        let weight = d * f32::from(*v);
        *out = if signs >> j & 1 == 1 { -weight } else { weight };
    }
}

/// The signs of eight weights of which seven are stored: an even number of them is negative. Source: `ksigns_iq2xs` in
/// ggml-common.h.
#[inline(always)]
pub(super) fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() & 1) as u8) << 7
}

/// Writes a point of a 1-bit grid, whose numbers are all shifted by an eighth, down where `down` says so.
#[inline(always)]
pub(super) fn shifted(point: &[i8; 8], down: bool, d: f32, out: &mut [f32]) {
    let delta = if down { -0.125 } else { 0.125 };
    out.iter_mut().zip(point).for_each(|(out, v)| *out = d * (f32::from(*v) + delta));
}
