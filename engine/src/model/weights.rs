//! The weights of a model file, checked against its graph.

use super::{ConfigError, Graph};
use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::ops::Weight;
use crate::quant::{GgmlType, Stored, WeightSource};
use std::path::Path;
use thiserror::Error;

/// Why a model cannot be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file cannot be read as GGUF.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file describes no model that can be run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Tensors do not fit the graph.
    #[error("{0}")]
    Tensors(String),
}

/// Whether a tensor of `found` has the extent that a graph declares. GGUF leaves
/// out trailing axes of length 1, or keeps them.
pub fn same_extent(found: &[u64], declared: &[usize]) -> bool {
    let axes = found.len().max(declared.len());
    (0..axes).all(|i| found.get(i).map_or(1, |&n| n as usize) == declared.get(i).copied().unwrap_or(1))
}

/// A GGUF file with its graph: all an engine needs to run.
pub struct Model {
    gguf: Gguf,
    graph: Graph,
}

impl Model {
    /// Opens `path`, builds its graph and checks every tensor against it.
    ///
    /// # Errors
    /// Whatever keeps the model from being run, named with its remedy.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Self::new(Gguf::open(path)?)
    }

    /// As [`Self::open`], for a file that is already open.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn new(gguf: Gguf) -> Result<Self, LoadError> {
        let graph = super::build(&gguf)?;
        for Weight { name, extent } in graph.weights() {
            let refuse = |what: String| Err(LoadError::Tensors(format!("tensor `{name}` {what}")));
            let Some(TensorInfo { dims, ggml_type, .. }) = gguf.tensor(name) else {
                let arch = &graph.config.arch;
                return refuse(format!("is missing, and a {arch} model needs it; convert the model again"));
            };
            if !same_extent(dims, extent) {
                return refuse(format!("has shape {dims:?}, and the metadata say {extent:?}; convert the model again"));
            }
            if !ggml_type.is_supported() {
                let known: Vec<String> = GgmlType::ALL_SUPPORTED.iter().map(ToString::to_string).collect();
                let known = known.join(", ");
                return refuse(format!(
                    "is stored as {ggml_type}, which is not supported; requantise the model to one of {known}"
                ));
            }
        }
        Ok(Self { gguf, graph })
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The stages.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
}

impl WeightSource for Model {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let info = self.gguf.tensor(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"));
        Stored { ty: info.ggml_type, extent: (info.row_len(), info.rows()), bytes: self.gguf.data(info) }
    }
}
