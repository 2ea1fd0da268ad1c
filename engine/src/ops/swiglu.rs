//! SwiGLU (Shazeer 2020): `y = g · σ(g) · u`, with σ the logistic function.
//!
//! gate g and up u `[T, F]` -> `[T, F]`.

use super::{Real, TINY, Tensor, UNIT};

/// What stands in the place of SiLU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// x · σ(x), as in every Qwen.
    Silu,
    /// GELU in its tanh form (Hendrycks & Gimpel 2016).
    Gelu,
    /// x · σ(1.702 x), GELU's quick form.
    QuickGelu,
    /// max(x, 0).
    Relu,
}

impl Gate {
    fn apply<F: Real>(self, g: F) -> F {
        let sigmoid = |x: F| F::one() / (F::one() + (-x).exp());
        match self {
            Gate::Silu => g / (F::one() + (-g).exp()),
            Gate::Gelu => {
                let inner = F::of((2.0 / std::f64::consts::PI).sqrt()) * (g + F::of(0.044_715) * g * g * g);
                F::of(0.5) * g * (F::one() + inner.tanh())
            }
            Gate::QuickGelu => g * sigmoid(F::of(1.702) * g),
            Gate::Relu => g.max(F::zero()),
        }
    }
}

/// Multiplies the gate, through SiLU or what stands for it, with up.
pub fn forward<F: Real>(kind: Gate, gate: &Tensor<F>, up: &Tensor<F>) -> Tensor<F> {
    Tensor {
        shape: gate.shape.clone(),
        data: gate.data.iter().zip(&up.data).map(|(&g, &u)| kind.apply(g) * u).collect(),
    }
}

/// exp(−g) carries an error of |g| roundings of its argument's reduction for
/// negative g, where it dominates the sum; exp, sum, quotient and product add
/// some. The other activations may cancel, and are good to roundings of |g|.
pub fn bound(kind: Gate, gate: &Tensor<f64>, up: &Tensor<f64>, y: &Tensor<f64>) -> Vec<f32> {
    let operands = gate.data.iter().zip(&up.data).zip(&y.data);
    operands
        .map(|((g, u), y)| {
            let reach = match kind {
                Gate::Silu => (5.0 + (-g).max(0.0)) * y.abs(),
                _ => 8.0 * (g * u).abs(),
            };
            (UNIT * reach + TINY) as f32
        })
        .collect()
}

/// How uncertain operands make the result; the gate's derivative is the
/// central difference quotient.
pub fn spread(kind: Gate, (gate, up): (&Tensor<f64>, &Tensor<f64>), (dg, du): (&[f32], &[f32])) -> Vec<f32> {
    let operands = gate.data.iter().zip(&up.data).zip(dg.iter().zip(du));
    operands
        .map(|((&g, &u), (&dg, &du))| {
            let h = 1e-6 * (1.0 + g.abs());
            let slope = (kind.apply(g + h) - kind.apply(g - h)) / (2.0 * h);
            (slope * u * f64::from(dg)).hypot(kind.apply(g) * f64::from(du)) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// silu(g) − silu(−g) = g, and it is linear in up.
        #[test]
        fn silu_identity(g in -30f64..30.0, u in -5f64..5.0) {
            let t = |v| Tensor { shape: vec![1, 1], data: vec![v] };
            let f = |g, u| forward(Gate::Silu, &t(g), &t(u)).data[0];
            prop_assert!((f(g, 1.0) - f(-g, 1.0) - g).abs() < 1e-12);
            prop_assert!((f(g, u) - u * f(g, 1.0)).abs() < 1e-10);
        }
    }
}
