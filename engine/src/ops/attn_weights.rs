//! Attention weights: softmax over the keys of `scale · s`, with keys after the query's position masked.
//!
//! scores `[H, T, N]` -> `[H, T, N]`; every row sums to 1.

use super::attn_scores::causal;
use super::{AT_ONCE, Real, TINY, Tensor, UNIT, deviation, real};
use rayon::prelude::*;

/// Parameters of the softmax.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// Factor of the scores, 1/√D in every Qwen.
    pub scale: f64,
}

/// Softmax of every row, the maximum subtracted first.
pub fn forward<F: Real>(softmax: &Softmax, scores: &Tensor<F>, positions: &[u32]) -> Tensor<F> {
    let keys = scores.shape[2];
    let tokens = scores.shape[1];
    let scale = F::of(softmax.scale);
    let mut y = Tensor::zeros(scores.shape.clone());
    let rows = y.data.par_chunks_mut(keys.max(1)).zip(scores.data.par_chunks(keys.max(1)));
    rows.with_min_len(AT_ONCE.div_ceil(keys.max(1))).enumerate().for_each(|(row, (out, s))| {
        let seen = causal(positions[row % tokens], keys);
        let largest = s[..seen].iter().fold(F::neg_infinity(), |m, &s| m.max(s * scale));
        for (o, &s) in out[..seen].iter_mut().zip(s) {
            *o = (s * scale - largest).exp();
        }
        let total = real::sum(out[..seen].iter().copied());
        for o in &mut out[..seen] {
            *o = *o / total;
        }
    });
    y
}

/// The exponent `z − max z` rounds in units of both scaled scores and of itself, once more where it is one of 2, the
/// maximum of the keys so far and then the distance to the last one; exp and the quotient, or the product with a
/// reciprocal, add a few roundings, the sum of N positive terms in any order `√N + N/16` (see
/// [`super::attn_context::bound`]).
pub fn bound(softmax: &Softmax, scores: &Tensor<f64>, y: &Tensor<f64>) -> Vec<f32> {
    let keys = scores.shape[2].max(1);
    let few = roundings(keys);
    let mut bound = Vec::with_capacity(y.data.len());
    for (s, y) in scores.data.chunks(keys).zip(y.data.chunks(keys)) {
        let visible = || s.iter().zip(y).filter(|(_, y)| **y > 0.0).map(|(s, _)| s * softmax.scale);
        let largest = visible().fold(0f64, |m, z| m.max(z.abs()));
        let top = visible().fold(f64::NEG_INFINITY, f64::max);
        bound.extend(s.iter().zip(y).map(|(s, y)| {
            let z = s * softmax.scale;
            let apart = if *y > 0.0 { top - z } else { 0.0 };
            (UNIT * y * (z.abs() + largest + 2.0 * apart + few) + TINY) as f32
        }));
    }
    bound
}

/// Units that a weight is off by besides those of its exponent, among so many keys: see [`bound`].
pub fn roundings(keys: usize) -> f64 {
    let n = keys as f64;
    6.0 + n.sqrt() + n / 16.0
}

/// How uncertain scores make the weights: `dy_i = y_i·scale·(ds_i − Σ y_j·ds_j)`.
pub fn propagate_error(softmax: &Softmax, y: &Tensor<f64>, ds: &[f32]) -> Vec<f32> {
    let keys = y.shape[2].max(1);
    let mut out = Vec::with_capacity(ds.len());
    for (y, ds) in y.data.chunks(keys).zip(ds.chunks(keys)) {
        let square = |(y, d): (&f64, &f32)| (y * f64::from(*d)).powi(2);
        let common: f64 = y.iter().zip(ds).map(square).sum();
        out.extend(y.iter().zip(ds).map(|(y, d)| {
            // Its own share of the sum is subtracted, not added.
            let own = (1.0 - 2.0 * y) * f64::from(*d).powi(2);
            (softmax.scale.abs() * y * deviation(own + common)) as f32
        }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Rows sum to 1, masked keys get nothing, and a constant added to the scores of a row changes nothing.
        #[test]
        fn is_a_distribution(
            s in prop::collection::vec(-40f64..40.0, 2 * 3 * 5), shift in -9f64..9.0, first in 0u32..3,
        ) {
            let softmax = Softmax { scale: 0.5 };
            let positions = [first, first + 1, first + 2];
            let t = |k: f64| Tensor { shape: vec![2, 3, 5], data: s.iter().map(|v| v + k).collect::<Vec<_>>() };
            let (y, z) = (forward(&softmax, &t(0.0), &positions), forward(&softmax, &t(shift), &positions));
            for (row, y) in y.data.chunks(5).enumerate() {
                prop_assert!((y.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                let seen = positions[row % 3] as usize + 1;
                prop_assert!(y.iter().skip(seen).all(|&v| v == 0.0));
            }
            for (y, z) in y.data.iter().zip(&z.data) {
                prop_assert!((y - z).abs() < 1e-12);
            }
        }
    }
}
