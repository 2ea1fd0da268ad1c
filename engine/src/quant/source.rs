//! Where weights come from, whoever dequantises them.

use super::GgmlType;

/// Anything that can hand out rows of weights as f32.
///
/// The engine implements it with its own dequantisation, the oracle of the harness with ggml's. A "row" is the
/// contiguous axis of the GGUF tensor: for a linear layer, the weights of one output.
pub trait WeightSource: Sync {
    /// Length of a row and number of rows.
    ///
    /// # Panics
    /// If the tensor does not exist: graphs are checked against their source before anything runs.
    fn extent(&self, tensor: &str) -> (usize, usize);

    /// Format the tensor is stored in.
    fn ggml_type(&self, tensor: &str) -> GgmlType;

    /// Writes rows `first..first + out.len() / row_len` to `out`.
    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]);

    /// The stored bytes of one row, for arithmetic that depends on them.
    fn row_bytes(&self, tensor: &str, row: usize) -> &[u8];
}
