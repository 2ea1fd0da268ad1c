//! IQ4_NL: 32 weights in 18 bytes, each one of 16 numbers that are not evenly spaced.
//!
//! weight = d * number. Source: `dequantize_row_iq4_nl` in ggml-quants.c.

use super::codebook::{self, IQ4};
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, f16};

/// The scale.
const D: Field = Field::first("d", Part::Scale, 2);
/// 4 bits a weight: the first 16 in the low halves.
const QS: Field = D.then("qs", Part::Codes, 16);

/// [`IQ4`], as a weight has them.
pub(super) const LEVELS: &[f32] =
    &[-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::IQ4_NL,
    fields: &[D, QS],
    content: Content::Codes(Codes { levels: LEVELS, run: 32 }),
    dot: ActivationFormat::Q8_0,
    mmq: Mmq::Unmeasured,
};

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 18], out: &mut [f32; 32]) {
    codebook::nibbles(QS.of::<16>(b), &IQ4, f16::at(b, &D), out);
}
