//! `y = a + b`, element by element: the residual stream.

use super::{Real, Tensor, UNIT};

/// Adds two tensors of one shape.
pub fn forward<F: Real>(a: &Tensor<F>, b: &Tensor<F>) -> Tensor<F> {
    Tensor { shape: a.shape.clone(), data: a.data.iter().zip(&b.data).map(|(&a, &b)| a + b).collect() }
}

/// One rounding of the sum.
pub fn bound(y: &Tensor<f64>) -> Vec<f32> {
    y.data.iter().map(|v| (UNIT * v.abs()) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::bias;
    use proptest::prelude::*;

    proptest! {
        /// A sum commutes, is undone by its negative, and in f32 stays within
        /// one rounding; a bias is the same sum for every row.
        #[test]
        fn sums(a in prop::collection::vec(-1e3f32..1e3, 6), b in prop::collection::vec(-1e3f32..1e3, 3)) {
            let t = |x: &[f32]| Tensor { shape: vec![2, 3], data: x.to_vec() };
            let wide = |x: &[f32]| Tensor { shape: vec![2, 3], data: x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>() };
            let twice: Vec<f32> = b.iter().chain(&b).copied().collect();
            let y = forward(&t(&a), &t(&twice));
            prop_assert_eq!(&y, &forward(&t(&twice), &t(&a)));
            prop_assert_eq!(&y, &bias::forward(&t(&a), &b));
            let exact = forward(&wide(&a), &wide(&twice));
            for ((y, exact), bound) in y.data.iter().zip(&exact.data).zip(bound(&exact)) {
                prop_assert!((f64::from(*y) - exact).abs() <= f64::from(bound));
            }
            let negative: Vec<f32> = a.iter().map(|v| -v).collect();
            prop_assert!(forward(&t(&a), &t(&negative)).data.iter().all(|&v| v == 0.0));
        }
    }
}
