//! Qwen3-MoE: Qwen3 with experts in every layer.

use super::dense::{self, Traits};
use super::experts::Mixture;
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen3moe";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let experts = Some(Mixture { normalised: true, may_be_fused: false, shared: None });
    let traits = Traits { qkv_bias: false, qk_norm: true, experts, may_be_tied: true, sections: None };
    dense::graph(ARCH, source, &traits)
}
