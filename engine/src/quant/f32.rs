//! F32: plain numbers, 4 bytes each, little-endian IEEE binary32.

use super::{ActivationFormat, Content, Field, Format, GgmlType, Mmq, Part};

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::F32,
    fields: &[Field::first("number", Part::Number, 4)],
    content: Content::F32,
    dot: ActivationFormat::F32,
    mmq: Mmq::None,
};

/// Reads one number.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*b);
}
