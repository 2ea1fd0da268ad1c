//! Qwen2 and Qwen2.5: biases on q, k and v.

use super::dense::{self, Traits};
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen2";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let traits = Traits { qkv_bias: true, qk_norm: false, experts: None, may_be_tied: true, sections: None };
    dense::graph(ARCH, source, &traits)
}
