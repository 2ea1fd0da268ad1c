//! The text of Qwen2-VL and Qwen2.5-VL: Qwen2 with positions in sections, which are all one in a text.

use super::blocks::Sections;
use super::config::{EPSILON, unread_by_llama};
use super::dense::{self, Traits};
use super::{ConfigError, Graph, Metadata};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen2vl";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let traits =
        Traits { qkv_bias: true, qk_norm: false, experts: None, may_be_tied: true, sections: Some(Sections::InTurn) };
    let mut graph = dense::graph(ARCH, source, &traits)?;
    // llama.cpp's loader of this architecture reads no epsilon, and computes with 0.
    let departs = || unread_by_llama(&format!("{ARCH}.{EPSILON}"));
    graph.config.llama_departs = (graph.config.rms_eps != 0.0).then(departs);
    Ok(graph)
}
