//! Qwen3.5, 3.6 and 3.8 (dense): gated attention and gated delta nets.

use super::hybrid::{self, Traits};
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen35";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    hybrid::graph(ARCH, source, &Traits::QWEN35)
}
