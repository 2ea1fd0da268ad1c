//! What an engine is made for.

use crate::dtype::DType;
use std::str::FromStr;

/// How linear layers are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gemm {
    /// The kernels of this project, on the blocks as they are.
    #[default]
    Own,
    /// cuBLAS, in f32, on weights dequantised for each product.
    Cublas,
}

impl FromStr for Gemm {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "own" => Ok(Self::Own),
            "cublas" => Ok(Self::Cublas),
            _ => Err("expected own or cublas".to_owned()),
        }
    }
}

/// Which kernels a forward pass goes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// A kernel per stage, each stage materialised.
    #[default]
    Tapped,
    /// Fused kernels; decode steps are one graph launch.
    Fast,
}

/// What an engine is made for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Tokens of the longest step.
    pub step: usize,
    /// Tokens of the longest context.
    pub context: usize,
    /// Sequences whose rows a step may have, beyond the first; of the tapped path.
    pub more_sequences: usize,
    /// The kernels.
    pub path: Path,
    /// Linear layers; of the fast path, those of steps of more than one token.
    pub gemm: Gemm,
    /// What the KV cache holds: f32 or f16.
    pub kv: DType,
    /// Whether stages may be tapped: the fast path keeps room for attention scores and weights, and for the taps of a
    /// decode step, only then.
    pub taps: bool,
    /// Whether taps stay on the device: copied aside, and not brought to the
    /// host. What the copies themselves cost is measured so.
    pub keep_taps: bool,
    /// Whether only the last token's logits are made, as generation needs them.
    pub last_logits: bool,
}

impl Options {
    /// What `kv.cuh` calls the elements of the KV cache.
    pub(super) fn kv_kernel(&self) -> &'static str {
        if self.kv == DType::F16 { "KvF16" } else { "KvF32" }
    }
}

/// What must change no bit of a run, and shows a race if it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Another stream fills memory during each step.
    pub load: bool,
    /// The fast path launches each kernel after the one before has ended: a decode step in place of the captured graph,
    /// in which they overlap, and a longer step too.
    pub apart: bool,
}
