//! The shares of a row in its sum: `y_i = x_i / max(Σ_j x_j, 2⁻¹⁴)`, which are the weights of a token's experts.
//!
//! x `[T, k]` -> `[T, k]`. llama.cpp's `build_moe_ffn` keeps the sum from falling below the smallest normal f16, as here.
//! A sum of k terms is good to k roundings of the sum of their magnitudes; a quotient, or the product with a reciprocal, adds
//! two.

use super::anatomy::RowReduction;
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT, deviation, real};

/// The smallest sum that is divided by.
const SMALLEST: f64 = 6.103_515_625e-5;

/// The op.
#[derive(Debug)]
pub struct RowShares;

fn of<F: Real>(x: &Tensor<F>) -> Tensor<F> {
    let mut y = x.clone();
    for row in y.data.chunks_mut(x.row_len().max(1)) {
        let total = real::sum(row.iter().copied()).max(F::of(SMALLEST));
        row.iter_mut().for_each(|v| *v = *v / total);
    }
    y
}

/// What a row is divided by, and the sum of its magnitudes.
fn sums(row: &[f64]) -> (f64, f64) {
    (row.iter().sum::<f64>().max(SMALLEST), row.iter().map(|v| v.abs()).sum())
}

impl Definition for RowShares {
    fn name(&self) -> &'static str {
        "row_shares"
    }
    fn about(&self) -> &'static str {
        "the weights of the chosen experts, divided by their sum"
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
        let k = y.row_len().max(1);
        let of_row = |(x, y): (&[f64], &[f64])| {
            let (total, sizes) = sums(x);
            let roundings = 2.0 + k as f64 * (sizes / total);
            y.iter().map(|y| (UNIT * roundings * y.abs() + TINY) as f32).collect::<Vec<_>>()
        };
        inputs[0].data.chunks(k).zip(y.data.chunks(k)).flat_map(of_row).collect()
    }
    /// `dy_i = (dx_i − y_i·Σ_j dx_j) / Σ_j x_j`.
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let k = y.row_len().max(1);
        let mut out = Vec::with_capacity(y.data.len());
        let rows = inputs[0].data.chunks(k).zip(y.data.chunks(k)).zip(deltas[0].unwrap_or_default().chunks(k));
        for ((x, y), d) in rows {
            let (total, common) = (sums(x).0, d.iter().map(|d| f64::from(*d).powi(2)).sum::<f64>());
            let of = |(y, d): (&f64, &f32)| {
                let own = (1.0 - 2.0 * y) * f64::from(*d).powi(2);
                deviation(own + y * y * common) / total
            };
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
        /// Shares sum to 1 and do not change with the scale of the row; f32 stays within the bound, of any signs.
        #[test]
        fn shares_sum_to_one(x in prop::collection::vec(0.01f32..1.0, 8), by in 0.5f64..9.0, sign in 0usize..8) {
            let mut x = Tensor { shape: vec![2, 4], data: x };
            let (y, scaled) = (of(&x.wide()), of(&x.wide().map(|v| v * by)));
            for (a, b) in y.data.chunks(4).zip(scaled.data.chunks(4)) {
                prop_assert!((a.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                prop_assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12));
            }
            prop_assert!(within(&RowShares, &[&x]));
            x.data[sign] = -x.data[sign];
            prop_assert!(within(&RowShares, &[&x]));
        }
    }
}
