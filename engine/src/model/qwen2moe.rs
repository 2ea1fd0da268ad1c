//! Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, whose weights are not divided by their sum, and a shared one.

use super::dense::{self, Traits};
use super::experts::{Mixture, SHARED_OF_QWEN2};
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen2moe";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let experts = Some(Mixture { normalised: false, may_be_fused: false, shared: Some(SHARED_OF_QWEN2) });
    let traits = Traits { qkv_bias: true, qk_norm: false, experts, may_be_tied: false, sections: None };
    dense::graph(ARCH, source, &traits)
}
