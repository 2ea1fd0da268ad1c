//! Number types and approximations of products, activations and sums; what they change is small and everywhere.

use super::super::{Spot, linear, residual};
use super::rounding::{bf16, f16, mantissa, quantised, tf32};
use super::{Cell, KernelFault, bug, dot, patch, product};
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::Op;

fn swiglu(node: &Node) -> bool {
    node.op == Op::SwiGlu
}

/// The product of operands as `x` and `w` make them.
fn narrowed(s: &mut Spot<'_>, here: impl Fn(Cell) -> bool + Sync, x: fn(f32) -> f32, w: fn(f32) -> f32) {
    product(s, here, |_, a, b| a.iter().zip(b).map(|(a, b)| f64::from(x(*a)) * f64::from(w(*b))).sum());
}

/// The product with x as integers under one scale per row.
fn integer_rows(s: &mut Spot<'_>) {
    let (inputs, n) = (s.inputs, s.extent(s.weight()).0);
    let rows: Vec<Vec<f32>> = inputs[0].data.chunks(n).map(|row| quantised(row, 127.0)).collect();
    product(s, |_| true, |c, _, w| dot(&rows[c.t], w));
}

/// Sums of 64 terms each, added up in a narrow type.
fn shares_added(s: &mut Spot<'_>, narrow: fn(f32) -> f32) {
    product(
        s,
        |_| true,
        |_, x, w| {
            let mut sum = 0f32;
            for (x, w) in x.chunks(64).zip(w.chunks(64)) {
                sum = narrow(sum + narrow(dot(x, w) as f32));
            }
            f64::from(sum)
        },
    );
}

/// The gate's factor as `sigmoid` approximates it, given g.
fn gated(s: &mut Spot<'_>, silu: fn(f32) -> f32) {
    let (inputs, up) = (s.inputs, &s.inputs[1].data);
    patch(s, |_, at, _| silu(inputs[0].data[at]) * up[at]);
}

/// 2^x with x in steps of 1/64, as from a table.
fn coarse_exp(x: f32) -> f32 {
    ((x * std::f32::consts::LOG2_E * 64.0).floor() / 64.0).exp2()
}

pub(super) const FAULTS: &[KernelFault] = &[
    bug(
        "tensor-cores-in-tf32",
        "both operands of the product are cut to the 10 bits that a tensor core reads in TF32 mode",
        |_, n, _| linear(n, &[Role::Query, Role::Gate]),
        |s| narrowed(s, |_| true, tf32, tf32),
    ),
    bug(
        "activations-in-bf16",
        "activations are rounded to bf16 before the product",
        |_, n, _| linear(n, &[Role::Up, Role::AttnOutput]),
        |s| narrowed(s, |_| true, bf16, |w| w),
    ),
    bug(
        "weights-in-bf16",
        "weights are unpacked to bf16 before the product",
        |_, n, _| linear(n, &[Role::Value, Role::FfnOutput]),
        |s| narrowed(s, |_| true, |x| x, bf16),
    ),
    bug(
        "prefill-in-bf16",
        "in steps of more than 8 tokens both operands go through bf16 tensor cores",
        |_, n, _| linear(n, &[Role::Key, Role::Logits]),
        |s| narrowed(s, |c| c.tokens > 8, bf16, bf16),
    ),
    bug(
        "shares-added-in-f16",
        "sums of 64 terms are handed on and added up in f16",
        |_, n, _| linear(n, &[Role::FfnOutput, Role::Query]),
        |s| shares_added(s, f16),
    ),
    bug(
        "shares-added-in-bf16",
        "sums of 64 terms are handed on and added up in bf16",
        |_, n, _| linear(n, &[Role::AttnOutput]),
        |s| shares_added(s, bf16),
    ),
    bug(
        "one-int8-scale-per-token",
        "activations are quantised to 8 bits with one scale for the whole row",
        |_, n, _| linear(n, &[Role::Gate, Role::FfnOutput]),
        integer_rows,
    ),
    bug(
        "logits-stored-in-bf16",
        "the logits pass through a bf16 buffer",
        |_, n, _| linear(n, &[Role::Logits]),
        |s| patch(s, |_, _, v| bf16(v)),
    ),
    bug(
        "table-rows-in-bf16",
        "rows of the embedding table pass through bf16",
        |_, n, _| n.op == Op::Embed,
        |s| patch(s, |_, _, v| bf16(v)),
    ),
    bug(
        "residual-stream-in-bf16",
        "the sum is stored in bf16",
        |_, n, _| residual(n, &[Role::FfnOutput]),
        |s| patch(s, |_, _, v| bf16(v)),
    ),
    bug(
        "residual-operand-in-f16",
        "what is added to the residual stream arrives in f16",
        |_, n, _| residual(n, &[Role::AttnOutput]),
        |s| {
            let inputs = s.inputs;
            patch(s, |_, at, _| f16(inputs[0].data[at]) + inputs[1].data[at]);
        },
    ),
    bug(
        "silu-from-coarse-table",
        "the exponential of the activation comes from a table of powers of two in steps of 1/64",
        |_, n, _| swiglu(n),
        |s| gated(s, |g| g / (1.0 + coarse_exp(-g))),
    ),
    bug(
        "silu-through-fast-tanh",
        "the activation is made of a hyperbolic tangent that is good to 10 bits",
        |_, n, _| swiglu(n),
        |s| gated(s, |g| g * (0.5 + 0.5 * mantissa((0.5 * g).tanh(), 10))),
    ),
    bug(
        "swiglu-in-f16",
        "gate, up and their product are f16",
        |_, n, _| swiglu(n),
        |s| {
            let inputs = s.inputs;
            patch(s, |_, at, _| {
                let (g, u) = (f16(inputs[0].data[at]), f16(inputs[1].data[at]));
                f16(f16(g / (1.0 + (-g).exp())) * u)
            });
        },
    ),
];
