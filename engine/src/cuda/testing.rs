//! Models without a file, whose launches can be made without a device.

use super::calls::{Calls, Part};
use super::functions::Functions;
use super::layouts::Batch;
use super::memory::Memory;
use super::options::Options;
use super::several::Several;
use crate::model::{Graph, Invented, WeightSource, qwen2, qwen3, qwen3moe, qwen35};
use crate::ops::Weight;
use crate::quant::{GgmlType, Stored};

/// Small models of each architecture that the fused kernels are for.
pub fn graphs() -> [Graph; 3] {
    let metadata = Invented(
        |key: &str| match key {
            "block_count" | "attention.head_count_kv" => 2,
            "attention.head_count" => 4,
            "attention.key_length" | "attention.value_length" | "rope.dimension_count" => 32,
            "feed_forward_length" => 480,
            "expert_count" => 7,
            "expert_used_count" => 3,
            "expert_feed_forward_length" => 96,
            _ => 64,
        },
        false,
    );
    [qwen2::graph, qwen3::graph, qwen3moe::graph]
        .map(|graph| graph(&metadata))
        .map(|graph| graph.expect("a small model is one"))
}

/// One with a layer of a gated delta net and one of gated attention.
pub fn mixed() -> Graph {
    let metadata = Invented(
        |key: &str| match key {
            "block_count" | "full_attention_interval" | "attention.head_count_kv" | "ssm.group_count" => 2,
            "attention.head_count" | "ssm.time_step_rank" | "ssm.conv_kernel" => 4,
            "attention.key_length" | "attention.value_length" | "ssm.state_size" => 32,
            "rope.dimension_count" => 16,
            "ssm.inner_size" => 128,
            "feed_forward_length" => 480,
            _ => 64,
        },
        false,
    );
    qwen35::graph(&metadata).expect("a small model is one")
}

/// Gives `f` what makes the launches of single nodes, on a card that is not there.
pub fn with_calls<T>(graph: &Graph, options: &Options, f: impl FnOnce(Calls<'_>) -> T) -> T {
    with_calls_where(graph, options, false, f)
}

/// As [`with_calls`], with the layers' matrices kept as halves if they are to be `wide`.
pub fn with_calls_where<T>(graph: &Graph, options: &Options, wide: bool, f: impl FnOnce(Calls<'_>) -> T) -> T {
    let extents = Extents(graph.weights().into_iter().cloned().collect(), FORMAT);
    let memory = Memory::at(1 << 20, graph, &extents, options, wide).expect("a layout");
    let functions = Functions::bare(100, 2048, 227 << 10);
    f(Calls {
        graph,
        memory: &memory,
        options,
        functions: &functions,
        batch: Batch::default(),
        several: &Several::default(),
        part: Part::default(),
    })
}

/// Bytes that a model takes whose weights are all of a format.
pub fn bytes_of(graph: &Graph, options: &Options, format: GgmlType) -> usize {
    let extents = Extents(graph.weights().into_iter().cloned().collect(), format);
    Memory::at(0, graph, &extents, options, false).expect("a layout").bytes
}

/// The format of the weights of these models.
pub const FORMAT: GgmlType = GgmlType::Q8_0;

/// The extents of a graph's weights, all of one format, and no bytes.
struct Extents(Vec<Weight>, GgmlType);

impl WeightSource for Extents {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let weight = self.0.iter().find(|w| w.name == tensor).expect("a tensor of the graph");
        let extent = (weight.extent[0], weight.extent[1..].iter().product());
        Stored { ty: self.1, extent, bytes: &[] }
    }
}
