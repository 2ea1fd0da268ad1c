//! Qwen2 and Qwen2.5: biases on q, k and v.

use super::dense::{self, Traits};
use super::{Config, Graph};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen2";

/// The graph of a model with these hyperparameters.
pub fn graph(config: &Config) -> Graph {
    dense::graph(config, &Traits { qkv_bias: true, qk_norm: false })
}
