//! `y = a + b`, element by element: the residual stream.

use super::{AT_ONCE, Real, Tensor, UNIT};
use rayon::prelude::*;

/// Adds two tensors of one shape.
pub fn forward<F: Real>(a: &Tensor<F>, b: &Tensor<F>) -> Tensor<F> {
    Tensor {
        shape: a.shape.clone(),
        data: a.data.par_iter().zip(&b.data).with_min_len(AT_ONCE).map(|(&a, &b)| a + b).collect(),
    }
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
            let (a, twice) = (Tensor { shape: vec![2, 3], data: a }, Tensor { shape: vec![2, 3], data: b.repeat(2) });
            let y = forward(&a, &twice);
            prop_assert_eq!(&y, &forward(&twice, &a));
            prop_assert_eq!(&y, &bias::forward(&a, &b));
            let exact = forward(&a.wide(), &twice.wide());
            for ((y, exact), bound) in y.data.iter().zip(&exact.data).zip(bound(&exact)) {
                prop_assert!((f64::from(*y) - exact).abs() <= f64::from(bound));
            }
            prop_assert!(forward(&a, &a.map(|v| -v)).data.iter().all(|&v| v == 0.0));
        }
    }
}
