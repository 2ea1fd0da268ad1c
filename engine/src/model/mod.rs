//! The model as data: hyperparameters, weights and the list of stages.

mod builder;
mod config;
mod dense;
pub mod fault;
mod graph;
pub mod qwen2;
pub mod qwen3;
mod stage;
mod weights;

pub use config::{Config, ConfigError, Metadata};
pub use graph::{Axis, Before, Emission, EmittedLayout, Graph, Node, row_len};
pub use stage::{StageId, UnknownStage};
pub use weights::{LoadError, Model};

pub use crate::quant::WeightSource;

/// Builds a graph from hyperparameters.
pub type BuildGraph = fn(&Config) -> Graph;

/// Architectures that have a graph, with the function that builds it.
pub const ARCHITECTURES: &[(&str, BuildGraph)] = &[(qwen2::ARCH, qwen2::graph), (qwen3::ARCH, qwen3::graph)];

/// The stages that any architecture declares, those of a layer for layer 0.
pub(crate) fn stages() -> &'static [StageId] {
    static STAGES: std::sync::LazyLock<Vec<StageId>> = std::sync::LazyLock::new(|| {
        let mut all = Vec::new();
        for (arch, graph) in ARCHITECTURES {
            for node in graph(&Config::smallest(arch)).nodes {
                if !all.contains(&node.id) {
                    all.push(node.id);
                }
            }
        }
        all
    });
    &STAGES
}

/// Builds the graph of whatever model `source` describes.
///
/// # Errors
/// An architecture without a graph, or hyperparameters that are missing or
/// impossible.
pub fn build(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let found =
        source.text("general.architecture").ok_or_else(|| ConfigError::Missing("general.architecture".into()))?;
    let (arch, graph) =
        ARCHITECTURES.iter().find(|(arch, _)| *arch == found).ok_or_else(|| ConfigError::Architecture {
            found: found.clone(),
            known: ARCHITECTURES.iter().map(|(a, _)| *a).collect::<Vec<_>>().join(", "),
        })?;
    Ok(graph(&Config::read(arch, source)?))
}

/// The graph of an architecture of which nothing is known but the number of
/// layers: its stages in order, with extents of 1 where a model has its own.
pub fn skeleton(build: BuildGraph, n_layers: usize) -> Graph {
    build(&Config {
        arch: String::new(),
        name: String::new(),
        n_layers,
        n_embd: 1,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 1,
        n_ff: 1,
        n_vocab: 1,
        context: usize::MAX,
        rope_base: 1.0,
        rms_eps: 1.0,
        tied_head: false,
    })
}
