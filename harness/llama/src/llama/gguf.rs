//! A GGUF file as ggml itself reads it: the oracle's weights.

use super::index::Entry;
use super::library::{LIBRARY, library};
use anyhow::{Context as _, Result};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::WeightSource;
use qdiff_engine::quant::{GgmlType, Stored, dequantize};
use std::path::Path;
use std::sync::Arc;

pub use super::index::Index;

/// Tensor index and values by ggml: `gguf_*` for the index, `to_float` for
/// the values. Shares nothing with the engine's reader but the mapped bytes, and which files a model in several has.
pub struct GgmlWeights<'a> {
    /// Each file, and what is mapped of it.
    parts: Vec<(&'a Path, &'a [u8])>,
    index: Arc<Index>,
}

/// What ggml reads of every file of `model`.
///
/// # Errors
/// As [`GgmlWeights::open`].
pub fn read(model: &Gguf) -> Result<Index> {
    let library = library()?;
    let mut index = Index::default();
    for (number, part) in model.parts().iter().enumerate() {
        library.index(&mut index, number, part.path.as_deref().context("ggml reads files alone")?)?;
    }
    Ok(index)
}

impl<'a> GgmlWeights<'a> {
    /// Reads the index of every file of `model`.
    ///
    /// # Errors
    /// If the model was read from memory, or ggml refuses a file.
    pub fn open(model: &'a Gguf) -> Result<Self> {
        Ok(Self::new(model, Arc::new(read(model)?)))
    }

    /// The weights of `model`, whose index was read.
    pub fn new(model: &'a Gguf, index: Arc<Index>) -> Self {
        let parts = model.parts().iter().filter_map(|part| Some((part.path.as_deref()?, part.bytes()))).collect();
        Self { parts, index }
    }

    /// Where its tensors lie.
    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// The model's first file, which has its metadata.
    ///
    /// # Panics
    /// If the model was read from memory.
    pub(super) fn first_file(&self) -> &Path {
        self.parts[0].0
    }

    /// Extent in ggml order, trailing ones dropped.
    pub fn dims(&self, tensor: &str) -> Option<&[u64]> {
        self.index.dims(tensor)
    }

    /// First byte of a tensor in its file.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn start(&self, tensor: &str) -> u64 {
        self.entry(tensor).start as u64
    }

    /// All tensors, in the order of files and within each.
    pub fn names(&self) -> Vec<&str> {
        self.index.names()
    }

    /// A real metadata value to its last digit; llama.cpp itself prints six decimals, too few for an epsilon.
    pub fn real(&self, key: &str) -> Option<f32> {
        self.index.reals.get(key).copied()
    }

    /// A metadata value that is a list of integers, which llama.cpp does not give.
    pub fn integers(&self, key: &str) -> Option<&[i64]> {
        self.index.integers.get(key).map(Vec::as_slice)
    }

    fn entry(&self, tensor: &str) -> &Entry {
        self.index.entries.get(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"))
    }
}

impl WeightSource for GgmlWeights<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let &Entry { ty, ref dims, part, start, row_bytes } = self.entry(tensor);
        let rows = dims[1..].iter().product::<u64>() as usize;
        Stored { ty, extent: (dims[0] as usize, rows), bytes: &self.parts[part].1[start..start + rows * row_bytes] }
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let entry = self.entry(tensor);
        let count = out.len() / entry.dims[0] as usize;
        let bytes = &self.parts[entry.part].1[entry.start + first * entry.row_bytes..][..count * entry.row_bytes];
        to_float(entry.ty.id() as _, bytes, out);
    }
}

/// ggml's own dequantisation of whole blocks; without ggml the engine's reader, bit for bit the same.
///
/// # Panics
/// If there is no conversion for the type.
pub fn to_float(ty: u32, bytes: &[u8], out: &mut [f32]) {
    if let Some(library) = LIBRARY.get() {
        return library.to_float(ty, bytes, out);
    }
    let ty = GgmlType::from_id(ty).expect("a type of the model");
    dequantize(ty, &bytes[..ty.row_bytes(out.len())], out);
}
