//! SwiGLU (Shazeer 2020): `y = g · σ(g) · u`, with σ the logistic function.
//!
//! gate g and up u `[T, F]` -> `[T, F]`.

use super::{AT_ONCE, Real, TINY, Tensor, UNIT};
use rayon::prelude::*;

fn silu<F: Real>(g: F) -> F {
    g / (F::one() + (-g).exp())
}

/// Multiplies the gate, through SiLU, with up.
pub fn forward<F: Real>(gate: &Tensor<F>, up: &Tensor<F>) -> Tensor<F> {
    let pairs = gate.data.par_iter().zip(&up.data).with_min_len(AT_ONCE);
    Tensor { shape: gate.shape.clone(), data: pairs.map(|(&g, &u)| silu(g) * u).collect() }
}

/// exp(−g) carries an error of |g| roundings of its argument's reduction for negative g, where it dominates the sum;
/// exp, sum, quotient and product add some. `σ(g) = ½ + ½·tanh(g/2)`, as some compilers write it, rounds in units of ½.
pub fn bound((gate, up): (&Tensor<f64>, &Tensor<f64>), y: &Tensor<f64>) -> Vec<f32> {
    let operands = gate.data.iter().zip(&up.data).zip(&y.data);
    let reach = |((g, u), y): ((&f64, &f64), &f64)| (5.0 + (-g).max(0.0)) * y.abs() + 0.5 * (g * u).abs();
    operands.map(|operands| (UNIT * reach(operands) + TINY) as f32).collect()
}

/// How uncertain operands make the result, with `silu'(g) = σ(g)·(1 + g·(1 − σ(g)))`.
pub fn propagate_error((gate, up): (&Tensor<f64>, &Tensor<f64>), (dg, du): (&[f32], &[f32])) -> Vec<f32> {
    let operands = gate.data.iter().zip(&up.data).zip(dg.iter().zip(du));
    operands
        .map(|((&g, &u), (&dg, &du))| {
            let sigmoid = 1.0 / (1.0 + (-g).exp());
            let slope = sigmoid * (1.0 + g * (1.0 - sigmoid));
            (slope * u * f64::from(dg)).hypot(silu(g) * f64::from(du)) as f32
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
            let f = |g, u| forward(&t(g), &t(u)).data[0];
            prop_assert!((f(g, 1.0) - f(-g, 1.0) - g).abs() < 1e-12);
            prop_assert!((f(g, u) - u * f(g, 1.0)).abs() < 1e-10);
        }
    }
}
