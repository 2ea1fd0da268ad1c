//! Buffers: something else stands where the value should be.

use super::super::{Spot, context, linear, norm, residual, rope, scores, softmax};
use super::{Cell, KernelFault, bug, given, layer_before, moved_pairs, patch, stale};
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::Op;

fn bias(n: &Node, role: Role) -> bool {
    n.op == Op::Bias && n.role == role
}

/// Where `here`, what another stage has at the place that `from` names: of a cell and that stage's width.
fn overlaid(s: &mut Spot<'_>, other: Option<&[f32]>, here: impl Fn(Cell) -> bool, from: impl Fn(Cell, usize) -> usize) {
    if let Some(other) = other {
        let width = other.len() / s.positions.len();
        patch(s, |c, _, v| if here(c) { other[c.t * width + from(c, width)] } else { v });
    }
}

fn same_column(c: Cell, _: usize) -> usize {
    c.o
}

/// The last row of the step before stands where `here`, of scores or weights: as many keys of it as there were.
fn planes_stale(s: &mut Spot<'_>, here: impl Fn(usize) -> bool) {
    let Some(old) = s.old else { return };
    let (heads, keys) = (s.config.n_heads, s.shape[2]);
    if s.positions.len() > 1 || old.len() < heads * (keys - 1) {
        return;
    }
    let rows = old.len() / heads / (keys - 1);
    for h in (0..heads).filter(|h| here(*h)) {
        let row = (h * rows + rows - 1) * (keys - 1);
        s.out[h * keys..(h + 1) * keys - 1].copy_from_slice(&old[row..row + keys - 1]);
    }
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "buffer-of-other-norm",
        "the wrong one of two alternating buffers is read: it holds the norm of the layer before",
        |_, n, _| norm(n, &[Role::AttnInput]) && n.id.layer > Some(0),
        |s| {
            let other = given(s, layer_before(s), |n| norm(n, &[Role::FfnInput]));
            overlaid(s, other, |_| true, same_column);
        },
    ),
    bug(
        "query-tail-runs-into-keys",
        "the projection of the queries is written one tile too far, over the first 32 keys of each row",
        |_, n, _| bias(n, Role::Key),
        |s| {
            let other = given(s, s.node.id.layer, |n| bias(n, Role::Query));
            overlaid(s, other, |c| c.o < 32, |c, width| width - 32 + c.o);
        },
    ),
    bug(
        "up-overwritten-by-gate-in-last-row",
        "the last row of a step holds the gate instead of up",
        |_, n, _| linear(n, &[Role::Up]),
        |s| {
            let other = given(s, s.node.id.layer, |n| linear(n, &[Role::Gate]));
            overlaid(s, other, |c| c.t + 1 == c.tokens, same_column);
        },
    ),
    bug(
        "values-are-keys-when-decoding",
        "when a single token is decoded, the buffer of the values holds the keys",
        |_, n, _| linear(n, &[Role::Value]),
        |s| {
            let other = given(s, s.node.id.layer, |n| linear(n, &[Role::Key]));
            overlaid(s, other, Cell::decodes, same_column);
        },
    ),
    bug(
        "output-overwritten-by-its-operand",
        "the first 128 columns hold what the product read, whose buffer overlaps",
        |_, n, _| linear(n, &[Role::FfnOutput, Role::AttnOutput]),
        |s| {
            let inputs = s.inputs;
            overlaid(s, Some(&inputs[0].data), |c| c.o < 128, same_column);
        },
    ),
    bug(
        "gate-tile-from-step-before",
        "in a decoded step the columns from 64 to 127 keep what the step before left there",
        |_, n, _| linear(n, &[Role::Gate, Role::Query]),
        |s| stale(s, |c| c.tokens == 1 && c.o / 64 == 1),
    ),
    bug(
        "logits-added-to-old",
        "a decoded step's logits are added to those of the step before: the product runs with beta = 1",
        |_, n, _| linear(n, &[Role::Logits]),
        |s| {
            let (old, width) = (s.old, s.width());
            let Some(old) = old.filter(|_| s.positions.len() == 1) else { return };
            let row = &old[old.len() - width..];
            patch(s, |c, _, v| v + row[c.o]);
        },
    ),
    bug(
        "scores-of-layer-before",
        "the last head keeps the scores of the layer before",
        |_, n, _| scores(n) && n.id.layer > Some(0),
        |s| {
            let last = s.out.len() / s.config.n_heads * (s.config.n_heads - 1);
            if let Some(other) = given(s, layer_before(s), scores) {
                s.out[last..].copy_from_slice(&other[last..]);
            }
        },
    ),
    bug(
        "scores-stale-in-first-head",
        "in a decoded step the first head keeps the scores of the step before",
        |_, n, _| scores(n),
        |s| planes_stale(s, |h| h == 0),
    ),
    bug(
        "weights-row-of-another-head",
        "in the last row of a step, head 0 writes over head 1",
        |_, n, _| softmax(n),
        |s| moved_pairs(s, |p| (p.h == 1 && p.t + 1 == p.tokens).then_some((0, p.t, p.n))),
    ),
    bug(
        "context-stale-in-first-head",
        "in a decoded step the first head keeps the context of the step before",
        |_, n, _| context(n),
        |s| {
            let d = s.config.head_dim;
            stale(s, |c| c.tokens == 1 && c.o < d);
        },
    ),
    bug(
        "stream-not-updated-in-last-row",
        "the last row of a step is the residual stream as it was, without what should be added",
        |_, n, _| residual(n, &[Role::AttnOutput]),
        |s| {
            let inputs = s.inputs;
            overlaid(s, Some(&inputs[1].data), Cell::last, same_column);
        },
    ),
    bug(
        "keys-rotated-are-queries",
        "keys are read from the buffer of the rotated queries, heads in order",
        |_, n, _| rope(n, &[Role::Key]),
        |s| {
            let other = given(s, s.node.id.layer, |n| rope(n, &[Role::Query]));
            overlaid(s, other, |_| true, same_column);
        },
    ),
    bug(
        "hidden-tile-not-cleared",
        "columns from 128 to 159 of tokens from the sixth on hold what the tile of token 0 left",
        |_, n, _| n.op == Op::SwiGlu,
        |s| super::moved(s, |c| (c.t >= 5 && (128..160).contains(&c.o)).then_some((0, c.o))),
    ),
    bug(
        "final-norm-buffer-is-its-input",
        "in the last row of a step, the buffer of the norm still holds what it read",
        |_, n, _| norm(n, &[Role::HeadInput]),
        |s| {
            let inputs = s.inputs;
            overlaid(s, Some(&inputs[0].data), |c| c.t + 1 == c.tokens, same_column);
        },
    ),
];
