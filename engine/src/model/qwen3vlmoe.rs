//! The text of Qwen3-VL with experts: Qwen3-MoE with positions in sections, as [`super::qwen3vl`].

use super::blocks::Sections;
use super::dense::{self, Traits};
use super::experts::Mixture;
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen3vlmoe";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let experts = Some(Mixture { normalised: true, may_be_fused: false, shared: None });
    let sections = Some(Sections::Interleaved);
    let traits = Traits { qkv_bias: false, qk_norm: true, experts, may_be_tied: true, sections };
    dense::graph(ARCH, source, &traits)
}
