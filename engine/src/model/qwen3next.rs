//! Qwen3-Next: gated attention and gated delta nets, with experts in every layer.

use super::experts::{Mixture, SHARED_OF_HYBRIDS};
use super::hybrid::{self, Traits};
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen3next";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let experts = Some(Mixture { normalised: true, may_be_fused: true, shared: Some(SHARED_OF_HYBRIDS) });
    hybrid::graph(ARCH, source, &Traits { experts, next: true, embedding: "model.embed_tokens", ..Traits::QWEN35 })
}
