//! How much a runner must have room for.

use qdiff_engine::cuda::Gemm;
use qdiff_engine::quant::KvType;

/// How much a runner must have room for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    /// Tokens of the longest step.
    pub step: usize,
    /// Tokens of the whole run.
    pub context: usize,
    /// Sequences that a step may have rows of, beyond the first.
    pub more: usize,
    /// If llama.cpp keeps a KV cache of its own for each sequence: tokens of the longest sequence.
    pub split: Option<usize>,
    /// Whether tokens are removed from the middle of a sequence.
    pub shifts: bool,
    /// Threads of llama.cpp.
    pub threads: usize,
    /// Linear layers of the CUDA engine.
    pub gemm: Gemm,
    /// Type of the KV cache.
    pub kv: KvType,
}
