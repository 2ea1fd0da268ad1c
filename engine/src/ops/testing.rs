//! A weight source for the ops' tests: one matrix in f32.

use crate::model::WeightSource;
use crate::quant::GgmlType;

/// n, m, and m rows of n weights.
pub(crate) struct Matrix(pub(crate) usize, pub(crate) usize, pub(crate) Vec<f32>);

impl WeightSource for Matrix {
    fn extent(&self, _: &str) -> (usize, usize) {
        (self.0, self.1)
    }
    fn ggml_type(&self, _: &str) -> GgmlType {
        GgmlType::ALL_SUPPORTED[0]
    }
    fn rows(&self, _: &str, first: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.2[first * self.0..first * self.0 + out.len()]);
    }
    fn row_bytes(&self, _: &str, row: usize) -> &[u8] {
        bytemuck::cast_slice(&self.2[row * self.0..(row + 1) * self.0])
    }
}
