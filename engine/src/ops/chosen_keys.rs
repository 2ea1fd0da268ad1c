//! Attention to chosen blocks of keys (the sparse attention of Qwen3.8-Flash-Next, llama.cpp's `build_qsa_sel` and
//! `build_attn_qsa`).
//!
//! Keys are in blocks of R. A small key of its own for each token is averaged over each whole block, normed and rotated to the
//! position of the block's first token; a query's score of a block is `1/√D·Σ_h max(0, q_h·k_b)`. A query attends to the keys of
//! the blocks of the largest scores, and to those behind its last whole block.

use super::anatomy::RowReduction;
use super::attn_scores::causal;
use super::{Anatomy, Context, Definition, Real, RmsNorm, Rope, TINY, Tensor, UNIT, deviation, real, rms_norm, rope};

/// The scores: q `[T, H·D]`, the cache of the small keys `[N, 1, D]`, w `[D]` -> `[T, N]`. The score of a block is at its last
/// key; at other keys, and at blocks that the token does not see whole, there is 0.
#[derive(Clone, Debug)]
pub struct BlockScores {
    /// H.
    pub heads: usize,
    /// R.
    pub block: usize,
    /// ε of the norm of pooled keys.
    pub eps: f64,
    /// The rotation of pooled keys, over heads of length D.
    pub rope: Rope,
}

/// The weights: softmax of the scaled scores `[H, T, N]` of the keys that operand 1 `[T, N]` has 1 at -> `[H, T, N]`.
#[derive(Clone, Debug)]
pub struct ChosenWeights {
    /// Factor of the scores.
    pub scale: f64,
}

/// Pooled keys `[B, D]`, and how far they are off where each element of the cache is off by `deltas` and f32 computes them.
struct Pooled {
    keys: Tensor<f64>,
    carried: Vec<f32>,
    bound: Vec<f32>,
}

impl BlockScores {
    fn norm(&self) -> RmsNorm {
        RmsNorm { eps: self.eps, groups: 1 }
    }

    fn positions(&self, blocks: usize) -> Vec<f64> {
        (0..blocks).map(|b| (b * self.block) as f64).collect()
    }

    /// The means of the whole blocks.
    fn means<F: Real>(&self, cache: &Tensor<F>, of: impl Fn(F) -> F) -> Tensor<F> {
        let (n, blocks) = (cache.row_len(), cache.rows() / self.block);
        let mut means = Tensor::zeros(vec![blocks, n]);
        for (mean, rows) in means.data.chunks_mut(n.max(1)).zip(cache.data.chunks((self.block * n).max(1))) {
            for row in rows.chunks(n.max(1)) {
                mean.iter_mut().zip(row).for_each(|(mean, v)| *mean = *mean + of(*v));
            }
            mean.iter_mut().for_each(|mean| *mean = *mean * F::of(1.0 / self.block as f64));
        }
        means
    }

    fn pooled<F: Real>(&self, cache: &Tensor<F>, w: &[F]) -> Tensor<F> {
        let normed = rms_norm::forward(&self.norm(), &self.means(cache, |v| v), w);
        rope::forward(&self.rope, &normed, &self.positions(normed.rows()))
    }

    fn errors(&self, cache: &Tensor<f64>, deltas: Option<&[f32]>, w: &[f64]) -> Pooled {
        let (n, norm, means) = (cache.row_len(), self.norm(), self.means(cache, |v| v));
        let positions = self.positions(means.rows());
        let squares = deltas
            .map(|d| Tensor { shape: cache.shape.clone(), data: d.iter().map(|d| f64::from(*d).powi(2)).collect() });
        // A mean has a share of each error: √Σδ²/R.
        let of_means = squares.map(|squares| {
            let root = |square: &f64| (square / self.block as f64).sqrt() as f32;
            self.means(&squares, |v| v).data.iter().map(root).collect::<Vec<f32>>()
        });
        let turned = |off: &[f32]| {
            let normed = rms_norm::propagate_error(&norm, &means, off, w);
            rope::propagate_error(&self.rope, &normed, n, &positions)
        };
        let reach = self.means(cache, f64::abs).data;
        let rounded: Vec<f32> = reach.iter().map(|m| (UNIT * (self.block as f64).sqrt() * m) as f32).collect();
        let normed = rms_norm::forward(&norm, &means, w);
        // The mean is of D terms in any order.
        let mut of_norm = rms_norm::bound(&norm, &normed);
        let in_a_row = 0.25 * UNIT * (n as f64).sqrt();
        of_norm.iter_mut().zip(&normed.data).for_each(|(bound, y)| *bound += (in_a_row * y.abs()) as f32);
        let of_norm = rope::propagate_error(&self.rope, &of_norm, n, &positions);
        let keys = rope::forward(&self.rope, &normed, &positions);
        let of_rope = rope::bound(&self.rope, &keys, &positions);
        let parts = turned(&rounded).into_iter().zip(of_norm).zip(of_rope);
        let bound = parts.map(|((a, b), c)| a + b + c).collect();
        Pooled { carried: of_means.map_or_else(|| vec![0.0; keys.data.len()], |off| turned(&off)), keys, bound }
    }

    /// What `of` makes of a query's heads and each block that it sees whole, at the block's last key.
    fn each<F: Real>(
        &self, q: &Tensor<F>, cache: &Tensor<F>, positions: &[u32], of: impl Fn(usize, usize) -> F,
    ) -> Tensor<F> {
        let keys = cache.rows();
        let mut y = Tensor::zeros(vec![q.rows(), keys]);
        for (t, (row, position)) in y.data.chunks_mut(keys.max(1)).zip(positions).enumerate() {
            for block in 0..causal(*position, keys) / self.block {
                row[(block + 1) * self.block - 1] = of(t, block);
            }
        }
        y
    }

    fn of<F: Real>(&self, inputs: &[&Tensor<F>], w: &[F], positions: &[u32]) -> Tensor<F> {
        let (q, cache) = (inputs[0], inputs[1]);
        let (pooled, d) = (self.pooled(cache, w), cache.row_len());
        let scale = F::of(1.0 / (d as f64).sqrt());
        self.each(q, cache, positions, |t, block| {
            let key = &pooled.data[block * d..][..d];
            q.row(t).chunks(d).map(|q| F::dot(q, key).max(F::zero()) * scale).sum()
        })
    }

    /// The root of the sum of squares over heads of what `of` makes of a query's head and a block's key, by their places.
    fn quadratic(&self, inputs: &[&Tensor<f64>], positions: &[u32], of: impl Fn(usize, usize) -> f64) -> Vec<f32> {
        let d = inputs[1].row_len();
        let roots = self.each(inputs[0], inputs[1], positions, |t, block| {
            let heads = (0..self.heads).map(|h| of((t * self.heads + h) * d, block * d).powi(2));
            (heads.sum::<f64>() / d as f64).sqrt()
        });
        roots.data.iter().map(|v| *v as f32).collect()
    }
}

impl Definition for BlockScores {
    fn name(&self) -> &'static str {
        "block_scores"
    }
    fn about(&self) -> &'static str {
        "the score of each whole block of keys for a query, in the column of the block's last key; other columns are 0"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Seen)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        self.of(inputs, &c.vector(0), c.positions)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        self.of(inputs, &c.vector(0), c.positions)
    }
    /// For each head: the pooled key's error and that of the product, whose sums add one each. max(0, ·) makes none larger.
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, c: &Context<'_>) -> Vec<f32> {
        let pooled = self.errors(inputs[1], None, &c.vector(0));
        let (q, d) = (&inputs[0].data, inputs[1].row_len());
        let product = UNIT * ((d as f64).sqrt() + 2.0);
        let of = |q0: usize, k0: usize| {
            let pairs = (0..d).map(|i| (q[q0 + i], pooled.keys.data[k0 + i], f64::from(pooled.bound[k0 + i])));
            pairs.map(|(q, k, off)| q.abs() * (off + product * k.abs())).sum()
        };
        let sums = self.heads as f64 * UNIT;
        let all = self.quadratic(inputs, c.positions, of);
        all.iter().zip(&y.data).map(|(off, y)| off + (sums * y.abs() + TINY) as f32).collect()
    }
    /// Pooled keys may be in the cache beside the keys that they are made of.
    fn kept_rounded(&self, unit: f64, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Option<Vec<f32>> {
        let (keys, q, d) = (self.pooled(inputs[1], &c.vector(0)), &inputs[0].data, inputs[1].row_len());
        let of =
            |q0: usize, k0: usize| (0..d).map(|i| (q[q0 + i] * unit * keys.data[k0 + i]).powi(2)).sum::<f64>().sqrt();
        Some(self.quadratic(inputs, c.positions, of))
    }
    fn propagate_error(
        &self, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], _: &Tensor<f64>, c: &Context<'_>,
    ) -> Vec<f32> {
        let pooled = self.errors(inputs[1], deltas[1], &c.vector(0));
        let (q, d) = (&inputs[0].data, inputs[1].row_len());
        let dq = |at: usize| deltas[0].map_or(0.0, |delta| f64::from(delta[at]));
        let of = |q0: usize, k0: usize| {
            let square = |i: usize| {
                let own = (q[q0 + i] * f64::from(pooled.carried[k0 + i])).powi(2);
                own + (pooled.keys.data[k0 + i] * dq(q0 + i)).powi(2)
            };
            (0..d).map(square).sum::<f64>().sqrt()
        };
        self.quadratic(inputs, c.positions, of)
    }
}

impl ChosenWeights {
    fn of<F: Real>(&self, inputs: &[&Tensor<F>], positions: &[u32]) -> Tensor<F> {
        let (scores, chosen) = (inputs[0], inputs[1]);
        let (keys, tokens, scale) = (scores.shape[2], scores.shape[1], F::of(self.scale));
        let mut y = Tensor::zeros(scores.shape.clone());
        for (row, (out, s)) in y.data.chunks_mut(keys.max(1)).zip(scores.data.chunks(keys.max(1))).enumerate() {
            let t = row % tokens;
            let seen = causal(positions[t], keys);
            let taken = &chosen.data[t * keys..][..seen];
            let z = |n: usize| if taken[n] == F::one() { s[n] * scale } else { F::neg_infinity() };
            let largest = (0..seen).map(z).fold(F::neg_infinity(), F::max);
            for (n, out) in out[..seen].iter_mut().enumerate().filter(|(n, _)| taken[*n] == F::one()) {
                *out = (z(n) - largest).exp();
            }
            let total = real::sum(out[..seen].iter().copied());
            out[..seen].iter_mut().for_each(|out| *out = *out / total);
        }
        y
    }
}

impl Definition for ChosenWeights {
    fn name(&self) -> &'static str {
        "chosen_weights"
    }
    fn about(&self) -> &'static str {
        "softmax of the scaled scores of the chosen keys; all other keys are 0"
    }
    fn anatomy(&self) -> Anatomy<'_> {
        Anatomy::RowReduction(RowReduction::Seen)
    }
    fn forward32(&self, inputs: &[&Tensor<f32>], c: &Context<'_>) -> Tensor<f32> {
        self.of(inputs, c.positions)
    }
    fn forward64(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Tensor<f64> {
        self.of(inputs, c.positions)
    }
    /// As of all keys.
    fn bound(&self, inputs: &[&Tensor<f64>], y: &Tensor<f64>, _: &Context<'_>) -> Vec<f32> {
        super::attn_weights::bound(&super::Softmax { scale: self.scale }, inputs[0], y)
    }
    /// As of all keys: `dy_i = y_i·scale·(ds_i − Σ y_j·ds_j)`. Where the choice may be another, nothing is known.
    fn propagate_error(
        &self, _: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, _: &Context<'_>,
    ) -> Vec<f32> {
        let (keys, tokens) = (y.shape[2].max(1), y.shape[1].max(1));
        let open = |t: usize| deltas[1].is_some_and(|d| d[t * keys..][..keys].iter().any(|d| *d != 0.0));
        let mut out = Vec::with_capacity(y.data.len());
        for (row, y) in y.data.chunks(keys).enumerate() {
            if open(row % tokens) {
                out.extend(std::iter::repeat_n(f32::INFINITY, keys));
                continue;
            }
            let d = |n: usize| deltas[0].map_or(0.0, |d| f64::from(d[row * keys + n]));
            // A key that is not chosen has no part in it, however uncertain its score is.
            let own = |n: usize| if y[n] == 0.0 { 0.0 } else { d(n) };
            let common: f64 = (0..keys).map(|n| (y[n] * own(n)).powi(2)).sum();
            let of =
                |n: usize| (self.scale.abs() * y[n] * deviation((1.0 - 2.0 * y[n]) * own(n).powi(2) + common)) as f32;
            out.extend((0..keys).map(|n| if y[n] == 0.0 { 0.0 } else { of(n) }));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Matrix;
    use proptest::prelude::*;

    proptest! {
        /// Scores are at the last key of each whole block that is seen; f32 stays within the bound.
        #[test]
        fn blocks_are_scored(values in prop::collection::vec(-3f32..3.0, 67), w in prop::collection::vec(0.5f32..2.0, 8), first in 0u32..6) {
            let (d, heads, keys) = (8, 2, 11);
            let w = Matrix(d, 1, w);
            let weights = [w.weight()];
            let op = BlockScores { heads, block: 3, eps: 1e-6, rope: Rope { rotated: 4, ..Rope::neox(1e4, d) } };
            let take = |from: usize, shape: Vec<usize>| Tensor { data: values.iter().copied().cycle().skip(from).take(shape.iter().product()).collect(), shape };
            let (q, cache) = (take(0, vec![2, heads, d]), take(9, vec![keys, 1, d]));
            let positions = [first, first + 4];
            let c = Context { tokens: &[], positions: &positions, history: &[], source: &w, weights: &weights };
            let wide = [q.wide(), cache.wide()];
            let wide = [&wide[0], &wide[1]];
            let (y, exact) = (op.forward32(&[&q, &cache], &c), op.forward64(&wide, &c));
            for (n, v) in exact.data.iter().enumerate() {
                let (t, n) = (n / keys, n % keys);
                prop_assert!(*v >= 0.0 && (*v == 0.0 || n % 3 == 2 && n as u32 <= positions[t]));
            }
            for ((y, exact), bound) in y.data.iter().zip(&exact.data).zip(op.bound(&wide, &exact, &c)) {
                prop_assert!((f64::from(*y) - exact).abs() <= 4.0 * f64::from(bound), "{y} {exact} {bound}");
            }
        }
    }

    /// Keys that are not chosen get nothing, and the rest is a distribution.
    #[test]
    fn weights_are_of_the_chosen_keys() {
        let scores = Tensor { shape: vec![1, 1, 4], data: vec![9.0, 1.0, 1.0, 50.0] };
        let chosen = Tensor { shape: vec![1, 4], data: vec![0.0, 1.0, 1.0, 1.0] };
        let y = ChosenWeights { scale: 0.5 }.of::<f64>(&[&scores, &chosen], &[2]);
        assert_eq!(y.data, [0.0, 0.5, 0.5, 0.0]);
    }
}
