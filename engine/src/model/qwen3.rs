//! Qwen3 (dense): RMSNorm over each head of q and k, no biases.

use super::dense::{self, Traits};
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen3";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let traits = Traits { qkv_bias: false, qk_norm: true, experts: None, may_be_tied: true, sections: None };
    dense::graph(ARCH, source, &traits)
}
