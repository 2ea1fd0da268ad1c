//! Models without a file, whose launches can be made without a device.

use crate::model::{Graph, Invented, WeightSource, qwen2, qwen3};
use crate::ops::Weight;
use crate::quant::GgmlType;

/// Small models of both architectures.
pub fn graphs() -> [Graph; 2] {
    let metadata = Invented(|key: &str| match key {
        "block_count" | "attention.head_count_kv" => 2,
        "attention.head_count" => 4,
        "attention.key_length" => 32,
        "feed_forward_length" => 96,
        _ => 64,
    });
    [qwen2::graph(&metadata), qwen3::graph(&metadata)].map(|graph| graph.expect("a small model is one"))
}

/// The extents of a graph's weights, all of one format, and no bytes.
pub struct Extents(Vec<Weight>);

impl Extents {
    /// Of this graph's weights.
    pub fn of(graph: &Graph) -> Self {
        Self(graph.weights().into_iter().cloned().collect())
    }
}

impl WeightSource for Extents {
    fn extent(&self, tensor: &str) -> (usize, usize) {
        let weight = self.0.iter().find(|w| w.name == tensor).expect("a tensor of the graph");
        (weight.extent[0], weight.extent[1..].iter().product())
    }
    fn ggml_type(&self, _: &str) -> GgmlType {
        GgmlType::Q8_0
    }
    fn rows(&self, _: &str, _: usize, _: &mut [f32]) {
        unreachable!("no launch reads a weight on the host")
    }
    fn row_bytes(&self, _: &str, _: usize) -> &[u8] {
        unreachable!("no launch reads a weight on the host")
    }
}
