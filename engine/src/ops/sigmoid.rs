//! `y = σ(x) = 1/(1 + e^{−x})`, element by element.
//!
//! e^{−x} carries an error of |x| roundings of its argument's reduction for negative x, where it dominates the sum;
//! exponential, sum and quotient add some, and so do the product and the quotient of `silu(x)/x`, as llama.cpp writes the gate
//! of qwen2moe. `½ + ½·tanh(x/2)` rounds in units of ½.

use super::anatomy::Elementwise;
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT};

/// The op, and what its value is to the model.
#[derive(Debug)]
pub struct Sigmoid(pub &'static str);

fn of<F: Real>(x: &Tensor<F>) -> Tensor<F> {
    x.map(|x| F::one() / (F::one() + (-x).exp()))
}

impl Definition for Sigmoid {
    fn name(&self) -> &'static str {
        "sigmoid"
    }
    fn about(&self) -> &'static str {
        self.0
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::Elementwise(Elementwise::Function(1))
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        of(inputs[0])
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        of(inputs[0])
    }
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        let reach = |(x, y): (&f64, &f64)| (7.0 + (-x).max(0.0)) * y + 0.5;
        inputs[0].data.iter().zip(&y.data).map(|pair| (UNIT * reach(pair) + TINY) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::within;
    use proptest::prelude::*;

    proptest! {
        /// σ(x) + σ(−x) = 1; f32 stays within the bound, far from 0 as well.
        #[test]
        fn is_symmetric(x in prop::collection::vec(-120f32..120.0, 4)) {
            let x = Tensor { shape: vec![1, 4], data: x };
            let (y, other) = (of(&x.wide()), of(&x.wide().map(|v| -v)));
            prop_assert!(y.data.iter().zip(&other.data).all(|(a, b)| (a + b - 1.0).abs() < 1e-12));
            prop_assert!(within(&Sigmoid(""), &[&x]));
        }
    }
}
