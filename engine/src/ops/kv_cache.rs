//! The key or value cache: the rows of every token so far.
//!
//! rows `[T, G·D]` of this step appended to the cache `[N−T, G, D]` of the step before -> `[N, G, D]`.

use super::{Real, Tensor};

/// Parameters of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCache {
    /// Key and value heads, G.
    pub n_kv_heads: usize,
    /// Length of a head, D.
    pub head_dim: usize,
}

/// Appends `rows` to `cache`, which is empty before the first step.
pub fn append<F: Real>(op: &KvCache, cache: &mut Tensor<F>, rows: &Tensor<F>) {
    if cache.shape.is_empty() {
        cache.shape = vec![0, op.n_kv_heads, op.head_dim];
    }
    cache.data.extend_from_slice(&rows.data);
    cache.shape[0] += rows.rows();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Steps of any size leave all rows in order.
        #[test]
        fn holds_every_row_in_order(steps in prop::collection::vec(1usize..5, 1..6)) {
            let op = KvCache { n_kv_heads: 2, head_dim: 3 };
            let mut cache = Tensor::<f64>::default();
            let mut all = Vec::new();
            for (i, &n) in steps.iter().enumerate() {
                let data: Vec<f64> = (0..n * 6).map(|j| (i * 100 + j) as f64).collect();
                all.extend_from_slice(&data);
                append(&op, &mut cache, &Tensor { shape: vec![n, 6], data });
            }
            prop_assert_eq!(cache.shape, vec![steps.iter().sum::<usize>(), 2, 3]);
            prop_assert_eq!(cache.data, all);
        }
    }
}
