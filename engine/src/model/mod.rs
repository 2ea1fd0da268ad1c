//! The model as data: hyperparameters, weights and the list of stages.

mod builder;
mod check;
mod config;
mod dense;
mod described;
mod dialect;
mod experts;
pub mod fault;
mod graph;
mod hybrid;
mod placement;
pub mod qwen2;
pub mod qwen2moe;
pub mod qwen2vl;
pub mod qwen3;
pub mod qwen35;
pub mod qwen35moe;
pub mod qwen3moe;
pub mod qwen3next;
pub mod qwen3vl;
pub mod qwen3vlmoe;
mod slices;
mod stage;
mod weights;

pub use builder::{Builder, NodeBuilder};
pub(crate) use config::EMBEDDING;
pub use config::{Config, ConfigError, MAX_LAYERS, Metadata};
pub(crate) use dense::HEAD;
pub use described::{described, symbolic};
pub use dialect::{Columns, DIALECTS, Dialect, Place, Site, of_transformers};
pub use graph::{Axis, Before, Emission, EmittedLayout, Graph, Node, Role, row_len};
pub use placement::{Placement, PlacementError, Shares};
pub use slices::{Slice, Slices};
pub use stage::{StageId, UnknownStage, of_rank};
pub use weights::{LoadError, Model, same_extent};

pub use crate::ops::Weight;
pub use crate::quant::WeightSource;

use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Builds the graph of the model that a file's metadata describe.
pub type BuildGraph = fn(&dyn Metadata) -> Result<Graph, ConfigError>;

/// An architecture: its name in `general.architecture`, and the function that builds its graph.
pub type Architecture = (&'static str, BuildGraph);

/// The architectures that qdiff knows. Who knows more gives a list of its own to [`build_of`] and [`Model::of`].
pub const ARCHITECTURES: &[Architecture] = &[
    (qwen2::ARCH, qwen2::graph),
    (qwen3::ARCH, qwen3::graph),
    (qwen2moe::ARCH, qwen2moe::graph),
    (qwen3moe::ARCH, qwen3moe::graph),
    (qwen2vl::ARCH, qwen2vl::graph),
    (qwen3vl::ARCH, qwen3vl::graph),
    (qwen3vlmoe::ARCH, qwen3vlmoe::graph),
    (qwen3next::ARCH, qwen3next::graph),
    (qwen35::ARCH, qwen35::graph),
    (qwen35moe::ARCH, qwen35moe::graph),
];

/// Tensors that a layer may have in the place of others that it has usually, which hold the same in parts.
pub const FUSED: &[&str] = &[experts::FUSED];

/// Layers of a [`skeleton`] among which there are all kinds that an architecture has.
pub const KINDS: usize = 2;

/// The stages that any architecture declares, those of a layer for the first layers that have them.
pub(crate) static STAGES: LazyLock<BTreeSet<StageId>> = LazyLock::new(|| {
    let nodes = ARCHITECTURES.iter().flat_map(|(_, build)| {
        let whole = skeleton(*build, KINDS);
        let cut = Placement::even(SMALL).settled(&whole, |_| 1).and_then(|placement| placement.place(&whole));
        // Some cannot be cut over ranks.
        let parts = cut.map(|cut| cut.nodes).unwrap_or_default();
        whole.nodes.into_iter().chain(parts)
    });
    nodes.map(|node| node.id.whole()).collect()
});

/// The one of `known` of whatever model `source` describes.
fn architecture(source: &dyn Metadata, known: &[Architecture]) -> Result<Architecture, ConfigError> {
    const KEY: &str = "general.architecture";
    let found = source.text(KEY).ok_or_else(|| config::absent(source, KEY, "UTF-8 text"))?;
    known.iter().find(|(arch, _)| *arch == found).copied().ok_or_else(|| {
        let known = known.iter().map(|(arch, _)| *arch).collect::<Vec<_>>().join(", ");
        ConfigError::Invalid(format!(
            "architecture `{found}` is not supported; qdiff knows {known}. Use a model of one of these"
        ))
    })
}

/// Builds the graph of whatever model `source` describes.
///
/// # Errors
/// An architecture without a graph, or hyperparameters that are missing or impossible.
pub fn build(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    build_of(ARCHITECTURES, source)
}

/// As [`build`], of the architectures `known`.
///
/// # Errors
/// As [`build`].
pub fn build_of(known: &[Architecture], source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let (_, graph) = architecture(source, known)?;
    graph(source)
}

/// The graph of an architecture of which nothing is known but the number of
/// layers: its stages in order, and extents that say nothing.
///
/// # Panics
/// If there are more than [`MAX_LAYERS`], or the architecture cannot be so small.
pub fn skeleton(build: BuildGraph, n_layers: usize) -> Graph {
    let integer = |key: &str| match key {
        "block_count" => n_layers,
        // As many value heads of the delta net as there are.
        "ssm.inner_size" => SMALL * SMALL,
        _ => SMALL,
    };
    build(&Invented(integer)).expect("an architecture is there in any size")
}

/// Extent of every axis of a skeleton, and the value of its hyperparameters.
const SMALL: usize = 2;

/// The metadata of a model that is not there: its integers by key, without the architecture's name before them.
pub(crate) struct Invented<F>(pub(crate) F);

impl<F: Fn(&str) -> usize> Metadata for Invented<F> {
    fn integer(&self, key: &str) -> Option<u64> {
        Some(self.0(key.split_once('.')?.1) as u64)
    }
    fn real(&self, _: &str) -> Option<f64> {
        Some(1.0)
    }
    fn text(&self, _: &str) -> Option<String> {
        None
    }
    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        key.ends_with("dimension_sections").then(|| vec![1; 3])
    }
    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        (!FUSED.iter().any(|fused| tensor.ends_with(fused))).then(|| vec![SMALL as u64; 2])
    }
}
