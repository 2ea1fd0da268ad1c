//! F16: plain numbers, 2 bytes each, little-endian IEEE binary16.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Part};

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::F16,
    fields: &[Field::first("number", Part::Number, 2)],
    content: Content::F16,
    dot: ActivationFormat::F16,
    mmq: Mmq::None,
};

/// Reads one number; exact.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = to_f32(u16::from_le_bytes(*b));
}

/// The exact `f32` of the IEEE binary16 with bits `h`, without a branch, so that a loop over it vectorises and a tiny
/// block scale costs no more than another.
#[inline(always)]
pub fn to_f32(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff);
    // Subnormals are multiples of 2^-24: integers, so exact.
    let subnormal = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
    // Otherwise move the fields and correct the exponent's bias, 15 to 127.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let special = (magnitude << 13) | 0x7f80_0000;
    let bits = if magnitude < 0x0400 {
        subnormal
    } else if magnitude >= 0x7c00 {
        special
    } else {
        normal
    };
    f32::from_bits(bits | u32::from(h & 0x8000) << 16)
}

/// The little-endian f16 that is a field of block `b`.
#[inline(always)]
pub(super) fn at(b: &[u8], field: &Field) -> f32 {
    to_f32(u16::from_le_bytes(*field.of(b)))
}

/// The nearest value that f16 holds.
pub(super) fn rounded(v: f32) -> f32 {
    half::f16::from_f32(v).to_f32()
}
