//! Softmax of a whole row: `y_i = e^{x_i} / Σ_j e^{x_j}`, the probability of each expert.
//!
//! x `[T, n]` -> `[T, n]`. The exponent `x − max x` rounds in units of both values and of itself; exponential, quotient and
//! the sum of n positive terms add what they add to attention weights ([`super::attn_weights::roundings`]).

use super::anatomy::RowReduction;
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT, attn_weights, deviation, real};

/// The op.
#[derive(Debug)]
pub struct RowSoftmax;

fn of<F: Real>(x: &Tensor<F>) -> Tensor<F> {
    let mut y = x.clone();
    for row in y.data.chunks_mut(x.row_len().max(1)) {
        let largest = row.iter().fold(F::neg_infinity(), |m, v| m.max(*v));
        row.iter_mut().for_each(|v| *v = (*v - largest).exp());
        let total = real::sum(row.iter().copied());
        row.iter_mut().for_each(|v| *v = *v / total);
    }
    y
}

impl Definition for RowSoftmax {
    fn name(&self) -> &'static str {
        "row_softmax"
    }
    fn about(&self) -> &'static str {
        "softmax of the scores of all experts"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        of(inputs[0])
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        of(inputs[0])
    }
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        let n = y.row_len().max(1);
        let few = attn_weights::roundings(n);
        let mut bound = Vec::with_capacity(y.data.len());
        for (x, y) in inputs[0].data.chunks(n).zip(y.data.chunks(n)) {
            let largest = x.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
            let reach = |(x, y): (&f64, &f64)| y * (x.abs() + largest.abs() + (largest - x) + few);
            bound.extend(x.iter().zip(y).map(|pair| (UNIT * reach(pair) + TINY) as f32));
        }
        bound
    }
    /// `dy_i = y_i·(dx_i − Σ_j y_j·dx_j)`.
    fn propagate_error(
        &self, _: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let n = y.row_len().max(1);
        let mut out = Vec::with_capacity(y.data.len());
        for (y, d) in y.data.chunks(n).zip(deltas[0].unwrap_or_default().chunks(n)) {
            let common: f64 = y.iter().zip(d).map(|(y, d)| (y * f64::from(*d)).powi(2)).sum();
            // Its own share of the sum is subtracted, not added.
            let of = |(y, d): (&f64, &f32)| y * deviation((1.0 - 2.0 * y) * f64::from(*d).powi(2) + common);
            out.extend(y.iter().zip(d).map(|pair| of(pair) as f32));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::within;
    use proptest::prelude::*;

    proptest! {
        /// A row sums to 1, does not change where all its values move together, and f32 stays within the bound, also
        /// of scores in the thousands.
        #[test]
        fn a_row_is_a_distribution(x in prop::collection::vec(-1f32..1.0, 6), scale in 0.1f32..3e3, by in -50f64..50.0) {
            let x = Tensor { shape: vec![2, 3], data: x.into_iter().map(|v| v * scale).collect::<Vec<f32>>() };
            let y = of(&x.wide());
            let moved = of(&x.wide().map(|v| v + by));
            for (a, b) in y.data.chunks(3).zip(moved.data.chunks(3)) {
                prop_assert!((a.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                prop_assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9));
            }
            prop_assert!(within(&RowSoftmax, &[&x]));
        }
    }
}
