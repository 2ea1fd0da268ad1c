//! `y = x·σ(x)`, element by element; errors as in [`super::swiglu`].

use super::anatomy::Elementwise;
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT};

/// The op.
#[derive(Debug)]
pub struct Silu;

fn of<F: Real>(x: &Tensor<F>) -> Tensor<F> {
    x.map(|x| x / (F::one() + (-x).exp()))
}

impl Definition for Silu {
    fn name(&self) -> &'static str {
        "silu"
    }
    fn about(&self) -> &'static str {
        "SiLU of the convolution"
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
        let reach = |(x, y): (&f64, &f64)| (5.0 + (-x).max(0.0)) * y.abs() + 0.5 * x.abs();
        inputs[0].data.iter().zip(&y.data).map(|pair| (UNIT * reach(pair) + TINY) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::within;
    use proptest::prelude::*;

    proptest! {
        /// silu(x) − silu(−x) = x; f32 stays within the bound.
        #[test]
        fn identity(x in prop::collection::vec(-120f32..120.0, 4)) {
            let x = Tensor { shape: vec![1, 4], data: x };
            let (y, other) = (of(&x.wide()), of(&x.wide().map(|v| -v)));
            let both = y.data.iter().zip(&other.data).zip(&x.data);
            let mut off = both.map(|((a, b), x)| (a - b - f64::from(*x)).abs());
            prop_assert!(off.all(|off| off < 1e-9));
            prop_assert!(within(&Silu, &[&x]));
        }
    }
}
