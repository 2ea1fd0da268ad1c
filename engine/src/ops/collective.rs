//! What ranks give each other: the sum of all parts, or all parts one after the other.
//!
//! Sum: `y[t, i] = Σ_r x_r[t, i]`, `[T, n]` of every rank -> `[T, n]`. Ranks may be added in any order, in one go or in
//! pairs. Concatenation: `[T, n_r]` of rank r -> `[T, Σ n_r]`, the parts in the order of the ranks.

use super::{Real, Tensor, UNIT, residual};

/// What ranks give each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// The sum of all of them.
    Sum,
    /// One after the other.
    Concatenation,
}

/// The parts of all ranks together.
pub fn forward<F: Real>(of: Collective, parts: &[&Tensor<F>]) -> Tensor<F> {
    let [first, rest @ ..] = parts else { return Tensor::zeros(Vec::new()) };
    match of {
        Collective::Sum => rest.iter().fold((*first).clone(), |sum, x| residual::forward(&sum, x)),
        Collective::Concatenation => {
            let row = |t: usize| parts.iter().flat_map(move |part| part.row(t).iter().copied());
            let width = parts.iter().map(|part| part.row_len()).sum();
            Tensor { shape: vec![first.rows(), width], data: (0..first.rows()).flat_map(row).collect() }
        }
    }
}

/// A sum has one rounding for each part but one, in any order: `(n-1)·u·Σ|x|`, where two parts are rounded once, by
/// `u·|y|`. What is put together is copied.
pub fn bound(of: Collective, parts: &[&Tensor<f64>], y: &Tensor<f64>) -> Vec<f32> {
    match of {
        Collective::Concatenation => vec![0.0; y.data.len()],
        Collective::Sum if parts.len() < 3 => residual::bound(y),
        Collective::Sum => {
            let sizes: Vec<Tensor<f64>> = parts.iter().map(|x| x.map(f64::abs)).collect();
            let reach = forward(of, &sizes.iter().collect::<Vec<_>>());
            let factor = (parts.len() - 1) as f64 * UNIT;
            reach.data.iter().map(|v| (factor * v) as f32).collect()
        }
    }
}

/// How uncertain parts make the result: see [`super::propagate_error`].
pub fn propagate_error(of: Collective, parts: &[&Tensor<f64>], deltas: &[Option<&[f32]>]) -> Vec<f32> {
    let squares = parts.iter().zip(deltas).map(|(x, delta)| {
        let exact = || vec![0.0; x.data.len()];
        let data = delta.map_or_else(exact, |d| d.iter().map(|d| f64::from(*d).powi(2)).collect());
        Tensor { shape: x.shape.clone(), data }
    });
    let squares: Vec<Tensor<f64>> = squares.collect();
    forward(of, &squares.iter().collect::<Vec<_>>()).data.into_iter().map(|v| v.sqrt() as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the order in which ranks are added in f32, the sum is within its bound; what is put together is each part.
        #[test]
        fn any_order_is_within_the_bound(
            values in prop::collection::vec(prop::collection::vec(-1e3f32..1e3, 6), 1..6), turn in 0usize..6, pairs: bool,
        ) {
            let of = |values: &Vec<f32>| Tensor { shape: vec![2, 3], data: values.clone() };
            let parts: Vec<Tensor<f32>> = values.iter().map(of).collect();
            let wide: Vec<Tensor<f64>> = parts.iter().map(Tensor::wide).collect();
            let wide: Vec<&Tensor<f64>> = wide.iter().collect();
            let exact = forward(Collective::Sum, &wide);
            let mut order: Vec<Tensor<f32>> = parts.clone();
            order.rotate_left(turn % parts.len());
            if pairs {
                order = order.chunks(2).map(|two| forward(Collective::Sum, &two.iter().collect::<Vec<_>>())).collect();
            }
            let sum = forward(Collective::Sum, &order.iter().collect::<Vec<_>>());
            for ((y, exact), bound) in sum.data.iter().zip(&exact.data).zip(bound(Collective::Sum, &wide, &exact)) {
                prop_assert!((f64::from(*y) - exact).abs() <= f64::from(bound) * (1.0 + 1e-6));
            }
            let all = forward(Collective::Concatenation, &parts.iter().collect::<Vec<_>>());
            prop_assert_eq!(&all.shape, &[2, 3 * parts.len()]);
            for (r, part) in parts.iter().enumerate() {
                for t in 0..2 {
                    prop_assert_eq!(&all.row(t)[3 * r..3 * r + 3], part.row(t));
                }
            }
            let delta = [2f32; 6];
            let deltas = vec![Some(&delta[..]); parts.len()];
            let carried = propagate_error(Collective::Sum, &wide, &deltas);
            prop_assert!((carried[0] - 2.0 * (parts.len() as f32).sqrt()).abs() < 1e-5);
        }
    }
}
