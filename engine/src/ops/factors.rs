//! Products element by element: of two tensors, or of each row with a vector of weights. One rounding each.

use super::anatomy::Elementwise;
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT};

/// `y = a·b`, of two tensors of one shape; its role in the model.
#[derive(Debug)]
pub struct Factors(pub &'static str);

/// `y[t] = x[t]·w`, w a vector of weights; its role in the model.
#[derive(Debug)]
pub struct VectorFactor(pub &'static str);

fn product<F: Real>(a: &Tensor<F>, b: &Tensor<F>) -> Tensor<F> {
    Tensor { shape: a.shape.clone(), data: a.data.iter().zip(&b.data).map(|(a, b)| *a * *b).collect() }
}

fn scaled<F: Real>(x: &Tensor<F>, w: &[F]) -> Tensor<F> {
    Tensor { shape: x.shape.clone(), data: x.data.iter().zip(w.iter().cycle()).map(|(x, w)| *x * *w).collect() }
}

fn one_rounding(y: &Tensor<f64>) -> Vec<f32> {
    y.data.iter().map(|y| (UNIT * y.abs() + TINY) as f32).collect()
}

impl Definition for Factors {
    fn name(&self) -> &'static str {
        "factors"
    }
    fn about(&self) -> &'static str {
        self.0
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::Elementwise(Elementwise::Function(2))
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], _: &Context<'_>) -> Tensor<f32> {
        product(inputs[0], inputs[1])
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], _: &Context<'_>) -> Tensor<f64> {
        product(inputs[0], inputs[1])
    }
    fn bound(&self, _: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        one_rounding(y)
    }
}

impl Definition for VectorFactor {
    fn name(&self) -> &'static str {
        "vector_factor"
    }
    fn about(&self) -> &'static str {
        self.0
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::Elementwise(Elementwise::Function(1))
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        scaled(inputs[0], &c.vector(0))
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        scaled(inputs[0], &c.vector(0))
    }
    fn bound(&self, _: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        one_rounding(y)
    }
}
