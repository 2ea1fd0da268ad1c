//! Qwen3 (dense): RMSNorm over each head of q and k, no biases.

use super::dense::{self, Traits};
use super::{Config, Graph};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen3";

/// The graph of a model with these hyperparameters.
pub fn graph(config: &Config) -> Graph {
    dense::graph(config, &Traits { qkv_bias: false, qk_norm: true })
}
