//! `y = a + b`, element by element: the residual stream.

use super::{Real, Tensor, UNIT};

/// Adds two tensors of one shape.
pub fn forward<F: Real>(a: &Tensor<F>, b: &Tensor<F>) -> Tensor<F> {
    Tensor {
        shape: a.shape.clone(),
        data: a.data.iter().zip(&b.data).map(|(&a, &b)| a + b).collect(),
    }
}

/// One rounding of the sum.
pub fn bound(y: &Tensor<f64>) -> Vec<f32> {
    y.data.iter().map(|v| (UNIT * v.abs()) as f32).collect()
}
