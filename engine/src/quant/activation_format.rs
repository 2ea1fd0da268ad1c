//! The formats of activations that engines multiply with weights.
//!
//! llama.cpp's CPU backend has one per format of weights ([`super::Format::dot`]). Its CUDA backend quantises to two kinds of
//! q8_1: `quantize_q8_1` for the matrix-vector kernels and `quantize_mmq_q8_1`, in the layouts D4 and DS4, for the matrix-matrix
//! ones (ggml-cuda/quantize.cu). Engines that follow ggml's code without its vector instructions, such as candle, round halves
//! away from zero.

use super::GgmlType;
use crate::dtype::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A format of activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivationFormat {
    /// Unchanged.
    #[default]
    F32,
    /// Rounded to IEEE binary16.
    F16,
    /// Rounded to bfloat16.
    Bf16,
    /// Rounded to OCP 8-bit floating point, E4M3.
    #[serde(rename = "f8_e4m3")]
    F8E4m3,
    /// Rounded to OCP 8-bit floating point, E5M2.
    #[serde(rename = "f8_e5m2")]
    F8E5m2,
    /// Rounded to the 10 mantissa bits of TF32, ties to even, as cuBLAS does.
    Tf32,
    /// Cut to the 10 mantissa bits of TF32: what a tensor core makes of plain f32 operands.
    Tf32Truncated,
    /// Signed 8 bits and an f16 scale per 32.
    Q8_0,
    /// As Q8_0, in the rounding of `quantize_row_q8_0_ref` in ggml-quants.c: halves away from zero.
    Q8_0Ref,
    /// As Q8_0, with the f16 sum of the block beside it.
    Q8_1,
    /// As Q8_0Ref, with a sum beside it that is rounded twice: the sum of the quants becomes f16, is multiplied by the f16 scale, and
    /// becomes f16 again. candle multiplies weights in Q4_1 and Q5_1 by it.
    Q8_1HalfSum,
    /// Signed 8 bits and an f32 scale per 256.
    #[serde(rename = "q8_K")]
    Q8K,
    /// As Q8_K, halves rounded away from zero, as candle does.
    #[serde(rename = "q8_K_away")]
    Q8KAway,
    /// As Q8_K_away, but the largest of a block becomes -128, not -127, and what would be 128 becomes 127, as in candle 0.10.2.
    #[serde(rename = "q8_K_128")]
    Q8K128,
    /// CUDA's `quantize_q8_1`: an f16 scale per 32, and the f16 sum of the values as they were before quantisation.
    Q8_1Mmvq,
    /// CUDA's `quantize_mmq_q8_1`, layout D4: an f32 scale per 32.
    Q8_1MmqD4,
    /// CUDA's `quantize_mmq_q8_1`, layout DS4: an f16 scale per 32, and the
    /// f16 sum of the values as they were before quantisation.
    Q8_1MmqDs4,
    /// Rows of a cache: 5 bits, an f16 scale and an f16 offset per 32.
    Q5_1,
    /// Rows of a cache: 5 bits and an f16 scale per 32.
    Q5_0,
    /// Rows of a cache: 4 bits, an f16 scale and an f16 offset per 32.
    Q4_1,
    /// Rows of a cache: 4 bits and an f16 scale per 32.
    Q4_0,
    /// Rows of a cache: one of 16 numbers that are not evenly spaced, and an f16 scale per 32.
    Iq4Nl,
}

impl From<DType> for ActivationFormat {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::Bf16 => Self::Bf16,
            DType::F8E4m3 => Self::F8E4m3,
            DType::F8E5m2 => Self::F8E5m2,
        }
    }
}

impl ActivationFormat {
    /// The number format that it is; `None` for TF32, and where values share a scale.
    pub fn number(self) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| Self::from(*dtype) == self)
    }

    /// ggml's type of the blocks of a cache; `None` where values share no scale, or ggml stores no cache so.
    pub fn stored_as(self) -> Option<GgmlType> {
        Some(match self {
            Self::Q8_0 => GgmlType::Q8_0,
            Self::Q5_1 => GgmlType::Q5_1,
            Self::Q5_0 => GgmlType::Q5_0,
            Self::Q4_1 => GgmlType::Q4_1,
            Self::Q4_0 => GgmlType::Q4_0,
            Self::Iq4Nl => GgmlType::IQ4_NL,
            _ => return None,
        })
    }

    /// Bytes of so many elements of a cache; `None` if it is no format of caches. `n` must be a multiple of
    /// [`Self::block_size`].
    pub fn cache_bytes(self, n: usize) -> Option<usize> {
        self.number().map(|number| n * number.size()).or_else(|| Some(self.stored_as()?.row_bytes(n)))
    }

    /// Most that becoming it changes a value by, as a share of the value; `None` where nothing is changed, or where values
    /// share a scale.
    pub fn unit(self) -> Option<f64> {
        let bits = match self {
            Self::F16 | Self::Tf32 => 11,
            Self::Tf32Truncated => 10,
            Self::Bf16 => 8,
            Self::F8E4m3 => 4,
            Self::F8E5m2 => 3,
            Self::F32
            | Self::Q8_0
            | Self::Q8_0Ref
            | Self::Q8_1
            | Self::Q8_1HalfSum
            | Self::Q8K
            | Self::Q8KAway
            | Self::Q8K128
            | Self::Q8_1Mmvq
            | Self::Q8_1MmqD4
            | Self::Q8_1MmqDs4
            | Self::Q5_1
            | Self::Q5_0
            | Self::Q4_1
            | Self::Q4_0
            | Self::Iq4Nl => return None,
        };
        Some(f64::powi(2.0, -bits))
    }

    /// Elements that share a scale (1 where there is none); the length of an activation row must be a multiple of it.
    pub fn block_size(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::F8E4m3 | Self::F8E5m2 | Self::Tf32 | Self::Tf32Truncated => 1,
            Self::Q8_0 | Self::Q8_0Ref | Self::Q8_1 | Self::Q8_1HalfSum => 32,
            Self::Q8_1Mmvq | Self::Q8_1MmqD4 | Self::Q8_1MmqDs4 => 32,
            Self::Q5_1 | Self::Q5_0 | Self::Q4_1 | Self::Q4_0 | Self::Iq4Nl => 32,
            Self::Q8K | Self::Q8KAway | Self::Q8K128 => 256,
        }
    }

    /// Whether the block's scale is stored as f16.
    pub(super) fn half_scale(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q8_0Ref | Self::Q8_1 | Self::Q8_1HalfSum | Self::Q8_1Mmvq | Self::Q8_1MmqDs4)
    }

    /// The quant, in magnitude, of the largest of a block that shares a scale in 8 bits.
    pub(super) fn largest(self) -> f32 {
        if self == Self::Q8K128 { 128.0 } else { 127.0 }
    }

    /// Relative error of the quantiser's own arithmetic that [`super::emulate`] does
    /// not follow: CUDA is compiled with fast division (2 ULP, twice).
    pub(super) fn slack(self) -> f64 {
        match self {
            Self::Q8_1Mmvq | Self::Q8_1MmqD4 | Self::Q8_1MmqDs4 => 8.0 * crate::rounding::UNIT,
            _ => 0.0,
        }
    }
}
