//! Scores, softmax and context.

use super::affine::digits;
use super::places::{context, scores, softmax};
use super::{Mutation, Param, each};
use crate::verdict::Evidence;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, RowReduction};
use qdiff_engine::ops::{self, Anatomy, Attention, Context, Op, Softmax, TINY, Tensor, UNIT};

fn own(node: &Node) -> Option<&Softmax> {
    if let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = node.op.anatomy() {
        Some(softmax)
    } else {
        None
    }
}

/// The factor that cosine and sine are multiplied by, where there is one.
fn yarn(graph: &Graph) -> Option<f64> {
    let mut factors = graph.nodes.iter().filter_map(|node| match node.op.anatomy() {
        Anatomy::Elementwise(Elementwise::Rotation(rope)) => Some(rope.magnitude()),
        _ => None,
    });
    factors.find(|factor| *factor != 1.0)
}

/// Whether a wrong row has tokens of its pass after it: after the token of a decode step comes none that it could see.
fn may_see_later(e: &Evidence<'_>) -> bool {
    e.bad_rows().any(|row| e.side.capture.steps[row.step].rows() > 1)
}

fn scaled(node: &Node, scale: f64) -> Option<Node> {
    (own(node)?.scale != scale).then(|| node.with(Op::AttnWeights(Softmax { scale })))
}

/// Normalised over the queries that see a key instead of the keys that a query sees.
fn over_queries(scale: f64, s: &Tensor<f64>, positions: &[u32]) -> (Tensor<f64>, Vec<f32>) {
    let (tokens, keys) = (s.shape[1], s.shape[2]);
    let mut y = Tensor::zeros(s.shape.clone());
    let mut bound = vec![TINY as f32; y.data.len()];
    let few = 6.0 + (tokens.max(1) as f64).log2();
    for head in 0..s.shape[0] {
        let at = |t: usize, n: usize| (head * tokens + t) * keys + n;
        for n in 0..keys {
            let sees = |t: &usize| n <= positions[*t] as usize;
            let z = |t: usize| s.data[at(t, n)] * scale;
            let largest = (0..tokens).filter(sees).map(z).fold(f64::MIN, f64::max);
            let total: f64 = (0..tokens).filter(sees).map(|t| (z(t) - largest).exp()).sum();
            for t in (0..tokens).filter(sees) {
                let v = (z(t) - largest).exp() / total;
                y.data[at(t, n)] = v;
                bound[at(t, n)] += (UNIT * v * (z(t).abs() + largest.abs() + few)) as f32;
            }
        }
    }
    (y, bound)
}

/// exp(s) without the row's maximum taken off, in f32: what overflows f32 on the way is not finite; the rest is as it should
/// be, good to roundings of the whole exponent.
fn no_maximum(scale: f64, s: &Tensor<f64>, right: (Tensor<f64>, Vec<f32>)) -> (Tensor<f64>, Vec<f32>) {
    let keys = s.shape[2].max(1);
    let (mut y, mut bound) = right;
    let rows = y.data.chunks_mut(keys).zip(bound.chunks_mut(keys));
    for ((y, bound), s) in rows.zip(s.data.chunks(keys)) {
        let seen = |y: f64| y > 0.0;
        let power = |s: f64| (s * scale).exp();
        let pairs = y.iter().zip(s).filter(|(y, _)| seen(**y));
        let total: f64 = pairs.map(|(_, s)| power(*s)).sum();
        let over = f64::from(f32::MAX);
        for ((y, b), s) in y.iter_mut().zip(bound).zip(s) {
            let z = (s * scale).abs();
            *b += (UNIT * *y * z) as f32;
            if seen(*y) && power(*s) > over {
                // inf / inf
                *y = f64::NAN;
            } else if total > over {
                *y = 0.0;
            }
        }
    }
    (y, bound)
}

/// Every weight divided by the sum over the kept lanes alone.
fn lanes((mut y, mut bound): (Tensor<f64>, Vec<f32>), kept: usize) -> (Tensor<f64>, Vec<f32>) {
    let keys = y.shape[2].max(1);
    for (y, bound) in y.data.chunks_mut(keys).zip(bound.chunks_mut(keys)) {
        let part = y.iter().zip(&*bound).enumerate().filter(|(n, _)| n % WARP < kept);
        let (sum, off) = part.fold((0.0, 0.0), |(sum, off), (_, (v, b))| (sum + v, off + f64::from(*b)));
        for (v, b) in y.iter_mut().zip(bound) {
            let (value, allowed) = (*v / sum, (f64::from(*b) + *v * off / sum) / sum);
            (*v, *b) = (value, allowed as f32);
            // A sum that may be all rounding may be 0. Beyond f32 a value is infinite, near its end it may be.
            if off >= sum {
                *b = f32::INFINITY;
            } else if value - allowed > f64::from(f32::MAX) {
                *v = f64::INFINITY;
            } else if value + allowed > f64::from(f32::MAX) {
                *b = f32::INFINITY;
            }
        }
    }
    (y, bound)
}

/// Lanes of a warp.
const WARP: usize = 32;

/// A softmax whose queries see what one at another position should see.
fn sees_as(node: &Node, other: fn(u32) -> u32) -> Option<Node> {
    let op = node.op.clone();
    Some(node.computing(move |inputs, c| {
        let positions: Vec<u32> = c.positions.iter().map(|&p| other(p)).collect();
        ops::forward_with_bound(&op, inputs, &Context { positions: &positions, ..*c })
    }))
}

fn heads(op: &Op) -> Option<&Attention> {
    if let Anatomy::Contraction(Contraction::Scores(a) | Contraction::Context(a)) = op.anatomy() {
        Some(a)
    } else {
        None
    }
}

/// Scores or context, by `op`, over a cache `[N, G, D]` that is seen in another order: element i of
/// a row is what `seen` finds for the row and i.
fn reorder(node: &Node, op: Op, seen: fn(&Tensor<f64>, usize, usize) -> f64) -> Option<Node> {
    let heads = heads(&op)?.n_kv_heads;
    Some(node.computing(move |inputs, c| {
        let cache = inputs[1];
        let (rows, d) = (cache.rows(), cache.shape[2]);
        let data = (0..rows * heads * d).map(|at| seen(cache, at / (heads * d), at % (heads * d))).collect();
        ops::forward_with_bound(&op, &[inputs[0], &Tensor { shape: vec![rows, heads, d], data }], c)
    }))
}

fn layouts(node: &Node, values: &[f64], _: &Graph) -> Option<Node> {
    match values[0] as i64 {
        0 => reorder(node, node.op.clone(), |cache, row, i| cache.data[i * cache.rows() + row]),
        // With one head the two orders are one.
        1 if heads(&node.op)?.n_kv_heads > 1 => reorder(node, node.op.clone(), |cache, row, i| {
            let d = cache.shape[2];
            cache.data[(i / d * cache.rows() + row) * d + i % d]
        }),
        _ => None,
    }
}

/// Query head h reads KV head h mod G; as many KV heads as heads, or one, leave it no choice.
fn interleaved(node: &Node, _: &[f64], _: &Graph) -> Option<Node> {
    let a = *heads(&node.op)?;
    let all = Attention { n_kv_heads: a.n_heads, ..a };
    let op = if matches!(node.op, Op::AttnScores(_)) { Op::AttnScores(all) } else { Op::AttnContext(all) };
    if !(2..a.n_heads).contains(&a.n_kv_heads) {
        return None;
    }
    reorder(node, op, |cache, row, i| {
        let (heads, d) = (cache.shape[1], cache.shape[2]);
        cache.data[(row * heads + i / d % heads) * d + i % d]
    })
}

const LAYOUT: Param = Param::new("as", "0: transposed, 1: one head after the other", 0.0).searched(&[1.0]);

/// The scale that the weights were made with: the slope of ln w over s, within rows, by least squares.
fn fitted_scale(e: &Evidence<'_>) -> Option<f64> {
    let id = e.oracle.graph.nodes[*e.node.inputs.first()?].id;
    let (mut top, mut bottom) = (0.0, 0.0);
    for row in e.bad_rows() {
        let scores = e.side.capture.steps[row.step].get(id)?;
        let s = scores.data.get(row.range.clone())?;
        let (w, ..) = e.row(row);
        let pairs: Vec<(f64, f64)> =
            s.iter().zip(w).filter(|(_, w)| **w > 1e-12).map(|(s, w)| (f64::from(*s), f64::from(*w).ln())).collect();
        let n = pairs.len().max(1) as f64;
        let mean = |f: fn(&(f64, f64)) -> f64| pairs.iter().map(f).sum::<f64>() / n;
        let (s, l) = (mean(|p| p.0), mean(|p| p.1));
        for p in &pairs {
            // A small weight carries its logarithm no worse than a large one.
            top += (p.0 - s) * (p.1 - l);
            bottom += (p.0 - s).powi(2);
        }
    }
    Some(top / bottom).filter(|s| s.is_finite())
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "attn-scale-missing",
        fits: Some(softmax),
        story: "the scores are not scaled by 1/sqrt(head_dim), so the weights are nearly one-hot",
        seen: "attention weights are nearly one-hot in every head",
        remedy: "multiply the scores by 1/sqrt(head_dim) before the softmax",
        apply: |node, _, _| scaled(node, 1.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "attn-uniform",
        fits: Some(|g, n| scores(g, n) || softmax(g, n)),
        story: "all visible keys weigh alike: the keys are not read",
        seen: "attention weights are 1/n in every row",
        remedy: "check that the scores read the keys, and that the softmax reads the scores, with the stride of the write",
        params: &[Param::new("read", "0: nothing is read, 1: the first key in the place of every other", 0.0)
            .searched(&[1.0])],
        apply: |node, values, _| match (node.op.anatomy(), values[0] as i64) {
            (Anatomy::Contraction(Contraction::Scores(_)), 0) => reorder(node, node.op.clone(), |_, _, _| 0.0),
            (Anatomy::Contraction(Contraction::Scores(_)), 1) => {
                reorder(node, node.op.clone(), |cache, _, i| cache.data[i])
            }
            (Anatomy::RowReduction(RowReduction::Exponentials(_)), 0) => scaled(node, 0.0),
            _ => None,
        },
        entire: true,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "mask-missing",
        fits: Some(softmax),
        story: "the causal mask is left out: a query sees the tokens after it",
        seen: "the prefill is wrong at all but its last position, decode steps are right",
        remedy: "mask the keys after the query's position before the softmax",
        apply: |node, _, _| sees_as(node, |_| u32::MAX),
        propose: Some(|e| if may_see_later(e) { vec![Vec::new()] } else { Vec::new() }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "mask-off-by-one",
        fits: Some(softmax),
        story: "the causal mask is off by one: {by}",
        seen: "the last position of the prefill is right with 1; no position but the first with -1",
        remedy: "a query at position p sees the keys 0 to p, p included",
        params: &[Param::new("by", "1: queries see the next token too, -1: queries do not see their own token", 1.0)
            .searched(&[-1.0])],
        apply: |node, values, _| match values[0] as i64 {
            1 => sees_as(node, |p| p + 1),
            -1 => sees_as(node, |p| p.saturating_sub(1)),
            _ => None,
        },
        propose: Some(|e| each([1.0, -1.0].into_iter().filter(|by| *by < 0.0 || may_see_later(e)))),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "softmax-wrong-axis",
        fits: Some(softmax),
        story: "the softmax runs over the queries instead of the keys",
        seen: "columns of the weights sum to 1, rows do not; every weight of a decode step is 1",
        remedy: "normalise over the keys, the contiguous axis of [H, T, N]",
        apply: |node, _, _| {
            let scale = own(node)?.scale;
            Some(node.computing(move |inputs, c| over_queries(scale, inputs[0], c.positions)))
        },
        mixes_rows: true,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "softmax-no-max",
        fits: Some(softmax),
        story: "the row's maximum is not subtracted before exp, which overflows f32 beyond 88.7",
        seen: "NaN in rows whose scaled score passes 88.7; nothing at all elsewhere",
        remedy: "subtract the largest visible score of the row first",
        apply: |node, _, _| {
            let (op, scale) = (node.op.clone(), own(node)?.scale);
            Some(node.computing(move |inputs, c| no_maximum(scale, inputs[0], ops::forward_with_bound(&op, inputs, c))))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "softmax-lanes-dropped",
        fits: Some(softmax),
        story: "the sum of the softmax leaves lanes out, so that the weights sum to more than 1",
        seen: "rows of weights sum to more than 1 as soon as there are more keys than kept lanes",
        remedy: "reduce over all lanes of the warp, and over all warps of the block",
        params: &[Param::new("kept", "lanes of 32 that the sum takes", 8.0).searched(&[1.0, 2.0, 4.0, 16.0, 31.0])],
        apply: |node, values, _| {
            let (op, kept) = (node.op.clone(), values[0] as usize);
            (1..WARP)
                .contains(&kept)
                .then(|| node.computing(move |inputs, c| lanes(ops::forward_with_bound(&op, inputs, c), kept)))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "attn-scale-yarn-again",
        fits: Some(softmax),
        story: "the scores are multiplied by the square of YaRN's factor, which cosine and sine have already",
        seen: "weights a little too sharp, the same order of keys",
        remedy: "multiply cosine and sine by YaRN's factor, or the scores by its square, and not both",
        apply: |node, _, graph| scaled(node, own(node)?.scale * yarn(graph)?.powi(2)),
        of_model: true,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "attn-scale-wrong",
        fits: Some(softmax),
        story: "the scores are scaled by another factor than 1/sqrt(head_dim)",
        seen: "weights too sharp or too flat, the same order of keys",
        remedy: "scale by 1/sqrt(head_dim), where head_dim is the length of one head: not of all heads, nor of a head that is padded",
        params: &[Param::new("scale", "factor of the scores", 0.1)],
        apply: |node, values, _| {
            let scale = values[0];
            // No scale at all, and nothing read, have names of their own.
            let named = scale == 0.0 || (scale - 1.0).abs() < 1e-3;
            if named { None } else { scaled(node, scale) }
        },
        of_model: true,
        propose: Some(|e| each(fitted_scale(e).map(digits).into_iter().flatten())),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gqa-head-map",
        fits: Some(|g, n| scores(g, n) || context(g, n)),
        story: "query head h reads KV head h mod n_kv instead of h / group",
        seen: "the first and the last head are right, heads between are not",
        remedy: "divide the query head by n_heads / n_kv_heads",
        // A single head that reads another has no rule.
        entire: true,
        apply: interleaved,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "v-cache-layout",
        fits: Some(context),
        story: "the values are read in another order than they are cached in: {as}",
        seen: "the weights are right and the context is not; with one cached row it may be right",
        remedy: "read V with the strides of its write; if V is stored transposed, K has other strides",
        params: &[LAYOUT],
        apply: layouts,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "k-cache-layout",
        fits: Some(scores),
        story: "the keys are read in another order than they are cached in: {as}",
        seen: "cache and queries are right and the scores are not",
        remedy: "read K with the strides of its write",
        params: &[LAYOUT],
        apply: layouts,
        ..Mutation::PLAIN
    },
];
