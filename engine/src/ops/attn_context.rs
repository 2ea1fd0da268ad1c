//! Attention context: `c[t, h] = Σ_n w[h, t, n] · v[n, h / (H/G)]`.
//!
//! weights `[H, T, N]`, cache `[N, G, D]` -> `[T, H·D]`.

use super::{Attention, Real, TINY, Tensor, UNIT};
use rayon::prelude::*;

/// The weighted mean of the values, head by head.
pub fn forward<F: Real>(a: &Attention, w: &Tensor<F>, v: &Tensor<F>) -> Tensor<F> {
    let (tokens, keys, d) = (w.shape[1], w.shape[2], a.head_dim);
    let width = a.n_heads * d;
    let mut y = Tensor::zeros(vec![tokens, width]);
    y.data.par_chunks_mut(width.max(1)).enumerate().for_each(|(t, row)| {
        for (h, head) in row.chunks_mut(d).enumerate() {
            let kv = a.kv_head(h);
            let weights = &w.data[(h * tokens + t) * keys..][..keys];
            for (n, &weight) in weights.iter().enumerate().take(v.rows()) {
                // A weight of zero contributes nothing: masked keys are free.
                if weight != F::zero() {
                    F::axpy(weight, &v.row(n)[kv * d..(kv + 1) * d], head);
                }
            }
        }
    });
    y
}

/// `u·(√N + N/16)·Σ|w·v|`: as for any inner product of N terms, and what a running sum drifts when the terms are much
/// alike, as the values of repeated tokens are; then its roundings are not independent (measured: `u·N/8` at N = 3768,
/// on four times this bound). A product below the smallest normal f32 may be flushed.
pub fn bound(a: &Attention, w: &Tensor<f64>, v: &Tensor<f64>) -> Vec<f32> {
    let size = |v: f64| v.abs() as f32;
    let reach = forward(a, &w.map(size), &v.map(size)).data;
    reach.into_iter().map(|reach| bound_of(reach, v.rows())).collect()
}

/// The bound of a sum over `keys` values of which `Σ|w·v|` is `reach`.
pub fn bound_of(reach: f32, keys: usize) -> f32 {
    let n = keys as f64;
    (UNIT * (n.sqrt() + n / 16.0).max(1.0) * f64::from(reach) + n * TINY) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// One-hot weights pick the value of the head's own group; a
        /// constant value comes out as itself for any distribution.
        #[test]
        fn picks_and_averages(v in prop::collection::vec(-3f64..3.0, 4 * 2 * 2), n in 0usize..4, h in 0usize..4) {
            let a = Attention { n_heads: 4, n_kv_heads: 2, head_dim: 2 };
            let v = Tensor { shape: vec![4, 2, 2], data: v };
            let mut w = Tensor::zeros(vec![4, 1, 4]);
            for head in 0..4 {
                w.data[head * 4 + n] = 1.0;
            }
            let y = forward(&a, &w, &v);
            prop_assert_eq!(&y.data[h * 2..h * 2 + 2], &v.row(n)[(h / 2) * 2..(h / 2) * 2 + 2]);
            let even = Tensor { shape: vec![4, 1, 4], data: vec![0.25; 16] };
            let same = Tensor { shape: vec![4, 2, 2], data: vec![v.data[0]; 16] };
            for y in forward(&a, &even, &same).data {
                prop_assert!((y - v.data[0]).abs() < 1e-12);
            }
        }
    }
}
