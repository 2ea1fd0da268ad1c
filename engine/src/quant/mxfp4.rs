//! MXFP4: 32 weights in 17 bytes, 4-bit floats under a power of two.
//!
//! weight = 2^(e - 128) * (2 * E2M1). Source: `dequantize_row_mxfp4` in ggml-quants.c; OCP Microscaling Formats (MX) 1.0.

use super::codebook::{self, FP4};
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part};

/// The power of two: E8M0, its exponent plus 127.
const E: Field = Field::first("e", Part::Exponent, 1);
/// 4 bits a weight: the first 16 in the low halves.
const QS: Field = E.then("qs", Part::Codes, 16);

/// Twice the numbers of E2M1.
pub(super) const LEVELS: &[f32] = &[-12.0, -8.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::MXFP4,
    fields: &[E, QS],
    content: Content::Codes(Codes { levels: LEVELS, run: 32 }),
    dot: ActivationFormat::Q8_0,
    mmq: Mmq::Unmeasured,
};

/// Half of the power of two, since the table holds twice the numbers: `ggml_e8m0_to_fp32_half` in ggml-impl.h.
#[inline(always)]
fn half_power(e: u8) -> f32 {
    // The smallest two are subnormal.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 17], out: &mut [f32; 32]) {
    codebook::nibbles(QS.of::<16>(b), &FP4, half_power(b[E.at(0)]), out);
}
