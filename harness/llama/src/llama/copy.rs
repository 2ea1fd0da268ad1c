//! A copy of a model whose matrices are stored otherwise, by ggml's own quantisers.

use super::gguf::GgmlWeights;
use super::library::library;
use anyhow::Result;
use qdiff_engine::quant::GgmlType;
use std::path::Path;

/// Writes a copy of a model with every matrix as `ty` and every vector as F32: one file of the same metadata and the
/// values of `weights`. Matrices whose rows are not whole blocks of `ty` stay as they are; gives how many. Tensors of a
/// format that `weights` does not know are left out.
///
/// Quantisers that require an importance matrix get one in which all columns weigh the same.
///
/// # Errors
/// If ggml refuses the model, or the copy cannot be written.
pub fn write_copy(weights: &GgmlWeights<'_>, ty: GgmlType, target: &Path) -> Result<usize> {
    library()?.write_copy(weights, (weights.first_file(), weights.index()), ty, target)
}
