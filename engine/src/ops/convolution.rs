//! The delta net's convolution, causal and channel by channel: `y[t, c] = Σ_j w[c, j]·x[t − K + 1 + j, c]`, j from 0 to K − 1,
//! so that the last tap meets the token itself; and the window that goes over to the next step: the last K − 1 rows. If the
//! convolution is dilated, its taps are A rows apart, and the window has (K − 1)·A.
//!
//! x `[T, C]`, w K taps of each of C channels, the window before the step `[1, (K − 1)·A, C]` -> `[T, C]`. llama.cpp adds the K
//! products one by one (`ssm_conv`); any order stays within `u·√K·Σ|w·x|`.

use super::anatomy::{RowReduction, State};
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT};

/// The op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// K.
    pub taps: usize,
    /// A: rows from a tap to the next, 1 in a delta net.
    pub apart: usize,
}

/// The window: the last rows of the step, or of those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// (K − 1)·A.
    pub rows: usize,
}

impl Convolution {
    fn of<F: Real>(&self, inputs: &[&Tensor<F>], w: &[F]) -> Tensor<F> {
        let [x, before] = inputs else { unreachable!("rows and a window") };
        let (n, past) = (x.row_len(), (self.taps - 1) * self.apart);
        let mut y = Tensor::zeros(x.shape.clone());
        for (t, out) in y.data.chunks_mut(n.max(1)).enumerate() {
            for tap in 0..self.taps {
                let row = match (t + tap * self.apart).checked_sub(past) {
                    Some(own) => x.row(own),
                    None => &before.data[(t + tap * self.apart) * n..][..n],
                };
                for (c, (out, x)) in out.iter_mut().zip(row).enumerate() {
                    *out = *out + w[c * self.taps + tap] * *x;
                }
            }
        }
        y
    }
}

impl Definition for Convolution {
    fn name(&self) -> &'static str {
        "convolution"
    }
    fn about(&self) -> &'static str {
        "the causal convolution over the last tokens, channel by channel"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Recurrent)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        self.of(inputs, &c.vector(0))
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        self.of(inputs, &c.vector(0))
    }
    fn bound(&self, inputs: &[&Tensor<f64>], _: &Tensor<f64>, c: &Context<'_>) -> Vec<f32> {
        let sizes = inputs.iter().map(|x| x.map(f64::abs)).collect::<Vec<_>>();
        let w: Vec<f64> = c.vector::<f64>(0).into_iter().map(f64::abs).collect();
        let reach = self.of(&sizes.iter().collect::<Vec<_>>(), &w);
        let factor = UNIT * (self.taps as f64).sqrt();
        reach.data.iter().map(|reach| (factor * reach + self.taps as f64 * TINY) as f32).collect()
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], _: &Tensor<f64>, c: &Context<'_>,
    ) -> Vec<f32> {
        let square = |(x, d): (&&Tensor<f64>, &Option<&[f32]>)| {
            let data = d.map_or_else(|| vec![0.0; x.data.len()], |d| d.iter().map(|d| f64::from(*d).powi(2)).collect());
            Tensor { shape: x.shape.clone(), data }
        };
        let squares: Vec<Tensor<f64>> = inputs.iter().zip(deltas).map(square).collect();
        let w: Vec<f64> = c.vector::<f64>(0).into_iter().map(|w| w * w).collect();
        self.of(&squares.iter().collect::<Vec<_>>(), &w).data.iter().map(|v| v.sqrt() as f32).collect()
    }
}

impl Window {
    fn of<T: Copy>(&self, rows: &[T], before: &[T]) -> Vec<T> {
        let (all, keep) = ([before, rows].concat(), before.len());
        all[all.len() - keep..].to_vec()
    }
}

impl Definition for Window {
    fn name(&self) -> &'static str {
        "window"
    }
    fn about(&self) -> &'static str {
        "the convolution's last inputs, which the next step begins with, the oldest first"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::State(State::Own)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        Tensor { shape: inputs[1].shape.clone(), data: self.of(&inputs[0].data, &inputs[1].data) }
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        Tensor { shape: inputs[1].shape.clone(), data: self.of(&inputs[0].data, &inputs[1].data) }
    }
    /// A copy.
    fn bound(&self, _: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        vec![0.0; y.data.len()]
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], _: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let of = |i: usize| deltas[i].map_or_else(|| vec![0.0; inputs[i].data.len()], <[f32]>::to_vec);
        self.of(&of(0), &of(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Matrix;
    use proptest::prelude::*;

    proptest! {
        /// Steps of any size give what one step gives, and f32 stays within the bound.
        #[test]
        fn steps_go_on_from_each_other(x in prop::collection::vec(-3f32..3.0, 14), w in prop::collection::vec(-1f32..1.0, 8), cut in 0usize..8, apart in 1usize..4) {
            let (op, window) = (Convolution { taps: 4, apart }, Window { rows: 3 * apart });
            let w = Matrix(4, 2, w);
            let weights = [w.weight()];
            let c = Context { tokens: &[], positions: &[], history: &[], source: &w, weights: &weights };
            let part = |from: usize, to: usize| Tensor { shape: vec![to - from, 2], data: x[2 * from..2 * to].to_vec() }.wide();
            let none = Tensor::zeros(vec![1, 3 * apart, 2]);
            let whole = op.forward64(&[&part(0, 7), &none], &c);
            let first = op.forward64(&[&part(0, cut.min(7)), &none], &c);
            let between = window.forward64(&[&part(0, cut.min(7)), &none], &c);
            let rest = op.forward64(&[&part(cut.min(7), 7), &between], &c);
            prop_assert_eq!([first.data, rest.data].concat(), whole.data.clone());
            let bound = op.bound(&[&part(0, 7), &none], &whole, &c);
            let narrow = op.forward32(&[&part(0, 7).narrow(), &none.narrow()], &c);
            for ((y, exact), bound) in narrow.data.iter().zip(&whole.data).zip(bound) {
                prop_assert!((f64::from(*y) - exact).abs() <= 4.0 * f64::from(bound));
            }
        }
    }
}
