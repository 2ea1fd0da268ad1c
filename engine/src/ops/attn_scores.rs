//! Attention scores: `s[h, t, n] = q[t, h] · k[n, h / (H/G)]`, unscaled. Only the keys at or before the query's
//! position count; an engine may leave the others out, and a check looks at the causal part alone.
//!
//! q `[T, H, D]`, cache `[N, G, D]` -> `[H, T, N]`. Each group of H/G query
//! heads shares one key head (GQA, Ainslie et al. 2023).

use super::{Real, Tensor, UNIT};
use rayon::prelude::*;

/// Head counts of the attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Query heads, H.
    pub n_heads: usize,
    /// Key and value heads, G.
    pub n_kv_heads: usize,
    /// Length of a head, D.
    pub head_dim: usize,
}

impl Attention {
    /// The key head that query head `h` reads.
    pub fn kv_head(&self, h: usize) -> usize {
        h / (self.n_heads / self.n_kv_heads)
    }
}

/// Keys that the query at `position` may see, of `keys` cached.
pub fn causal(position: u32, keys: usize) -> usize {
    keys.min((position as usize).saturating_add(1))
}

/// Scores of every query with every key, heads in parallel.
pub fn forward<F: Real>(a: &Attention, q: &Tensor<F>, k: &Tensor<F>) -> Tensor<F> {
    let (tokens, keys, d) = (q.rows(), k.rows(), a.head_dim);
    let mut scores = Tensor::zeros(vec![a.n_heads, tokens, keys]);
    scores.data.par_chunks_mut((tokens * keys).max(1)).enumerate().for_each(|(h, plane)| {
        let kv = a.kv_head(h);
        let (query, key) = (|t: usize| &q.row(t)[h * d..(h + 1) * d], |n: usize| &k.row(n)[kv * d..(kv + 1) * d]);
        for (first, rows) in (0..).step_by(TILE).zip(plane.chunks_mut((TILE * keys).max(1))) {
            let mut done = 0;
            if rows.len() == TILE * keys {
                let queries: [&[F]; TILE] = std::array::from_fn(|t| query(first + t));
                for n in (0..keys / TILE * TILE).step_by(TILE) {
                    let tile = F::tile(queries, std::array::from_fn(|i| key(n + i)));
                    for (row, values) in rows.chunks_mut(keys).zip(tile) {
                        row[n..n + TILE].copy_from_slice(&values);
                    }
                    done = n + TILE;
                }
            }
            for (t, row) in rows.chunks_mut(keys.max(1)).enumerate() {
                for (n, s) in row.iter_mut().enumerate().skip(done) {
                    *s = F::dot(query(first + t), key(n));
                }
            }
        }
    });
    scores
}

/// Queries and keys that are multiplied together.
const TILE: usize = 4;

/// `u·√D·Σ|q·k|`: the probabilistic bound of an inner product of D terms in any order (Higham & Mary 2019).
pub fn bound(a: &Attention, q: &Tensor<f64>, k: &Tensor<f64>) -> Vec<f32> {
    let factor = bound_factor(a);
    let size = |v: f64| v.abs() as f32;
    forward(a, &q.map(size), &k.map(size)).data.iter().map(|reach| factor * reach).collect()
}

/// What the bound takes of `Σ|q·k|`.
pub fn bound_factor(a: &Attention) -> f32 {
    (UNIT * (a.head_dim as f64).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each query head meets the keys of its own group, and a query scaled
        /// scales its scores; the f32 evaluation stays within the bound.
        #[test]
        fn heads_meet_their_group(
            q in prop::collection::vec(-3f32..3.0, 5 * 4 * 8), k in prop::collection::vec(-3f32..3.0, 5 * 2 * 8), by in 1f64..4.0,
        ) {
            let a = Attention { n_heads: 4, n_kv_heads: 2, head_dim: 8 };
            let (q, k) = (Tensor { shape: vec![5, 4, 8], data: q }, Tensor { shape: vec![5, 2, 8], data: k });
            let (wq, wk) = (q.wide(), k.wide());
            let s = forward(&a, &wq, &wk);
            let scaled = forward(&a, &wq.map(|v| v * by), &wk);
            let f = forward(&a, &q, &k);
            let bound = bound(&a, &wq, &wk);
            for h in 0..4 {
                for t in 0..5 {
                    for n in 0..5 {
                        let at = (h * 5 + t) * 5 + n;
                        let exact: f64 = (0..8)
                            .map(|i| wq.row(t)[h * 8 + i] * wk.row(n)[(h / 2) * 8 + i])
                            .sum();
                        prop_assert!((s.data[at] - exact).abs() < 1e-12);
                        prop_assert!((scaled.data[at] - by * exact).abs() < 1e-11);
                        prop_assert!((f64::from(f.data[at]) - exact).abs() <= 4.0 * f64::from(bound[at]));
                    }
                }
            }
        }
    }
}
