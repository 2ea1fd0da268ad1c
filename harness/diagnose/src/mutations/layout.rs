//! Memory read in another order than it was written in.

use super::places::head;
use super::{Mutation, Param, each};
use crate::verdict::Evidence;
use qdiff_engine::model::{Axis, Node, Role, WeightSource};
use qdiff_engine::ops::anatomy::{Contraction, Gather};
use qdiff_engine::ops::{Anatomy, Context, Real, Tensor, forward_with_bound, linear};
use rayon::prelude::*;

/// A linear layer whose memory `[m, n]` is taken for `[n, m]`: weight (o, i) is read at i·m + o. For a square matrix
/// this is the transpose, otherwise a scramble.
fn transposed(inputs: &[&Tensor<f64>], c: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    let x = inputs[0];
    let magnitudes = Tensor { shape: x.shape.clone(), data: x.data.iter().map(|v| v.abs() as f32).collect() };
    let factor = linear::bound_factor(x.row_len());
    let reach = across(&magnitudes, c, f32::abs);
    (across(x, c, |w| w), reach.data.iter().map(|v| factor * v).collect())
}

/// `y[t, o] = Σ_i seen(w[i·m + o])·x[t, i]`: walks the memory in order and once
/// for all tokens, so that even the output projection needs no copy.
fn across<F: Real>(x: &Tensor<F>, c: &Context<'_>, seen: fn(f32) -> f32) -> Tensor<F> {
    let (n, m) = c.extent(0);
    let zeros = || Tensor::zeros(vec![x.rows(), m]);
    let parts = rayon::current_num_threads().max(1);
    let share = m.div_ceil(parts).max(1);
    let part = |first: usize| {
        let mut y = zeros();
        let mut narrow = vec![0f32; n];
        let mut row = vec![F::zero(); n];
        for r in first..m.min(first + share) {
            c.rows(0, r, &mut narrow);
            narrow.iter_mut().for_each(|w| *w = seen(*w));
            F::widen(&narrow, &mut row);
            let mut at = 0;
            while at < n {
                let flat = r * n + at;
                let (i, o) = (flat / m, flat % m);
                let run = (m - o).min(n - at);
                for (t, y) in y.data.chunks_mut(m).enumerate() {
                    F::axpy(x.row(t)[i], &row[at..at + run], &mut y[o..o + run]);
                }
                at += run;
            }
        }
        y
    };
    let firsts: Vec<usize> = (0..m).step_by(share).collect();
    let sum = |mut a: Tensor<F>, b: Tensor<F>| {
        a.data.iter_mut().zip(b.data).for_each(|(a, b)| *a = *a + b);
        a
    };
    firsts.into_par_iter().map(part).reduce(zeros, sum)
}

/// A linear layer that reads its input `[T, n]` from memory where that stands otherwise: each head of all tokens after the other, `[n / d, T, d]`.
fn heads_first(node: &Node, d: usize) -> Option<Node> {
    let op = node.op.clone();
    (d > 0).then(|| {
        node.computing(move |inputs, c| {
            let (x, n) = (inputs[0], inputs[0].row_len());
            let (rows, heads) = (x.rows(), n / d);
            let stands = (0..rows * n)
                .map(|at| x.data[(at / d % rows) * n + at / (rows * d).max(1) % heads.max(1) * d + at % d]);
            let moved = Tensor { shape: x.shape.clone(), data: stands.collect() };
            forward_with_bound(&op, &[&moved], c)
        })
    })
}

/// Row r of a table is read at r, r + rows, r + 2·rows and so on.
fn column(source: &dyn WeightSource, tensor: &str, row: usize, out: &mut [f32]) {
    let (width, rows) = source.extent(tensor);
    let mut stored = vec![0f32; width];
    for (i, v) in out.iter_mut().enumerate() {
        let flat = i * rows + row;
        source.rows(tensor, flat / width, &mut stored);
        *v = stored[flat % width];
    }
}

/// Row r begins at r·(n + extra); beyond the end stands zero.
fn strided(extra: i64, source: &dyn WeightSource, tensor: &str, row: usize, out: &mut [f32]) {
    let (n, rows) = source.extent(tensor);
    let start = row * (n as i64 + extra).max(0) as usize;
    // A row of n from there touches two stored rows at most.
    let stored = rows.saturating_sub(start / n).min(2);
    let mut both = vec![0f32; 2 * n];
    if stored > 0 {
        source.rows(tensor, start / n, &mut both[..stored * n]);
    }
    out.copy_from_slice(&both[start % n..][..n]);
}

/// Leading dimensions that are looked for, as what they are too large by.
const LEADING: std::ops::RangeInclusive<i64> = -1024..=1024;

/// What the leading dimension is too large by, told from the first outputs of one row: each begins so much further off.
fn leading(e: &Evidence<'_>) -> Option<f64> {
    let row = e.bad_rows().next()?;
    let x = e.operand(row, 0)?;
    let (got, ..) = e.row(row);
    let name = &e.node.weights.first()?.name;
    let weights = &e.oracle.weights;
    let (n, m) = weights.extent(name);
    // Outputs 1 and 2 lie within the first rows, for any search.
    let rows = (2 * (n + 1024) / n + 2).min(m);
    let mut stored = vec![0f32; rows * n];
    weights.rows(name, 0, &mut stored);
    let misses = |extra: i64| {
        let of = |o: usize| {
            let start = usize::try_from((n as i64 + extra) * o as i64).ok()?;
            let w = stored.get(start..start + n)?;
            let products = || w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let size: f64 = products().map(|p| p * p).sum::<f64>().sqrt();
            Some((products().sum::<f64>() - f64::from(got[o])).abs() / size)
        };
        match (of(1), of(2)) {
            (Some(a), Some(b)) => a.max(b),
            _ => f64::INFINITY,
        }
    };
    let best = LEADING.filter(|e| *e != 0).min_by(|a, b| misses(*a).total_cmp(&misses(*b)))?;
    // Quantised activations are off by some hundredths at most.
    (got.len() > 2 && misses(best) < 0.1).then_some(best as f64)
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "qkv-weight-transposed",
        fits: Some(|_, n| {
            matches!(
                (n.op.anatomy(), n.role),
                (Anatomy::Contraction(Contraction::Weight(None)), Role::Query | Role::Key | Role::Value)
            )
        }),
        story: "the weight is read transposed: a GGUF row of n_in contiguous weights is taken for a column",
        seen: "Q, K or V look plausible in size and are wrong everywhere; a biased value held against an unbiased one hides it",
        remedy: "a GGUF weight is [out][in]; to cuBLAS it is column-major [in, out]: use OP_T with lda = n_in",
        apply: |node, _, _| Some(node.computing(transposed)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "linear-weight-transposed",
        fits: Some(|_, n| {
            matches!(
                (n.op.anatomy(), n.role),
                (
                    Anatomy::Contraction(Contraction::Weight(None)),
                    Role::AttnOutput | Role::Gate | Role::Up | Role::FfnOutput
                )
            )
        }),
        story: "the weight is read transposed: a GGUF row of n_in contiguous weights is taken for a column",
        seen: "plausible size, wrong everywhere, at every position",
        remedy: "a GGUF weight is [out][in]; to cuBLAS it is column-major [in, out]: use OP_T with lda = n_in",
        apply: |node, _, _| Some(node.computing(transposed)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "input-heads-first",
        fits: Some(|graph, n| {
            matches!(n.op.anatomy(), Anatomy::Contraction(Contraction::Weight(None)))
                && n.inputs.first().is_some_and(|&i| {
                    matches!(graph.nodes[i].shape[..], [Axis::Tokens, Axis::Fixed(width)] if width.is_multiple_of(graph.config.head_dim))
                })
        }),
        story: "the input stands in memory {as} and is read token by token: rows mix tokens",
        seen: "with one token alone the stage is right",
        remedy: "transpose {input} back to [tokens, heads, head_dim] before it is multiplied",
        params: &[Param::new("as", "0: head by head, 1: column by column", 0.0).searched(&[1.0])],
        apply: |node, values, graph| heads_first(node, if values[0] == 0.0 { graph.config.head_dim } else { 1 }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "accumulators-not-cleared",
        fits: Some(|_, n| {
            n.shape.first() == Some(&Axis::Tokens)
                && matches!(n.op.anatomy(), Anatomy::Contraction(Contraction::Weight(None)))
        }),
        story: "the accumulators are not cleared before the last, partial tile of rows: each of its rows is added to the row one tile before it",
        seen: "right where the rows of a part fill whole tiles",
        remedy: "set the accumulators to zero at the beginning of each tile, the last one included",
        params: &[Param::new("rows", "rows of a tile", 8.0).searched(&[16.0, 32.0, 64.0, 4.0, 128.0])],
        apply: |node, values, _| {
            let tile = values[0] as usize;
            (tile > 1).then(|| {
                node.writing(move |out| {
                    let (rows, n) = (out.value.rows(), out.value.row_len());
                    let first = rows / tile * tile;
                    for at in (first.max(tile) * n..rows * n).rev() {
                        out.value.data[at] += out.value.data[at - tile * n];
                        out.bound[at] = out.bound[at].hypot(out.bound[at - tile * n]);
                    }
                })
            })
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "lm-head-transposed",
        fits: Some(head),
        story: "the output projection is read transposed, so every id is wrong, and no id more than others",
        seen: "one token for ever; large logits at scattered ids that move with the position; a manual dot product with the same stride confirms the wrong value",
        remedy: "{weight} is [vocab][n_embd]; to cuBLAS it is column-major [n_embd, vocab]: use OP_T with lda = n_embd",
        apply: |node, _, _| Some(node.computing(transposed)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "lm-head-ld",
        fits: Some(head),
        story: "the output projection is read with the wrong leading dimension: the row of each id begins further from its place",
        seen: "the first ids are nearly right, later ones are not; the choice falls on ids near the end of the vocabulary",
        remedy: "the leading dimension of {weight} is n_embd",
        params: &[Param::new("extra", "elements by which the leading dimension is too large", 1.0)],
        apply: |node, values, _| {
            let extra = values[0] as i64;
            (extra != 0).then(|| node.reading(move |source, tensor, row, out| strided(extra, source, tensor, row, out)))
        },
        propose: Some(|e| each(leading(e))),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "embed-transposed",
        fits: Some(|_, n| n.op.anatomy() == Anatomy::Gather(Gather::Rows)),
        story: "the embedding table is read across: element i of a token at i * vocab + token",
        seen: "wrong from the first tensor on, and alike for neighbouring ids",
        remedy: "{weight} is [vocab][n_embd]: a token's row is contiguous",
        apply: |node, _, _| Some(node.reading(column)),
        ..Mutation::PLAIN
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qdiff_engine::model::Weight;
    use qdiff_engine::quant::{GgmlType, Stored};

    struct Matrix(usize, usize, Vec<f32>);

    impl WeightSource for Matrix {
        fn stored(&self, _: &str) -> Stored<'_> {
            Stored { ty: GgmlType::F32, extent: (self.0, self.1), bytes: bytemuck::cast_slice(&self.2) }
        }
    }

    proptest! {
        /// Each wrong way to read a matrix against its definition, for any shape.
        #[test]
        fn read_as_they_say(n in 1usize..40, m in 1usize..80, tokens in 1usize..4, extra in -3i64..4) {
            let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 8e6 - 1.0;
            let w = Matrix(n, m, (0..n * m).map(value).collect());
            let x: Vec<f64> = (0..n * tokens).map(|i| f64::from(value(i + 7777))).collect();
            let x = Tensor { shape: vec![tokens, n], data: x };
            let weights = [Weight { name: "w".to_owned(), extent: vec![n, m] }];
            let c = Context { tokens: &[], positions: &[], history: &[], source: &w, weights: &weights };
            let at = |flat: usize| w.2.get(flat).copied().unwrap_or(0.0);
            let (y, _) = transposed(&[&x], &c);
            let mut row = vec![0f32; n];
            for o in 0..m {
                for t in 0..tokens {
                    let exact: f64 = (0..n).map(|i| f64::from(at(i * m + o)) * x.row(t)[i]).sum();
                    prop_assert!((y.row(t)[o] - exact).abs() < 1e-9);
                }
                column(&w, "w", o, &mut row);
                prop_assert!((0..n).all(|i| row[i] == at(i * m + o)));
                strided(extra, &w, "w", o, &mut row);
                let stride = (n as i64 + extra).max(0) as usize;
                prop_assert!((0..n).all(|i| row[i] == at(o * stride + i)));
            }
        }
    }
}
