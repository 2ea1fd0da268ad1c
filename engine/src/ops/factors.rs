//! Products element by element: of two tensors, or of each row with a vector of weights. One rounding each.

use super::anatomy::{Elementwise, RowReduction, index};
use super::{Anatomy, Context, Definition, Real, TINY, Tensor, UNIT};

/// `y = a·b`, of two tensors of one shape; its role in the model.
#[derive(Debug)]
pub struct Factors(pub &'static str);

/// `y[t, l] = x[t, l]·w[chosen[t, l]]`, a weight for each expert: x `[T, l, m]`, chosen `[T, l]`.
#[derive(Debug)]
pub struct ExpertFactor;

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

impl ExpertFactor {
    /// Each line of `x` times what `of` makes of its expert's weight; NaN where none is chosen.
    fn of<F: Real>(x: &Tensor<F>, chosen: &[f64], w: &[f64], of: impl Fn(F, F) -> F) -> Vec<F> {
        let m = (x.data.len() / chosen.len().max(1)).max(1);
        let lines = x.data.chunks(m).zip(chosen);
        let factor = |chosen: f64| index(chosen, w.len()).map_or(F::nan(), |at| F::of(w[at]));
        lines.flat_map(|(line, chosen)| line.iter().map(|x| of(*x, factor(*chosen))).collect::<Vec<F>>()).collect()
    }
}

impl Definition for ExpertFactor {
    fn name(&self) -> &'static str {
        "expert_factor"
    }
    fn about(&self) -> &'static str {
        "the product of each chosen expert, times the scale of its matrix"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Other)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        let data = Self::of(inputs[0], &inputs[1].wide().data, &c.vector(0), |x, w| x * w);
        Tensor { shape: inputs[0].shape.clone(), data }
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        let data = Self::of(inputs[0], &inputs[1].data, &c.vector(0), |x, w| x * w);
        Tensor { shape: inputs[0].shape.clone(), data }
    }
    fn bound(&self, _: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        one_rounding(y)
    }
    /// Nothing is known where the choice may be another.
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, c: &Context<'_>,
    ) -> Vec<f32> {
        let exact = vec![0.0; y.data.len()];
        let data = deltas[0].unwrap_or(&exact).iter().map(|d| f64::from(*d)).collect();
        let delta = Tensor { shape: y.shape.clone(), data };
        let carried = Self::of(&delta, &inputs[1].data, &c.vector(0), |d, w| d * w.abs());
        let m = (y.data.len() / inputs[1].data.len().max(1)).max(1);
        let open = |at: usize| deltas[1].is_some_and(|choice| choice[at / m] != 0.0);
        carried.iter().enumerate().map(|(at, d)| if open(at) { f32::INFINITY } else { *d as f32 }).collect()
    }
}
