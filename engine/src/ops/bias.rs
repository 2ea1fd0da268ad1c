//! `y[t] = x[t] + b`.
//!
//! x `[T, n]`, b `[n]` -> `[T, n]`. The error bound is that of any sum of two ([`super::residual::bound`]).

use super::{Real, Tensor};

/// Adds `b` to every row.
pub fn forward<F: Real>(x: &Tensor<F>, b: &[F]) -> Tensor<F> {
    let mut y = x.clone();
    for row in y.data.chunks_mut(b.len().max(1)) {
        for (v, &b) in row.iter_mut().zip(b) {
            *v = *v + b;
        }
    }
    y
}
