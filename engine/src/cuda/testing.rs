//! Models without a file, whose launches can be made without a device.

use crate::model::{Config, Graph, WeightSource, qwen2, qwen3};
use crate::quant::GgmlType;

/// Small models of both architectures.
pub fn graphs() -> [Graph; 2] {
    let config = |arch: &str| Config {
        arch: arch.to_owned(),
        name: String::new(),
        n_layers: 2,
        n_embd: 64,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 32,
        n_ff: 96,
        n_vocab: 100,
        context: 64,
        rope_base: 1e6,
        rms_eps: 1e-6,
        tied_head: true,
    };
    [qwen2::graph(&config("qwen2")), qwen3::graph(&config("qwen3"))]
}

/// The extents of a graph's weights, all of one format, and no bytes.
pub struct Extents(Vec<(String, Vec<u64>)>);

impl Extents {
    /// Of this graph's weights.
    pub fn of(graph: &Graph) -> Self {
        Self(graph.weights())
    }
}

impl WeightSource for Extents {
    fn extent(&self, tensor: &str) -> (usize, usize) {
        let (_, extent) = self.0.iter().find(|(name, _)| name == tensor).expect("a tensor of the graph");
        (extent[0] as usize, extent.get(1).map_or(1, |&m| m as usize))
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
