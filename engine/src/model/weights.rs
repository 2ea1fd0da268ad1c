//! The weights of a model file, checked against its graph.

use super::{ConfigError, Graph};
use crate::gguf::{Gguf, GgufError};
use crate::ops::Weight;
use crate::quant::{self, GgmlType, WeightSource};
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
            let tensor = gguf.tensor(name).ok_or_else(|| {
                LoadError::Tensors(format!(
                    "tensor `{name}` is missing, and a {} model needs it; convert the model again",
                    graph.config.arch
                ))
            })?;
            if !same_extent(&tensor.dims, extent) {
                return Err(LoadError::Tensors(format!(
                    "tensor `{name}` has shape {:?}, and the metadata say {extent:?}; convert the model again",
                    tensor.dims
                )));
            }
            if !tensor.ggml_type.is_supported() {
                let known: Vec<String> = GgmlType::ALL_SUPPORTED.iter().map(ToString::to_string).collect();
                return Err(LoadError::Tensors(format!(
                    "tensor `{name}` is stored as {}, which is not supported; requantise the model to one of {}",
                    tensor.ggml_type,
                    known.join(", ")
                )));
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

    fn info(&self, tensor: &str) -> &crate::gguf::TensorInfo {
        self.gguf.tensor(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"))
    }
}

impl WeightSource for Model {
    fn extent(&self, tensor: &str) -> (usize, usize) {
        let info = self.info(tensor);
        (info.row_len(), info.rows())
    }

    fn ggml_type(&self, tensor: &str) -> GgmlType {
        self.info(tensor).ggml_type
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let info = self.info(tensor);
        let stride = info.ggml_type.row_bytes(info.row_len());
        let count = out.len() / info.row_len();
        let bytes = &self.gguf.data(info)[first * stride..(first + count) * stride];
        quant::dequantize(info.ggml_type, bytes, out);
    }

    fn row_bytes(&self, tensor: &str, row: usize) -> &[u8] {
        let info = self.info(tensor);
        let stride = info.ggml_type.row_bytes(info.row_len());
        &self.gguf.data(info)[row * stride..(row + 1) * stride]
    }
}
