//! The key or value cache: the rows of every token so far.
//!
//! rows `[T, G·D]` of this step appended to the cache `[N−T, G, D]` of the
//! step before -> `[N, G, D]`.

use super::{Real, Tensor};

/// Parameters of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct KvCache {
    /// Whether the length advances. A cache that is stuck writes every step
    /// over the same rows.
    pub advance: bool,
}

impl Default for KvCache {
    fn default() -> Self {
        Self { advance: true }
    }
}

/// Appends `rows`, seen as `row_shape` each, to `cache`.
pub fn append<F: Real>(op: &KvCache, cache: &mut Tensor<F>, rows: &Tensor<F>, row_shape: &[usize]) {
    if !op.advance || cache.shape.is_empty() {
        cache.data.clear();
        cache.shape = vec![0];
        cache.shape.extend_from_slice(row_shape);
    }
    cache.data.extend_from_slice(&rows.data);
    cache.shape[0] += rows.rows();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Steps of any size leave all rows in order; a cache that is stuck
        /// holds the last step alone.
        #[test]
        fn holds_every_row_in_order(steps in prop::collection::vec(1usize..5, 1..6)) {
            let (mut cache, mut stuck) = (Tensor::<f64>::default(), Tensor::<f64>::default());
            let mut all = Vec::new();
            for (i, &n) in steps.iter().enumerate() {
                let data: Vec<f64> = (0..n * 6).map(|j| (i * 100 + j) as f64).collect();
                all.extend_from_slice(&data);
                let rows = Tensor { shape: vec![n, 6], data };
                append(&KvCache::default(), &mut cache, &rows, &[2, 3]);
                append(&KvCache { advance: false }, &mut stuck, &rows, &[2, 3]);
                prop_assert_eq!(&stuck.data, &rows.data);
                prop_assert_eq!(&stuck.shape, &vec![n, 2, 3]);
            }
            prop_assert_eq!(cache.shape, vec![steps.iter().sum::<usize>(), 2, 3]);
            prop_assert_eq!(cache.data, all);
        }
    }
}
