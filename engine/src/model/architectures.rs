//! The architectures, and the names of all stages that they declare.

use super::config::{self, ConfigError, Metadata};
use super::graph::Graph;
use super::placement::Placement;
use super::scales::is_scale;
use super::stage::{StageId, UnknownStage, of_rank};
use super::{
    experts, qwen2, qwen2moe, qwen2vl, qwen3, qwen3moe, qwen3next, qwen3vl, qwen3vlmoe, qwen4exp, qwen35, qwen35moe,
};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::LazyLock;

/// Builds the graph of the model that a file's metadata describe.
pub type BuildGraph = fn(&dyn Metadata) -> Result<Graph, ConfigError>;

/// An architecture: its name in `general.architecture`, and the function that builds its graph.
pub type Architecture = (&'static str, BuildGraph);

/// The architectures that qdiff knows. Who knows more gives a list of its own to [`build_of`] and
/// [`Model::of`](super::Model::of).
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
    (qwen4exp::ARCH, qwen4exp::graph),
];

/// Tensors that a layer may have in the place of others that it has usually, which hold the same in parts.
pub const FUSED: &[&str] = &[experts::FUSED, ".attn_qkv.weight", ".attn_qkv.bias"];

/// Layers of a [`skeleton`] among which there are all kinds that an architecture has.
pub const KINDS: usize = 2;

/// The stages that any architecture declares, those of a layer for the first layers that have them.
pub(crate) static STAGES: LazyLock<BTreeSet<StageId>> = LazyLock::new(|| {
    let nodes = ARCHITECTURES.iter().flat_map(|(_, build)| {
        let whole = skeleton(*build, KINDS);
        let parts = in_two(&whole).map(|cut| cut.nodes).unwrap_or_default();
        let scaled = invented(*build, KINDS, true).nodes;
        whole.nodes.into_iter().chain(parts).chain(scaled)
    });
    nodes.map(|node| node.id.whole()).collect()
});

/// The one of `known` for the model that `source` describes.
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

/// Builds the graph of the model that `source` describes.
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
/// If there are more than [`MAX_LAYERS`](super::config::MAX_LAYERS), or the architecture cannot be so small.
pub fn skeleton(build: BuildGraph, n_layers: usize) -> Graph {
    invented(build, n_layers, false)
}

fn invented(build: BuildGraph, n_layers: usize, scaled: bool) -> Graph {
    let integer = |key: &str| match key {
        "block_count" => n_layers,
        // As many value heads of the delta net as there are.
        "ssm.inner_size" => SMALL * SMALL,
        // One head of n-grams, as wide as the stream.
        "ple.heads_per_ngram" => 1,
        _ => SMALL,
    };
    build(&Invented(integer, scaled)).expect("an architecture is there in any size")
}

/// The skeleton of each of [`ARCHITECTURES`], with all kinds of layers.
pub fn skeletons() -> impl Iterator<Item = Graph> {
    ARCHITECTURES.iter().map(|(_, build)| skeleton(*build, KINDS))
}

/// A skeleton cut over two ranks; `None` where it cannot be cut.
pub fn in_two(whole: &Graph) -> Option<Graph> {
    Placement::even(SMALL).settled(whole, |_| 1).and_then(|placement| placement.place(whole)).ok()
}

/// Extent of every axis of a skeleton, and the value of its hyperparameters.
const SMALL: usize = 2;

/// The metadata of a model that is not there: its integers by key, without the architecture's name before them.
/// The second says whether matrices have scales.
pub(crate) struct Invented<F>(pub(crate) F, pub(crate) bool);

impl<F: Fn(&str) -> usize> Metadata for Invented<F> {
    fn integer(&self, key: &str) -> Option<u64> {
        match key.split_once('.')?.1 {
            "nextn_predict_layers" => None,
            suffix => Some(self.0(suffix) as u64),
        }
    }
    fn real(&self, _: &str) -> Option<f64> {
        Some(1.0)
    }
    fn text(&self, _: &str) -> Option<String> {
        None
    }
    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        let suffix = key.split_once('.')?.1;
        match suffix {
            "rope.dimension_sections" => Some(vec![1; 3]),
            "attention.compress_ratios" => Some(vec![SMALL as i64; (self.0)("block_count")]),
            "ple.layers" => Some(vec![0]),
            "ple.layer_multipliers" | "ple.head_offsets" | "ple.head_vocab_sizes" => Some(vec![1; SMALL]),
            _ => None,
        }
    }
    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        let there = !FUSED.iter().any(|fused| tensor.ends_with(fused)) && (self.1 || !is_scale(tensor));
        there.then(|| vec![SMALL as u64; 2])
    }
}

impl FromStr for StageId {
    type Err = UnknownStage;

    /// Reads what [`StageId`] prints. The name must be one that the graph of some architecture declares.
    fn from_str(text: &str) -> Result<Self, UnknownStage> {
        let unknown = || UnknownStage(text.to_owned());
        let (rank, text) = of_rank(text);
        let (layer, name) = match text.strip_prefix('L').and_then(|t| t.split_once('.')) {
            Some((layer, name)) => (Some(layer.parse().map_err(|_| unknown())?), name),
            None => (None, text),
        };
        let known = STAGES.iter().find(|id| id.name == name && id.layer.is_some() == layer.is_some());
        known.map(|id| Self { layer, rank, ..*id }).ok_or_else(unknown)
    }
}

impl<'de> Deserialize<'de> for StageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        for &id in STAGES.iter() {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let deep = StageId::layer(123, "q_rope");
        assert_eq!("L123.q_rope".parse(), Ok(deep));
        let of_rank = StageId { rank: Some(1), ..deep };
        assert_eq!((of_rank.to_string().as_str(), "r1.L123.q_rope".parse()), ("r1.L123.q_rope", Ok(of_rank)));
        for no in ["", "L07", "L07.", "q_rope", "L07.logits", "Lx.q_rope", "L07.q_rope ", "r.logits", "rx.logits"] {
            assert!(no.parse::<StageId>().is_err(), "{no}");
        }
    }
}
