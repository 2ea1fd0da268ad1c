//! Element by element: sums of the residual stream, the activation, and rows of the embedding table.

use super::super::{Spot, residual};
use super::{Cell, KernelFault, bug, given, layer_before, patch, stale};
use qdiff_engine::model::{Graph, Model, Node, Role, WeightSource as _};
use qdiff_engine::ops::Op;

fn sums(_: &Graph, n: &Node, _: &Model) -> bool {
    residual(n, &[Role::AttnOutput, Role::FfnOutput])
}

fn swiglu(_: &Graph, n: &Node, _: &Model) -> bool {
    n.op == Op::SwiGlu
}

fn embed(_: &Graph, n: &Node, _: &Model) -> bool {
    n.op == Op::Embed
}

/// `f(c, at, a, b)` of the two operands.
fn paired(s: &mut Spot<'_>, f: impl Fn(Cell, usize, &[f32], &[f32]) -> f32) {
    let inputs = s.inputs;
    patch(s, |c, at, _| f(c, at, &inputs[0].data, &inputs[1].data));
}

fn silu(g: f32) -> f32 {
    g / (1.0 + (-g).exp())
}

/// The layer's output with what the layer read in the place of what stands after attention.
fn from_before_attention(s: &mut Spot<'_>) {
    let other = if s.node.id.layer == Some(0) {
        given(s, None, |n| n.op == Op::Embed)
    } else {
        given(s, layer_before(s), |n| residual(n, &[Role::FfnOutput]))
    };
    if let Some(other) = other {
        paired(s, |_, at, a, _| a[at] + other[at]);
    }
}

/// The residual stream from before, with the normed row in the place of the raw one where `here`.
fn of_normed(s: &mut Spot<'_>, here: impl Fn(Cell) -> bool) {
    let role = if s.node.role == Role::AttnOutput { Role::AttnInput } else { Role::FfnInput };
    let other = given(s, s.node.id.layer, |n| matches!(n.op, Op::RmsNorm(_)) && n.role == role);
    if let Some(other) = other {
        paired(s, |c, at, a, b| a[at] + if here(c) { other[at] } else { b[at] });
    }
}

/// Rows of the table for other ids, where `id` names one.
fn looked_up(s: &mut Spot<'_>, id: impl Fn(usize, usize) -> usize) {
    let width = s.width();
    let (_, count) = s.extent(s.weight());
    for (t, row) in s.out.chunks_mut(width).enumerate() {
        s.model.rows(&s.node.weights[0].name, id(t, s.tokens[t] as usize).min(count - 1), row);
    }
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "residual-twice-when-decoding",
        "when a single token is decoded, the residual stream is added by the product's epilogue and once more",
        sums,
        |s| paired(s, |c, at, a, b| if c.decodes() { a[at] + 2.0 * b[at] } else { a[at] + b[at] }),
    ),
    bug(
        "residual-of-row-before",
        "the last row of a step of several is added to the residual stream of the row before",
        sums,
        |s| paired(s, |c, at, a, b| a[at] + b[if c.last() { at - c.width } else { at }]),
    ),
    bug(
        "residual-from-before-attention",
        "the layer's input is added, not the stream after attention",
        |_, n, _| residual(n, &[Role::FfnOutput]),
        from_before_attention,
    ),
    bug(
        "residual-missing-in-column-tail",
        "columns beyond the last whole tile of 96 are written without the residual stream",
        sums,
        |s| paired(s, |c, at, a, b| if c.tail(96) { a[at] } else { a[at] + b[at] }),
    ),
    bug(
        "residual-pair-reads-low-half",
        "odd columns are added to the residual stream of the column before, the low half of a pair",
        sums,
        |s| paired(s, |c, at, a, b| a[at] + b[at - c.o % 2]),
    ),
    bug("residual-subtracted-in-last-tile", "in the last 32 columns the sum is a difference", sums, |s| {
        paired(s, |c, at, a, b| if c.o + 32 >= c.width { b[at] - a[at] } else { a[at] + b[at] })
    }),
    bug(
        "residual-from-after-the-norm",
        "the stream that is added is the normed one, in rows from the fifth of a step on",
        sums,
        |s| of_normed(s, |c| c.t >= 4),
    ),
    bug(
        "residual-first-columns-stale",
        "the first 64 columns of a decoded token are those of the step before",
        sums,
        |s| stale(s, |c| c.tokens == 1 && c.o < 64),
    ),
    bug("swiglu-up-shifted", "every gate is multiplied with up of the next column", swiglu, |s| {
        paired(s, |c, at, g, u| silu(g[at]) * u[at + usize::from(c.o + 1 < c.width)])
    }),
    bug("swiglu-up-of-row-before", "in odd rows the gate is multiplied with up of the row before", swiglu, |s| {
        paired(s, |c, at, g, u| silu(g[at]) * u[if c.t % 2 == 1 { at - c.width } else { at }])
    }),
    bug("swiglu-gate-clamped", "the gate is clamped to 1 before the activation", swiglu, |s| {
        paired(s, |_, at, g, u| silu(g[at].min(1.0)) * u[at])
    }),
    bug(
        "swiglu-tail-not-activated",
        "columns beyond the last whole tile of 96 are the plain product of gate and up",
        swiglu,
        |s| paired(s, |c, at, g, u| if c.tail(96) { g[at] * u[at] } else { silu(g[at]) * u[at] }),
    ),
    bug(
        "swiglu-sigmoid-when-decoding",
        "when a single token is decoded, the gate's sigmoid is not multiplied with the gate",
        swiglu,
        |s| {
            paired(s, |c, at, g, u| {
                let sigmoid = 1.0 / (1.0 + (-g[at]).exp());
                u[at] * if c.decodes() { sigmoid } else { g[at] * sigmoid }
            })
        },
    ),
    bug("swiglu-exponent-sign", "the exponential is taken of g and not of -g", swiglu, |s| {
        paired(s, |_, at, g, u| g[at] / (1.0 + g[at].exp()) * u[at])
    }),
    bug(
        "swiglu-halves-exchanged-in-odd-tiles",
        "in odd tiles of 128 columns up goes through the activation and gate does not",
        swiglu,
        |s| paired(s, |c, at, g, u| if c.o / 128 % 2 == 1 { silu(u[at]) * g[at] } else { silu(g[at]) * u[at] }),
    ),
    bug(
        "swiglu-grid-of-eight-rows",
        "rows from the ninth of a step on are computed from the operands of the row 8 before",
        swiglu,
        |s| {
            paired(s, |c, at, g, u| {
                let from = if c.t >= 8 { at - 8 * c.width } else { at };
                silu(g[from]) * u[from]
            })
        },
    ),
    bug(
        "embed-odd-ids-read-even-rows",
        "rows are addressed in pairs, and an odd id reads the row of the id before",
        embed,
        |s| looked_up(s, |_, id| id & !1),
    ),
    bug("embed-replays-old-token", "a replayed graph decodes the token of the step before", embed, |s| {
        stale(s, |c| c.tokens == 1)
    }),
    bug("embed-fourth-token-takes-first-id", "of every four tokens the last takes the id of the first", embed, |s| {
        let tokens = s.tokens;
        looked_up(s, |t, id| if t % 4 == 3 { tokens[t - 3] as usize } else { id });
    }),
    bug("embed-half-blocks-exchanged", "the halves of every 32 values of a row change places", embed, |s| {
        super::moved(s, |c| Some((c.t, c.o ^ 16)))
    }),
    bug("embed-row-clamped", "ids beyond a third of the vocabulary read the row at a third", embed, |s| {
        let (_, count) = s.extent(s.weight());
        looked_up(s, |_, id| id.min(count / 3));
    }),
];
