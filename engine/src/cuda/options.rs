//! What an engine is made for.

use crate::dtype::DType;
use crate::model::{Node, row_len};
use crate::quant::KvType;
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
    /// Sequences whose rows a step may have, beyond the first.
    pub more_sequences: usize,
    /// Adapters among which sequences choose, number 0 for none; 0 where all have the same.
    pub adapters: usize,
    /// The kernels.
    pub path: Path,
    /// Linear layers; of the fast path, those of steps of more than one token.
    pub gemm: Gemm,
    /// What the KV cache holds; for the fast path f32 or f16.
    pub kv: KvType,
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
    /// What `kv.cuh` and `kv_types.cuh` call the elements of the cache of values, or of that of keys.
    pub(super) fn kv_kernel(&self, values: bool) -> String {
        format!("Kv{:?}", self.kv.of(values))
    }

    /// What both caches of the fast path hold.
    pub(super) fn kv_number(&self) -> DType {
        self.kv.number().unwrap_or_default()
    }

    /// Bytes of a row of the cache that `node` is.
    ///
    /// # Panics
    /// If caches are not held so: `calls::check` refuses that.
    pub(super) fn row_bytes(&self, node: &Node) -> usize {
        self.kv.of(node.is_of_values()).cache_bytes(row_len(node)).expect("a format of caches")
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
