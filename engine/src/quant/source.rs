//! Where weights come from, whoever dequantises them.

use super::GgmlType;
use std::ops::Range;

/// A tensor as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Format of its weights.
    pub ty: GgmlType,
    /// Length of a row, and number of rows.
    pub extent: (usize, usize),
    /// Its rows, one after the other.
    pub bytes: &'a [u8],
}

/// Anything that can hand out rows of weights as f32.
///
/// The engine implements it with its own dequantisation, the oracle of the harness with ggml's. A "row" is the
/// contiguous axis of the GGUF tensor: for a linear layer, the weights of one output.
pub trait WeightSource: Sync {
    /// The tensor as it is stored.
    ///
    /// # Panics
    /// If the tensor does not exist: graphs are checked against their source before anything runs.
    fn stored(&self, tensor: &str) -> Stored<'_>;

    /// Writes rows `first..first + out.len() / row_len` to `out`.
    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let Stored { ty, extent: (n, _), bytes } = self.stored(tensor);
        let start = first * ty.row_bytes(n);
        super::dequantize(ty, &bytes[start..start + ty.row_bytes(out.len())], out);
    }

    /// Length of a row and number of rows.
    fn extent(&self, tensor: &str) -> (usize, usize) {
        self.stored(tensor).extent
    }

    /// Format the tensor is stored in.
    fn ggml_type(&self, tensor: &str) -> GgmlType {
        self.stored(tensor).ty
    }

    /// The stored bytes of one row, for arithmetic that depends on them.
    fn row_bytes(&self, tensor: &str, row: usize) -> &[u8] {
        let Stored { ty, extent: (n, _), bytes } = self.stored(tensor);
        &bytes[row * ty.row_bytes(n)..][..ty.row_bytes(n)]
    }
}

impl<S: WeightSource + ?Sized> WeightSource for &S {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        (**self).stored(tensor)
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        (**self).rows(tensor, first, out);
    }

    fn extent(&self, tensor: &str) -> (usize, usize) {
        (**self).extent(tensor)
    }
}

/// Some rows of every tensor, as if there were no others.
pub struct SomeRows<'a> {
    /// All of them.
    pub source: &'a dyn WeightSource,
    /// Which.
    pub rows: Range<usize>,
}

impl WeightSource for SomeRows<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let Stored { ty, extent: (n, _), bytes } = self.source.stored(tensor);
        let of = |rows: usize| rows * ty.row_bytes(n);
        Stored { ty, extent: (n, self.rows.len()), bytes: &bytes[of(self.rows.start)..of(self.rows.end)] }
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        self.source.rows(tensor, self.rows.start + first, out);
    }
}
