//! The third opinion: every op in f64, on weights and hyperparameters that the engine's reader never touched.

use crate::llama::Model;
use crate::llama::gguf::GgmlWeights;
use crate::products::Products;
use anyhow::{Context as _, Result, bail};
use qdiff_engine::model::{self, Graph, Metadata, Weight, same_extent};

/// The graph as llama.cpp's metadata describe it, with ggml's weights.
pub struct Oracle<'a> {
    /// Stages, built from llama.cpp's metadata calls.
    pub graph: Graph,
    /// Weights, by ggml's `to_float`.
    pub weights: GgmlWeights<'a>,
    /// What evaluates products with them.
    pub products: Products,
}

struct Described<'a> {
    model: &'a Model,
    weights: &'a GgmlWeights<'a>,
}

impl Metadata for Described<'_> {
    fn integer(&self, key: &str) -> Option<u64> {
        self.model.metadata(key)?.parse().ok()
    }
    fn real(&self, key: &str) -> Option<f64> {
        self.weights.real(key).map(f64::from)
    }
    fn text(&self, key: &str) -> Option<String> {
        self.model.metadata(key)
    }
    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        self.weights.dims(tensor).map(<[u64]>::to_vec)
    }
}

impl<'a> Oracle<'a> {
    /// On the weights of these files; `model` is llama.cpp's of them.
    ///
    /// # Errors
    /// If their metadata describe no known graph.
    pub fn new(weights: GgmlWeights<'a>, model: &Model) -> Result<Self> {
        let described = Described { model, weights: &weights };
        let graph = model::build(&described).context("llama.cpp's view of the metadata")?;
        for Weight { name, extent } in graph.weights() {
            let found = weights.dims(name);
            if !found.is_some_and(|dims| same_extent(dims, extent)) {
                bail!("tensor `{name}`: ggml reads shape {found:?}, its metadata say {extent:?}");
            }
        }
        Ok(Self { graph, weights, products: Products::default() })
    }
}
