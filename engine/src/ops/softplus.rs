//! `y = ln(1 + e^{x + b})`, b a vector of weights: how long the delta net's state lasts.
//!
//! x `[T, n]`, b `[n]` -> `[T, n]`. With z = x + b, whose rounding moves the result by no more than itself: exponential, sum
//! and logarithm round a few times, and 1 + e^z rounds in units of 1, so that the bound is absolute where z is far below 0.
//! llama.cpp gives z itself above 20, where the two differ by less than a rounding.

use super::anatomy::Elementwise;
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT, bias};

/// The op.
#[derive(Debug)]
pub struct Softplus;

fn of<F: Real>(x: &Tensor<F>, c: &Context<'_>) -> Tensor<F> {
    let z = bias::forward(x, &c.vector::<F>(0));
    z.map(|z| if z > F::of(20.0) { z + (-z).exp() } else { z.exp().ln_1p() })
}

impl Definition for Softplus {
    fn name(&self) -> &'static str {
        "softplus"
    }
    fn about(&self) -> &'static str {
        "softplus of the sum of the decay's product and its bias"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::Elementwise(Elementwise::Function(1))
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        of(inputs[0], c)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        of(inputs[0], c)
    }
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, c: &Context<'_>) -> Vec<f32> {
        let z = bias::forward(inputs[0], &c.vector::<f64>(0));
        // The exponential's argument is reduced in units of itself; of its error e^z/(1 + e^z) is left.
        let reach = |(z, y): (&f64, &f64)| 3.0 + (1.0 + z.abs()) * (1.0 - (-y).exp()) + 4.0 * y.abs();
        z.data.iter().zip(&y.data).map(|pair| (UNIT * reach(pair) + TINY) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Matrix;
    use proptest::prelude::*;

    proptest! {
        /// softplus(z) − softplus(−z) = z; f32 as llama.cpp computes it stays within the bound, far from 0 as well.
        #[test]
        fn identity(x in prop::collection::vec(-90f32..90.0, 4), b in prop::collection::vec(-3f32..3.0, 4)) {
            let w = Matrix(4, 1, b.clone());
            let weights = [w.weight()];
            let c = Context { tokens: &[], positions: &[], history: &[], source: &w, weights: &weights };
            let x = Tensor { shape: vec![1, 4], data: x };
            let y = of(&x.wide(), &c);
            let bound = Softplus.bound(&[&x.wide()], &y, &c);
            for i in 0..4 {
                let z = f64::from(x.data[i]) + f64::from(b[i]);
                let other = (-z).exp().ln_1p();
                prop_assert!((y.data[i] - other - z).abs() < 1e-9 * (1.0 + z.abs()));
                let narrow = x.data[i] + b[i];
                let llama = if narrow > 20.0 { narrow } else { (1.0 + narrow.exp()).ln() };
                let own = of(&x, &c).data[i];
                for got in [llama, own] {
                    prop_assert!((f64::from(got) - y.data[i]).abs() <= 4.0 * f64::from(bound[i]), "{got} {}", y.data[i]);
                }
            }
        }
    }
}
