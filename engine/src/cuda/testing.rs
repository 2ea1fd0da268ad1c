//! Models without a file, whose launches can be made without a device.

use crate::model::{Graph, Metadata, WeightSource, qwen2, qwen3};
use crate::ops::Weight;
use crate::quant::GgmlType;

/// Small models of both architectures.
pub fn graphs() -> [Graph; 2] {
    [qwen2::graph(&Small), qwen3::graph(&Small)].map(|graph| graph.expect("a small model is one"))
}

/// The metadata of a small model, whatever its architecture.
struct Small;

impl Metadata for Small {
    fn integer(&self, key: &str) -> Option<u64> {
        let (_, key) = key.split_once('.')?;
        Some(match key {
            "block_count" | "attention.head_count_kv" => 2,
            "attention.head_count" => 4,
            "attention.key_length" => 32,
            "feed_forward_length" => 96,
            _ => 64,
        })
    }
    fn real(&self, key: &str) -> Option<f64> {
        Some(if key.ends_with("freq_base") { 1e6 } else { 1e-6 })
    }
    fn text(&self, _: &str) -> Option<String> {
        None
    }
    fn extent(&self, _: &str) -> Option<Vec<u64>> {
        Some(vec![64, 100])
    }
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
