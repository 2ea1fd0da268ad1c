//! L2 norm of each head, `y = x/√(Σx² + ε)`, as the delta net takes it of queries and keys (llama.cpp's `build_gdn_l2_norm`,
//! which writes it as a scaled RMS norm); each head is then repeated.
//!
//! x `[T, n]`, of `heads` runs -> `[T, n·repeats]`. The squares are positive: a tree sum is good to log₂ d roundings, one term
//! by term to d/2 in the mean, of which the root keeps half; quotient, products and root add a few.

use super::anatomy::RowReduction;
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT, deviation, real};

/// The op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Norm {
    /// ε, added to the sum of squares.
    pub eps: f64,
    /// Runs of a row.
    pub heads: usize,
    /// How often the result repeats each run, one after the other.
    pub repeats: usize,
}

impl L2Norm {
    fn run(&self, width: usize) -> usize {
        (width / self.heads.max(1)).max(1)
    }

    fn of<F: Real>(&self, x: &Tensor<F>) -> Tensor<F> {
        let run = self.run(x.row_len());
        let mut data = Vec::with_capacity(x.data.len() * self.repeats);
        for head in x.data.chunks(run) {
            let root = (real::sum(head.iter().map(|v| *v * *v)) + F::of(self.eps)).sqrt();
            for _ in 0..self.repeats {
                data.extend(head.iter().map(|v| *v / root));
            }
        }
        Tensor { shape: vec![x.rows(), x.row_len() * self.repeats], data }
    }
}

impl Definition for L2Norm {
    fn name(&self) -> &'static str {
        "l2_norm"
    }
    fn about(&self) -> &'static str {
        "each head of queries or keys, divided by its L2 norm"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        self.of(inputs[0])
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        self.of(inputs[0])
    }
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        let run = self.run(inputs[0].row_len()) as f64;
        let factor = UNIT * (6.0 + 0.5 * run.log2() + 0.25 * run.sqrt());
        y.data.iter().map(|y| (factor * y.abs() + TINY) as f32).collect()
    }
    /// `dy_i = (dx_i − y_i·Σ_j y_j·dx_j)/√(Σx² + ε)`.
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let run = self.run(inputs[0].row_len());
        let mut out = Vec::with_capacity(y.data.len());
        for (x, d) in inputs[0].data.chunks(run).zip(deltas[0].unwrap_or_default().chunks(run)) {
            let root = (x.iter().map(|x| x * x).sum::<f64>() + self.eps).sqrt();
            let common: f64 = x.iter().zip(d).map(|(x, d)| (x / root * f64::from(*d)).powi(2)).sum();
            let of = |(x, d): (&f64, &f32)| {
                let y = x / root;
                let own = (1.0 - 2.0 * y * y) * f64::from(*d).powi(2);
                (deviation(own + y * y * common) / root) as f32
            };
            let head: Vec<f32> = x.iter().zip(d).map(of).collect();
            (0..self.repeats).for_each(|_| out.extend_from_slice(&head));
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
        /// A head has length 1 and does not change with its scale; f32 stays within the bound.
        #[test]
        fn a_head_has_length_one(x in prop::collection::vec(0.1f32..2.0, 12), by in 0.5f64..9.0, repeats in 1usize..3) {
            let norm = L2Norm { eps: 0.0, heads: 3, repeats };
            let x = Tensor { shape: vec![1, 12], data: x };
            let (y, scaled) = (norm.of(&x.wide()), norm.of(&x.wide().map(|v| v * by)));
            prop_assert_eq!(&y.shape, &[1, 12 * repeats]);
            for head in y.data.chunks(4) {
                prop_assert!((head.iter().map(|v| v * v).sum::<f64>() - 1.0).abs() < 1e-12);
            }
            prop_assert!(y.data.iter().zip(&scaled.data).all(|(a, b)| (a - b).abs() < 1e-12));
            let usual = L2Norm { eps: 1e-6, ..norm };
            prop_assert!(within(&usual, &[&x]));
        }
    }
}
