//! The right sums in f16.

use super::places::scores;
use super::{Explains, Mutation, Param};
use half::f16;
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::anatomy::Contraction;
use qdiff_engine::ops::{self, Anatomy, Context, Tensor, UNIT};
use rayon::prelude::*;

/// Terms that are summed before the sum is rounded: what one tensor-core instruction takes.
const CHUNK: usize = 16;

/// Unit roundoff of f16 over that of f32.
const COARSER: f64 = 8192.0;

fn round(x: f64) -> f64 {
    // By way of f32: `from_f64` looks at the upper 32 bits alone.
    f16::from_f32(x as f32).to_f64()
}

/// The products of a linear layer, rounded to f16 after every chunk of terms.
fn accumulate(x: &Tensor<f64>, c: &Context<'_>, y: &mut Tensor<f64>) {
    let (n, m) = c.extent(0);
    let tokens = x.rows();
    let columns: Vec<Vec<f64>> = (0..m)
        .into_par_iter()
        .map(|o| {
            let mut w = vec![0f32; n];
            c.rows(0, o, &mut w);
            let dot = |t: usize| {
                let chunks = w.chunks(CHUNK).zip(x.row(t).chunks(CHUNK));
                chunks.fold(0.0, |sum, (w, x)| {
                    let part: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
                    round(sum + part)
                })
            };
            (0..tokens).map(dot).collect()
        })
        .collect();
    for (o, column) in columns.iter().enumerate() {
        for (t, v) in column.iter().enumerate() {
            y.data[t * m + o] = *v;
        }
    }
}

/// An inner product, of scores or of a linear layer, that is accumulated in f16: only in steps of so
/// many tokens, or, with 0, in all.
fn in_half(node: &Node, tokens: usize) -> Option<Node> {
    let op = node.op.clone();
    Some(node.computing(move |inputs, c| {
        let (mut y, bound) = ops::forward_with_bound(&op, inputs, c);
        // A step's tokens are its positions; a linear stage that is judged row
        // by row has none, and is judged as if the fault were always there.
        if tokens > 0 && !c.positions.is_empty() && c.positions.len() != tokens {
            return (y, bound);
        }
        let terms = if let Anatomy::Contraction(Contraction::Scores(a)) = op.anatomy() {
            y.data.iter_mut().for_each(|v| *v = round(*v));
            a.head_dim
        } else {
            accumulate(inputs[0], c, &mut y);
            inputs[0].row_len()
        };
        let largest = f16::MAX.to_f64();
        let coarse = y.data.iter().zip(&bound).map(|(y, b)| {
            let reach = f64::from(*b) / (UNIT * (terms as f64).sqrt());
            if reach > largest && (y.is_finite() || reach < 2.0 * y.abs()) {
                // The order decides whether a partial sum overflows.
                f32::INFINITY
            } else {
                (COARSER * f64::from(*b)) as f32
            }
        });
        let coarse = coarse.collect();
        (y, coarse)
    }))
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "kq-f16-overflow",
        fits: Some(scores),
        story: "the scores are kept in f16: coarse everywhere, and infinite where |q.k| passes 65504",
        seen: "NaN after the softmax, text of one repeated character; errors of 1e-3 where nothing overflows",
        remedy: "accumulate q.k in f32 (GGML_PREC_F32), or scale q before the product",
        explains: Explains::Rounding,
        apply: |node, _, _| in_half(node, 0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "ffn-down-f16-overflow",
        fits: Some(|_, n| {
            matches!((n.op.anatomy(), n.role), (Anatomy::Contraction(Contraction::Weight(None)), Role::FfnOutput))
        }),
        story: "the sums of the down projection are kept in f16, where they are coarse and overflow at 65504",
        seen: "infinity or coarse values, often at one batch size alone",
        remedy: "accumulate in f32, at every batch size",
        params: &[Param::new("tokens", "only in steps of so many tokens; 0: in all", 0.0)],
        explains: Explains::Rounding,
        apply: |node, values, _| in_half(node, values[0] as usize),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "compute-16f",
        fits: Some(|_, n| n.op.anatomy().is_layer() && n.role != Role::FfnOutput),
        story: "sums are accumulated in f16 (COMPUTE_16F): small errors everywhere, larger in long sums",
        seen: "errors of 1e-3 in every product; FAST_16F only rounds the operands",
        remedy: "use CUBLAS_COMPUTE_32F, for operands of every type",
        explains: Explains::Rounding,
        apply: |node, _, _| in_half(node, 0),
        ..Mutation::PLAIN
    },
];
