//! The caches: slots, heads, types, and what is copied into them.

use super::super::{Spot, rope};
use super::rounding::{bf16, e4m3, quantised};
use super::{Cell, KernelFault, bug, cell, given, layer_before};
use qdiff_engine::model::{Graph, Model, Node, Role};
use qdiff_engine::ops::Op;

fn cache(node: &Node, role: Role) -> bool {
    matches!(node.op, Op::KvCache(_)) && node.role == role
}

fn keys(_: &Graph, n: &Node, _: &Model) -> bool {
    cache(n, Role::Key)
}

fn values(_: &Graph, n: &Node, _: &Model) -> bool {
    cache(n, Role::Value)
}

fn both(_: &Graph, n: &Node, _: &Model) -> bool {
    cache(n, Role::Key) || cache(n, Role::Value)
}

/// Length of a cached row, and where the rows of this step begin.
fn rows(s: &Spot<'_>) -> (usize, usize) {
    let given = s.inputs[0].data.len();
    (given / s.positions.len(), s.out.len() - given)
}

/// Writes `f` for every element of the rows of this step: its place, its index among them, and its right value.
fn stored(s: &mut Spot<'_>, f: impl Fn(Cell, usize, f32) -> f32) {
    let (width, start) = rows(s);
    let positions = s.positions;
    for (at, v) in s.out[start..].iter_mut().enumerate() {
        *v = f(cell(positions, width, at), at, *v);
    }
}

/// Writes, of the rows of this step, the element of the row and column that `from` names.
fn misplaced(s: &mut Spot<'_>, from: impl Fn(Cell) -> Option<(usize, usize)>) {
    let inputs = s.inputs;
    stored(s, |c, _, v| from(c).map_or(v, |(t, o)| inputs[0].data[t * c.width + o]));
}

/// Writes, where `here`, what another stage gave, which is as wide.
fn instead(s: &mut Spot<'_>, other: Option<&[f32]>, here: impl Fn(Cell) -> bool) {
    let new = s.inputs[0].data.len();
    if let Some(other) = other {
        let other = &other[other.len() - new..];
        stored(s, |c, at, v| if here(c) { other[at] } else { v });
    }
}

/// In a prefill every row goes one slot further on; the first slot stays empty.
fn slot_late(s: &mut Spot<'_>) {
    let inputs = s.inputs;
    stored(s, |c, at, v| match (c.tokens, at.checked_sub(c.width)) {
        (1, _) => v,
        (_, before) => before.map_or(0.0, |b| inputs[0].data[b]),
    });
}

/// A ring of 8 slots: row p is in slot p mod 8, and the others stay empty.
fn ring(s: &mut Spot<'_>) {
    let (width, start) = rows(s);
    let new = s.out.split_off(start);
    s.out.resize(start + new.len(), 0.0);
    for (row, &p) in new.chunks(width).zip(s.positions) {
        let slot = p as usize % 8 * width;
        s.out[slot..slot + width].copy_from_slice(row);
    }
}

/// A decoded row is written at its slot and at slot 1 as well.
fn early_slot_overwritten(s: &mut Spot<'_>) {
    let (width, start) = rows(s);
    if start > width {
        s.out.copy_within(start..start + width, width);
    }
}

/// A decoded row is the content of the slot before.
fn slot_before_again(s: &mut Spot<'_>) {
    let (width, start) = rows(s);
    if start > 0 && s.positions.len() == 1 {
        s.out.copy_within(start - width..start, start);
    }
}

/// Each head of a row in 8 bits, under its own scale.
fn integers(s: &mut Spot<'_>) {
    let (_, start) = rows(s);
    let d = s.config.head_dim;
    let held: Vec<f32> = s.inputs[0].data.chunks(d).flat_map(|head| quantised(head, 127.0)).collect();
    s.out[start..].copy_from_slice(&held);
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "cache-slot-late",
        "a prefill writes every row one slot too late: slot 0 stays empty, and the last row is lost",
        both,
        slot_late,
    ),
    bug(
        "cache-ring-too-short",
        "slots are counted modulo 8: later rows overwrite the first ones, and their own slots stay empty",
        keys,
        ring,
    ),
    bug(
        "cache-row-of-layer-before",
        "the rows written are those of the layer before",
        |_, n, _| cache(n, Role::Value) && n.id.layer > Some(0),
        |s| {
            let role = s.node.role;
            let other = given(s, layer_before(s), |n| cache(n, role));
            instead(s, other, |_| true);
        },
    ),
    bug(
        "cache-decode-repeats-slot",
        "when a single token is decoded, its row is the one of the slot before",
        both,
        slot_before_again,
    ),
    bug(
        "cache-heads-exchanged-at-odd-positions",
        "at odd positions the first and the last head change places",
        |g, n, _| (cache(n, Role::Key) || cache(n, Role::Value)) && g.config.n_kv_heads > 1,
        |s| {
            let d = s.config.head_dim;
            misplaced(s, |c| {
                let (head, last) = (c.o / d, c.width / d - 1);
                let other = if head == 0 { c.o + last * d } else { c.o % d };
                (c.p % 2 == 1 && (head == 0 || head == last)).then_some((c.t, other))
            });
        },
    ),
    bug("cache-values-take-keys", "the first head of the values is written from the rotated keys", values, |s| {
        let (other, d) = (given(s, s.node.id.layer, |n| rope(n, &[Role::Key])), s.config.head_dim);
        instead(s, other, |c| c.o < d);
    }),
    bug(
        "cache-decode-skips-rotation",
        "when a single token is decoded, its key is cached as it was before the rotation",
        keys,
        |s| {
            let (graph, own) = (s.graph, s.node.inputs[0]);
            let before = graph.nodes[own].inputs[0];
            let other = given(s, s.node.id.layer, |n| n.id == graph.nodes[before].id);
            instead(s, other, Cell::decodes);
        },
    ),
    bug("cache-copy-short", "the copy of a row stops 16 values early, and what follows stays empty", both, |s| {
        stored(s, |c, _, v| if c.o + 16 >= c.width { 0.0 } else { v })
    }),
    bug(
        "cache-decode-overwrites-slot-1",
        "a decoded row is written to its own slot and to slot 1",
        keys,
        early_slot_overwritten,
    ),
    bug(
        "cache-rows-exchanged-in-fours",
        "of every four rows that a step writes the middle two change places",
        both,
        |s| {
            misplaced(s, |c| {
                let whole = c.t < c.tokens / 4 * 4;
                (whole && matches!(c.t % 4, 1 | 2)).then(|| (c.t / 4 * 4 + 3 - c.t % 4, c.o))
            });
        },
    ),
    bug(
        "cache-in-fp8",
        "values are cached in 8-bit floats with 3 bits behind the leading one, without a scale",
        values,
        |s| stored(s, |_, _, v| e4m3(v)),
    ),
    bug("cache-in-int8", "every head of a key is cached in 8 bits under one scale", keys, integers),
    bug("cache-in-bf16-from-position-4", "rows from position 4 on are cached in bf16", both, |s| {
        stored(s, |c, _, v| if c.p >= 4 { bf16(v) } else { v })
    }),
];
