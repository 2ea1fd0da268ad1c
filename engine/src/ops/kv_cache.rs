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
