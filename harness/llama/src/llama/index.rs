//! Where ggml says that tensors lie, and the metadata that it reads.

use qdiff_engine::quant::GgmlType;
use std::collections::HashMap;

/// A tensor, as ggml says where it lies.
pub struct Entry {
    /// Extent in ggml order, trailing ones dropped.
    pub dims: Vec<u64>,
    /// Its format.
    pub ty: GgmlType,
    /// Number of its file.
    pub part: usize,
    /// First byte in that file.
    pub start: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
}

/// What ggml reads of a model's files besides the weights.
#[derive(Default)]
pub struct Index {
    /// Tensors by name.
    pub entries: HashMap<String, Entry>,
    /// Real metadata values by key.
    pub reals: HashMap<String, f32>,
    /// Metadata values that are lists of integers, by key.
    pub integers: HashMap<String, Vec<i64>>,
}

impl Index {
    /// Extent of a tensor in ggml order, trailing ones dropped.
    pub fn dims(&self, tensor: &str) -> Option<&[u64]> {
        self.entries.get(tensor).map(|e| e.dims.as_slice())
    }

    /// All tensors, in the order of files and within each.
    pub fn names(&self) -> Vec<&str> {
        let mut all: Vec<_> = self.entries.iter().collect();
        all.sort_by_key(|(name, e)| (e.part, e.start, name.as_str()));
        all.into_iter().map(|(name, _)| name.as_str()).collect()
    }
}
