//! Qwen3.5 and later with experts: gated attention and gated delta nets.

use super::experts::{Mixture, SHARED_OF_HYBRIDS};
use super::hybrid::{self, Traits};
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen35moe";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let experts = Some(Mixture { normalised: true, may_be_fused: true, shared: Some(SHARED_OF_HYBRIDS) });
    hybrid::graph(ARCH, source, &Traits { experts, ..Traits::QWEN35 })
}
