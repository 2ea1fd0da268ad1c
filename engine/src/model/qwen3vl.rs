//! The text of Qwen3-VL: Qwen3 with positions in sections, which are all one in a text.

use super::blocks::Sections;
use super::dense::{self, Traits};
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen3vl";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let sections = Some(Sections::Interleaved);
    let traits = Traits { qkv_bias: false, qk_norm: true, experts: None, may_be_tied: true, sections };
    dense::graph(ARCH, source, &traits)
}
