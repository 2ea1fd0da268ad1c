//! BF16: plain numbers, 2 bytes each, the upper half of an IEEE binary32.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Part};

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::BF16,
    fields: &[Field::first("number", Part::Number, 2)],
    content: Content::Bf16,
    dot: ActivationFormat::Bf16,
    mmq: Mmq::None,
};

/// Reads one number; exact.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
}
