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

/// A ring of 8 slots: row p stands in slot p mod 8, and the others stay empty.
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

/// A decoded row is what stands in the slot before.
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
        &[
            &["token 1 before", "zero"],
            &["token 1 before", "prefill"],
            &["token 1 before", "up to position"],
            &["slot too late"],
            &["row 1 before stands there", "each row of the prefill is written 1 slot after its own"],
        ],
        both,
        slot_late,
    ),
    bug(
        "cache-ring-too-short",
        "slots are counted modulo 8: later rows overwrite the first ones, and their own slots stay empty",
        &[&["modulo 8"], &["ring", "8"], &["8 slots"]],
        keys,
        ring,
    ),
    bug(
        "cache-row-of-layer-before",
        "the rows written are those of the layer before",
        &[&["same stage of the layer before"]],
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
        &[
            &["token 1 before", "from position"],
            &["token 1 before", "decode steps"],
            &["position 23", "from position 24"],
            &["row 23 stands there, in the last row of each part"],
            &["row 23 stands there, in decode steps only"],
        ],
        both,
        slot_before_again,
    ),
    bug(
        "cache-heads-exchanged-at-odd-positions",
        "at odd positions the first and the last head change places",
        &[&["heads", "exchanged", "position is odd"], &["the head 1 further on", "position is odd"]],
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
    bug(
        "cache-values-take-keys",
        "the first head of the values is written from the rotated keys",
        &[&[".k_", "at head 0"], &["keys", "at head 0"]],
        values,
        |s| {
            let (other, d) = (given(s, s.node.id.layer, |n| rope(n, &[Role::Key])), s.config.head_dim);
            instead(s, other, |c| c.o < d);
        },
    ),
    bug(
        "cache-decode-skips-rotation",
        "when a single token is decoded, its key is cached as it was before the rotation",
        &[
            &[".k_", "from position"],
            &[".k_", "decode steps"],
            &["not rotated", "from position"],
            &["not rotated", "decode steps"],
        ],
        keys,
        |s| {
            let (graph, own) = (s.graph, s.node.inputs[0]);
            let before = graph.nodes[own].inputs[0];
            let other = given(s, s.node.id.layer, |n| n.id == graph.nodes[before].id);
            instead(s, other, Cell::decodes);
        },
    ),
    bug(
        "cache-copy-short",
        "the copy of a row stops 16 values early, and what follows stays empty",
        &[&["zeros stand there", "head 1", "48 on"], &["zeros stand there", "from column 112 on"]],
        both,
        |s| stored(s, |c, _, v| if c.o + 16 >= c.width { 0.0 } else { v }),
    ),
    bug(
        "cache-decode-overwrites-slot-1",
        "a decoded row is written to its own slot and to slot 1",
        &[
            &["last token", "at position 1", "decod"],
            &["last token", "at position 1", "later"],
            &["overwritten", "position 1"],
            &["part's last token stands there", "at position 1 and from step after which the cache was looked at 1 on"],
        ],
        keys,
        early_slot_overwritten,
    ),
    bug(
        "cache-rows-exchanged-in-fours",
        "of every four rows that a step writes the middle two change places",
        &[
            &["rows 1 apart are exchanged", "mod 4 is 1 to 2"],
            &["row whose number differs in the bits of 3 ", "mod 4 is 1 to 2"],
            &["rows", "exchanged", "middle", "4"],
        ],
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
        &[&["e4m3"]],
        values,
        |s| stored(s, |_, _, v| e4m3(v)),
    ),
    bug(
        "cache-in-int8",
        "every head of a key is cached in 8 bits under one scale",
        &[&["int8", "head"], &["int8", "64"]],
        keys,
        integers,
    ),
    bug(
        "cache-in-bf16-from-position-4",
        "rows from position 4 on are cached in bf16",
        &[&["rounded to bf16", "from position 4 on"]],
        both,
        |s| stored(s, |c, _, v| if c.p >= 4 { bf16(v) } else { v }),
    ),
];
