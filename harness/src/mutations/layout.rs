//! Memory read in another order than it was written in.

use super::{Mutation, Param};
use crate::verdict::Evidence;
use qdiff_engine::model::{Graph, Node, WeightSource as _};
use qdiff_engine::ops::{Layout, Linear, Op};

fn transpose(node: &mut Node, _: &[f64], _: &Graph) -> bool {
    node.op = Op::Linear(Linear { layout: Layout::Transposed });
    true
}

/// Leading dimensions that are looked for, as what they are too large by.
const LEADING: std::ops::RangeInclusive<i64> = -1024..=1024;

/// What the leading dimension is too large by, told from the first outputs of
/// one row: each begins so much further off.
fn leading(e: &Evidence<'_>) -> Option<f64> {
    let row = e.bad_rows().next()?;
    let x = e.operand(row, 0)?;
    let (got, ..) = e.row(row);
    let name = e.node.weight.as_deref()?;
    let weights = &e.oracle.weights;
    let (n, m) = weights.extent(name);
    // Outputs 1 and 2 lie within the first rows, whatever is searched.
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
        stages: &["q_proj", "k_proj", "v_proj"],
        story: "the weight is read transposed: a GGUF row of n_in contiguous weights is taken for a column",
        seen: "Q, K or V look plausible in size and are wrong everywhere; a biased value held against an unbiased one hides it",
        remedy: "a GGUF weight is [out][in]; to cuBLAS it is column-major [in, out]: use OP_T with lda = n_in",
        apply: transpose,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "linear-weight-transposed",
        stages: &["attn_out", "ffn_gate", "ffn_up", "ffn_down"],
        story: "the weight is read transposed: a GGUF row of n_in contiguous weights is taken for a column",
        seen: "plausible size, wrong everywhere, at every position",
        remedy: "a GGUF weight is [out][in]; to cuBLAS it is column-major [in, out]: use OP_T with lda = n_in",
        apply: transpose,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "lm-head-transposed",
        stages: &["logits"],
        story: "the output projection is read transposed, so every id is wrong and none is an outlier by itself",
        seen: "one token for ever; large logits at scattered ids that move with the position; a manual dot product with the same stride confirms the wrong value",
        remedy: "output.weight is [vocab][n_embd]; to cuBLAS it is column-major [n_embd, vocab]: use OP_T with lda = n_embd",
        apply: transpose,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "lm-head-ld",
        stages: &["logits"],
        story: "the output projection is read with the wrong leading dimension: each id starts further off",
        seen: "the first ids are nearly right, later ones are not; the choice falls on ids near the end of the vocabulary",
        remedy: "the leading dimension of output.weight is n_embd",
        params: &[Param {
            name: "extra",
            help: "elements by which the leading dimension is too large",
            default: 1.0,
            search: &[],
        }],
        apply: |node, values, _| {
            let extra = values[0] as i32;
            node.op = Op::Linear(Linear { layout: Layout::Strided(extra) });
            extra != 0
        },
        propose: Some(|e| leading(e).into_iter().map(|extra| vec![extra]).collect()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "embed-transposed",
        stages: &["embed"],
        story: "the embedding table is read across: element i of a token at i * vocab + token",
        seen: "wrong from the first tensor on, and alike for neighbouring ids",
        remedy: "token_embd.weight is [vocab][n_embd]: a token's row is contiguous",
        apply: |node, _, _| {
            node.op = Op::Embed { transposed: true };
            true
        },
        ..Mutation::PLAIN
    },
];
