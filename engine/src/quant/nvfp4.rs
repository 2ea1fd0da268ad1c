//! NVFP4: 64 weights in 36 bytes, 4-bit floats in sub-blocks of 16, each under an 8-bit float.
//!
//! weight = (scale / 2) * (2 * E2M1). Files that hold it have a further factor for a whole tensor, in `NAME.scale`.
//! Source: `dequantize_row_nvfp4` in ggml-quants.c.

use super::codebook::{self, FP4};
use super::{ActivationFormat, Codes, Content, Field, Format, GgmlType, Mmq, Part, mxfp4};

/// Scales of the sub-blocks: E4M3 without sign.
const D: Field = Field::first("d", Part::SmallFloats, 4);
/// 4 bits a weight: 8 bytes a sub-block, its first 8 weights in the low halves.
const QS: Field = D.then("qs", Part::Codes, 32);

pub(super) const FORMAT: Format = Format {
    ty: GgmlType::NVFP4,
    fields: &[D, QS],
    content: Content::Codes(Codes { levels: mxfp4::LEVELS, run: 16 }),
    dot: ActivationFormat::Q8_0,
    mmq: Mmq::Unmeasured,
};

/// Half of a scale, since the table holds twice the numbers: `ggml_ue4m3_to_fp32` in ggml-impl.h, which ignores the sign bit
/// but for 0x7f, NaN in E4M3, which it takes for 0.
#[inline(always)]
fn half_scale(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3 & 0x0f), f32::from(byte & 7));
    match (byte, exponent) {
        (0x7f, _) => 0.0,
        // Half of mantissa * 2^-9.
        (_, 0) => mantissa / 1024.0,
        // Half of (1 + mantissa / 8) * 2^(exponent - 7): the power is a float of that exponent.
        _ => (8.0 + mantissa) * f32::from_bits((exponent + 127 - 11) << 23),
    }
}

/// Unpacks one block.
#[inline(always)]
pub(super) fn dequantize_block(b: &[u8; 36], out: &mut [f32; 64]) {
    let quants = QS.of::<32>(b).as_chunks::<8>().0;
    for (sub, (quants, out)) in quants.iter().zip(out.as_chunks_mut::<16>().0).enumerate() {
        codebook::nibbles(quants, &FP4, half_scale(b[D.at(sub)]), out);
    }
}
