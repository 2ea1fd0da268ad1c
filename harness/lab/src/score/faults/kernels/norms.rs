//! Norms: whose squares, over how many, with which weight.

use super::super::{Spot, norm};
use super::rounding::bf16;
use super::{Cell, KernelFault, bug, given, layer_before, patch};
use qdiff_engine::model::{Graph, Model, Node, Role};
use qdiff_engine::ops::Op;

/// Norms of whole rows of the residual stream.
fn whole(_: &Graph, n: &Node, _: &Model) -> bool {
    norm(n, &[Role::AttnInput, Role::FfnInput, Role::HeadInput])
}

fn squares(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()
}

/// `x w(o) / root(row of the token's x)` where `here`.
fn normed(
    s: &mut Spot<'_>, x: &[f32], here: impl Fn(Cell) -> bool, row: impl Fn(usize) -> usize,
    inverse: impl Fn(&[f32]) -> f64, weight: impl Fn(&[f32], Cell) -> f32,
) {
    let (w, width) = (s.values(s.weight()), s.width());
    let scales: Vec<f64> = (0..s.positions.len())
        .map(|t| {
            let from = row(t) * width;
            inverse(&x[from..from + width])
        })
        .collect();
    patch(s, |c, at, v| if here(c) { (f64::from(x[at] * weight(&w, c)) * scales[c.t]) as f32 } else { v });
}

fn root(eps: f64, squares: f64, n: f64) -> f64 {
    1.0 / (squares / n + eps).sqrt()
}

/// With another reciprocal root: of a row and epsilon.
fn rooted(s: &mut Spot<'_>, here: impl Fn(Cell) -> bool, inverse: fn(&[f32], f64) -> f64) {
    let (inputs, eps) = (s.inputs, s.config.rms_eps);
    normed(s, &inputs[0].data, here, |t| t, |x| inverse(x, eps), |w, c| w[c.o]);
}

/// With the root of the row that `row` names.
fn of_row(s: &mut Spot<'_>, row: impl Fn(usize) -> usize) {
    let (inputs, eps) = (s.inputs, s.config.rms_eps);
    normed(s, &inputs[0].data, |_| true, row, |x| root(eps, squares(x), x.len() as f64), |w, c| w[c.o]);
}

/// With another weight for a column.
fn weighted(s: &mut Spot<'_>, weight: impl Fn(&[f32], Cell) -> f32) {
    let (inputs, eps) = (s.inputs, s.config.rms_eps);
    normed(s, &inputs[0].data, |_| true, |t| t, |x| root(eps, squares(x), x.len() as f64), weight);
}

/// The usual estimate of a reciprocal root from the bits, with one step of Newton's.
fn quick_root(x: f32) -> f32 {
    let guess = f32::from_bits(0x5f37_59df - (x.to_bits() >> 1));
    guess * (1.5 - 0.5 * x * guess * guess)
}

/// The row from before attention was added.
fn before_attention(s: &mut Spot<'_>) {
    let sum = |n: &Node| n.op == Op::Residual && n.role == Role::FfnOutput;
    let x =
        if s.node.id.layer == Some(0) { given(s, None, |n| n.op == Op::Embed) } else { given(s, layer_before(s), sum) };
    let eps = s.config.rms_eps;
    if let Some(x) = x {
        normed(s, x, |_| true, |t| t, |x| root(eps, squares(x), x.len() as f64), |w, c| w[c.o]);
    }
}

/// With the weight of the other norm of the layer.
fn other_weight(s: &mut Spot<'_>) {
    let role = if s.node.role == Role::AttnInput { Role::FfnInput } else { Role::AttnInput };
    if let Some(other) = s.other(s.node.id.layer, role) {
        let other = s.values(&other.weights[0].name);
        weighted(s, |_, c| other[c.o]);
    }
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "norm-lacks-last-warp",
        "the sum of squares leaves out the last of 8 warps, and with it the last 32 of every 256 values",
        whole,
        |s| {
            rooted(
                s,
                |_| true,
                |x, eps| {
                    let part: f64 =
                        x.iter().enumerate().filter(|(i, _)| i % 256 < 224).map(|(_, v)| f64::from(v * v)).sum();
                    root(eps, part, x.len() as f64)
                },
            )
        },
    ),
    bug(
        "norm-divides-by-one-less",
        "the mean of the squares is taken over one value less than there are",
        whole,
        |s| rooted(s, |_| true, |x, eps| root(eps, squares(x), x.len() as f64 - 1.0)),
    ),
    bug(
        "norm-reciprocal-root-estimated",
        "the reciprocal root is the estimate from the bits of the number with one step of refinement",
        whole,
        |s| rooted(s, |_| true, |x, eps| f64::from(quick_root((squares(x) / x.len() as f64 + eps) as f32))),
    ),
    bug(
        "norm-last-vector-of-squares-twice",
        "the last 24 values are squared once more, as the rest of a tile that begins before the end of the one before",
        whole,
        |s| rooted(s, |_| true, |x, eps| root(eps, squares(x) + squares(&x[x.len() - 24..]), x.len() as f64)),
    ),
    bug("norm-squares-in-bf16", "squares are rounded to bf16 and summed in it, 32 at a time", whole, |s| {
        rooted(
            s,
            |_| true,
            |x, eps| {
                let mut sum = 0f32;
                for chunk in x.chunks(32) {
                    sum = bf16(sum + bf16(squares(chunk) as f32));
                }
                root(eps, f64::from(sum), x.len() as f64)
            },
        )
    }),
    bug("norm-weight-in-bf16", "the weight of the norm is kept in bf16", whole, |s| weighted(s, |w, c| bf16(w[c.o]))),
    bug(
        "norm-root-of-row-before",
        "odd rows are divided by the root mean square of the row before, for which the shared sum was made",
        |_, n, _| norm(n, &[Role::AttnInput, Role::FfnInput]),
        |s| of_row(s, |t| t - t % 2),
    ),
    bug(
        "norm-left-out-when-decoding",
        "when a single token is decoded, the row is multiplied with the weight and divided by nothing",
        whole,
        |s| rooted(s, Cell::decodes, |_, _| 1.0),
    ),
    bug("norm-weight-shifted", "every value is multiplied with the weight of the next column", whole, |s| {
        weighted(s, |w, c| w[(c.o + 1) % c.width])
    }),
    bug(
        "norm-weight-of-the-other-norm",
        "the weights of the two norms of the layer are exchanged",
        |_, n, _| norm(n, &[Role::AttnInput, Role::FfnInput]),
        other_weight,
    ),
    bug(
        "norm-leaves-tail-as-it-was",
        "in place, columns beyond the last whole tile of 96 are not normalised",
        whole,
        |s| {
            let inputs = s.inputs;
            patch(s, |c, at, v| if c.tail(96) { inputs[0].data[at] } else { v });
        },
    ),
    bug(
        "norm-of-row-before-attention",
        "the norm reads the residual stream from before attention was added to it",
        |_, n, _| norm(n, &[Role::FfnInput]),
        before_attention,
    ),
    bug(
        "norm-over-half-rows",
        "each half of a row is normalised alone, as by two blocks that exchange nothing",
        whole,
        |s| {
            let (inputs, eps) = (s.inputs, s.config.rms_eps);
            let (w, half) = (s.values(s.weight()), s.width() / 2);
            let scales: Vec<f64> = inputs[0].data.chunks(half).map(|x| root(eps, squares(x), x.len() as f64)).collect();
            patch(s, |c, at, _| (f64::from(inputs[0].data[at] * w[c.o]) * scales[at / half]) as f32);
        },
    ),
];
