//! Matrix products: tiles, lanes, shares of the sum, tails, strides; and biases.

use super::super::Spot;
use super::super::linear;
use super::rounding::bf16;
use super::{Cell, KernelFault, bug, counted, dot, given, moved, patch, product, product_of};
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::Op;

fn bias(node: &Node, roles: &[Role]) -> bool {
    node.op == Op::Bias && roles.contains(&node.role)
}

/// Terms that a lane of a warp adds up which reads four values at a time.
fn lane(i: usize) -> usize {
    i % 128 / 4
}

fn once(wanted: bool) -> f64 {
    f64::from(u8::from(wanted))
}

/// Rows of x that are taken to lie four values closer than they do.
fn stride_short(s: &mut Spot<'_>) {
    let inputs = s.inputs;
    let x = &inputs[0].data;
    product(
        s,
        |c| c.t > 0,
        |c, row, w| {
            let start = c.t * (row.len() - 4);
            dot(&x[start..start + row.len()], w)
        },
    );
}

/// The tail of the sum takes the weights' last 32 with the first inputs.
fn tail_from_start(s: &mut Spot<'_>) {
    product(
        s,
        |_| true,
        |_, x, w| {
            let whole = x.len() - 32;
            dot(&x[..whole], &w[..whole]) + dot(&x[..32], &w[whole..])
        },
    );
}

/// Every second tile of 64 outputs goes on from the sums of the one before.
fn sums_kept(s: &mut Spot<'_>) {
    let right = s.out.clone();
    patch(s, |c, at, v| if c.o / 64 % 2 == 1 { v + right[at - 64] } else { v });
}

/// The bias at the column that `from` names, as often as `times` says.
fn biased(s: &mut Spot<'_>, weight: &str, from: impl Fn(Cell) -> usize, times: impl Fn(Cell) -> f32) {
    let (inputs, b) = (s.inputs, s.values(weight));
    patch(s, |c, at, _| inputs[0].data[at] + times(c) * b[from(c)]);
}

fn own_biased(s: &mut Spot<'_>, from: impl Fn(Cell) -> usize, times: impl Fn(Cell) -> f32) {
    biased(s, s.weight(), from, times);
}

/// With the bias of the keys.
fn key_biased(s: &mut Spot<'_>) {
    if let Some(other) = s.other(s.node.id.layer, Role::Key) {
        biased(s, &other.weights[0].name, |c| c.o, |_| 1.0);
    }
}

/// The product with what the norm read.
fn unnormed(s: &mut Spot<'_>) {
    let sum = |n: &Node| n.op == Op::Residual && n.role == Role::AttnOutput;
    if let Some(x) = given(s, s.node.id.layer, sum) {
        let node = s.node;
        product_of(s, (x, &node.weights[0].name, |o| o), |_| true, |_, x, w| dot(x, w));
    }
}

/// Shares of a quarter of the inputs, each rounded before they are added.
fn shares_rounded(s: &mut Spot<'_>) {
    product(
        s,
        |_| true,
        |_, x, w| {
            let share = x.len() / 4;
            let of =
                |k: usize| f64::from(bf16(dot(&x[k * share..(k + 1) * share], &w[k * share..(k + 1) * share]) as f32));
            (0..4).map(of).sum()
        },
    );
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "inputs-unzipped-in-eights",
        "of every eight inputs the even ones are read before the odd ones, the weights in their own order",
        |_, n, _| linear(n, &[Role::Gate, Role::AttnOutput]),
        |s| {
            product(
                s,
                |_| true,
                |_, x, w| {
                    (0..x.len())
                        .map(|i| f64::from(w[i]) * f64::from(x[i / 8 * 8 + [0, 2, 4, 6, 1, 3, 5, 7][i % 8]]))
                        .sum()
                },
            )
        },
    ),
    bug(
        "lane-takes-another-lanes-inputs",
        "of every 16 inputs the sixth is read in the place of the twelfth too",
        |_, n, _| linear(n, &[Role::Query, Role::FfnOutput]),
        |s| {
            product(
                s,
                |_| true,
                |_, x, w| {
                    let from = |i: usize| if i % 16 == 11 { i - 6 } else { i };
                    (0..x.len()).map(|i| f64::from(w[i]) * f64::from(x[from(i)])).sum()
                },
            )
        },
    ),
    bug(
        "shares-in-bf16",
        "four warps sum a quarter of the inputs each, and hand their share over in bf16",
        |_, n, _| linear(n, &[Role::Up, Role::Query]),
        shares_rounded,
    ),
    bug(
        "rows-shifted-from-one-on",
        "from output 100 on every row of weights is the next one",
        |_, n, _| linear(n, &[Role::Logits, Role::Gate]),
        |s| moved(s, |c| (c.o >= 100 && c.o + 1 < c.width).then_some((c.t, c.o + 1))),
    ),
    bug(
        "gemv-last-lane-lost",
        "lane 31 of each warp takes no part in the reduction: of every 128 inputs the last 4 are not summed",
        |_, n, _| linear(n, &[Role::Query, Role::FfnOutput]),
        |s| counted(s, |_| true, |i, _| once(lane(i) < 31)),
    ),
    bug(
        "gemv-first-lane-twice",
        "lane 0 adds its share after the reduction that had it already: of every 128 inputs the first 4 count twice",
        |_, n, _| linear(n, &[Role::Up]),
        |s| counted(s, |_| true, |i, _| if lane(i) == 0 { 2.0 } else { 1.0 }),
    ),
    bug(
        "split-k-last-share-lost",
        "the sum is split in four shares and the last is not added, in outputs from the second tile of 64 on",
        |_, n, _| linear(n, &[Role::AttnOutput, Role::Key]),
        |s| counted(s, |c| c.o >= 64, |i, n| once(i < n / 4 * 3)),
    ),
    bug(
        "split-k-halves-overwrite",
        "in odd tiles of 16 outputs the second half of the sum overwrites the first instead of being added",
        |_, n, _| linear(n, &[Role::Gate]),
        |s| counted(s, |c| c.o / 16 % 2 == 1, |i, n| once(i >= n / 2)),
    ),
    bug(
        "k-tail-left-out",
        "the loop over inputs takes 48 at a time and the rest is never summed",
        |_, n, _| linear(n, &[Role::AttnOutput, Role::FfnOutput]),
        |s| counted(s, |_| true, |i, n| once(i < n / 48 * 48)),
    ),
    bug(
        "k-tail-reads-first-tile",
        "for the last 32 inputs the address of x is not advanced, and the first 32 are multiplied again",
        |_, n, _| linear(n, &[Role::Value]),
        tail_from_start,
    ),
    bug(
        "k-tile-twice-and-next-never",
        "of two tiles of 32 inputs in flight the first is multiplied twice and the second never",
        |_, n, _| linear(n, &[Role::FfnOutput]),
        |s| counted(s, |_| true, |i, _| if i < 32 { 2.0 } else { once(i >= 64) }),
    ),
    bug(
        "tail-tokens-lack-k-tile",
        "tokens beyond the last whole group of four go another path, which leaves out the last 32 inputs",
        |_, n, _| linear(n, &[Role::Gate, Role::Query]),
        |s| counted(s, |c| c.t >= c.tokens / 4 * 4, |i, n| once(i + 32 < n)),
    ),
    bug(
        "token-pair-shares-row",
        "with more than 8 tokens a thread takes two, and reads the first one's row for both",
        |_, n, _| linear(n, &[Role::Up, Role::Value]),
        |s| moved(s, |c| (c.tokens > 8 && c.t % 2 == 1).then(|| (c.t - 1, c.o))),
    ),
    bug(
        "fragment-quarters-exchanged",
        "in every tile of 16 outputs the second and the third four change places when they are written",
        |_, n, _| linear(n, &[Role::Gate]),
        |s| {
            moved(s, |c| match c.o % 16 {
                4..8 => Some((c.t, c.o + 4)),
                8..12 => Some((c.t, c.o - 4)),
                _ => None,
            })
        },
    ),
    bug(
        "tile-written-across",
        "whole tiles of 8 tokens by 8 outputs are written transposed",
        |_, n, _| linear(n, &[Role::Up, Role::AttnOutput]),
        |s| moved(s, |c| (c.t < c.tokens / 8 * 8).then(|| (c.t / 8 * 8 + c.o % 8, c.o / 8 * 8 + c.t % 8))),
    ),
    bug(
        "sums-not-cleared",
        "a block that computes two tiles of 64 outputs begins the second with the sums of the first",
        |_, n, _| linear(n, &[Role::Query, Role::Key]),
        sums_kept,
    ),
    bug(
        "activation-stride-short",
        "rows of x are taken to lie four values closer than they do, so row t begins 4t values early",
        |_, n, _| linear(n, &[Role::Value, Role::FfnOutput]),
        stride_short,
    ),
    bug(
        "gemv-last-warp-lost",
        "when a single token is decoded, the sum over 8 warps leaves out the last, and with it the last 32 of every 256 inputs",
        |_, n, _| linear(n, &[Role::FfnOutput, Role::Logits]),
        |s| counted(s, Cell::decodes, |i, _| once(i % 256 < 224)),
    ),
    bug(
        "odd-outputs-repeat-even",
        "when a single token is decoded, a warp that takes two rows of weights reads the first for both",
        |_, n, _| linear(n, &[Role::Logits, Role::Up]),
        |s| moved(s, |c| (c.decodes() && c.o % 2 == 1).then(|| (c.t, c.o - 1))),
    ),
    bug(
        "last-output-tile-reread",
        "the outputs beyond the last whole tile of 96 are those of the tile before",
        |_, n, _| linear(n, &[Role::Logits, Role::Gate]),
        |s| moved(s, |c| c.tail(96).then(|| (c.t, c.o - 96))),
    ),
    bug(
        "last-token-off-by-one",
        "the row of a prompt's last token is computed from the hidden state of the token before",
        |_, n, _| linear(n, &[Role::Logits]),
        |s| moved(s, |c| c.last().then(|| (c.t - 1, c.o))),
    ),
    bug(
        "minus-in-high-half",
        "the upper 16 of every 32 inputs enter with the wrong sign, in the last 32 outputs",
        |_, n, _| linear(n, &[Role::Key, Role::AttnOutput]),
        |s| counted(s, |c| c.o + 32 >= c.width, |i, _| if i % 32 < 16 { 1.0 } else { -1.0 }),
    ),
    bug(
        "bias-per-share",
        "both shares of a split sum begin with the bias, which is therefore added twice",
        |_, n, _| bias(n, &[Role::Query]),
        |s| own_biased(s, |c| c.o, |_| 2.0),
    ),
    bug(
        "value-takes-key-bias",
        "the bias of the keys is added to the values",
        |_, n, _| bias(n, &[Role::Value]),
        key_biased,
    ),
    bug(
        "bias-only-in-first-token-tile",
        "tokens from the ninth of a step on get no bias",
        |_, n, _| bias(n, &[Role::Query, Role::Value]),
        |s| own_biased(s, |c| c.o, |c| if c.t < 8 { 1.0 } else { 0.0 }),
    ),
    bug(
        "bias-of-first-head",
        "every head is given the bias of head 0",
        |_, n, _| bias(n, &[Role::Key, Role::Query]),
        |s| {
            let d = s.config.head_dim;
            own_biased(s, |c| c.o % d, |_| 1.0);
        },
    ),
    bug(
        "bias-subtracted-in-tail",
        "columns of the last 32 have the bias taken off instead of added",
        |_, n, _| bias(n, &[Role::Value]),
        |s| own_biased(s, |c| c.o, |c| if c.o + 32 >= c.width { -1.0 } else { 1.0 }),
    ),
    bug(
        "feed-forward-reads-unnormed",
        "the projection reads the sum before the norm instead of the normed row",
        |_, n, _| linear(n, &[Role::Up]),
        unnormed,
    ),
];
