//! The right operands, through the wrong function.

use super::{Fault, Spot, fault, input_alone, linear, norm};
use half::f16;
use qdiff_engine::model::{Graph, Model, Node, Role};
use qdiff_engine::ops::Op;

/// Normalises runs as long as the weight: `f(run, weight, out)`.
fn runs(s: &mut Spot<'_>, f: impl Fn(&[f32], &[f32], &mut [f32])) {
    let w = s.values(s.weight());
    let x = &s.inputs[0].data;
    for at in (0..x.len()).step_by(w.len()) {
        f(&x[at..at + w.len()], &w, &mut s.out[at..at + w.len()]);
    }
}

fn inverse(x: &[f32], eps: f32) -> f32 {
    let squares: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    (1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt()) as f32
}

/// The norm with another epsilon, and what `weight` makes of its weight.
fn normed(s: &mut Spot<'_>, eps: f64, weight: fn(f32) -> f32) {
    let eps = eps as f32;
    runs(s, |x, w, y| {
        let k = inverse(x, eps);
        for i in 0..x.len() {
            y[i] = x[i] * k * weight(w[i]);
        }
    });
}

fn centred(s: &mut Spot<'_>) {
    let eps = s.config.rms_eps as f32;
    runs(s, |x, w, y| {
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64;
        let apart: Vec<f32> = x.iter().map(|v| (f64::from(*v) - mean) as f32).collect();
        let k = inverse(&apart, eps);
        for i in 0..x.len() {
            y[i] = apart[i] * k * w[i];
        }
    });
}

fn act(s: &mut Spot<'_>, f: impl Fn(f64) -> f64) {
    let (gate, up) = (&s.inputs[0].data, &s.inputs[1].data);
    for i in 0..gate.len() {
        s.out[i] = (f(f64::from(gate[i])) * f64::from(up[i])) as f32;
    }
}

fn gelu(s: &mut Spot<'_>) {
    act(s, |g| {
        let z = 0.797_884_560_802_865_4 * (g + 0.044_715 * g * g * g);
        0.5 * g * (1.0 + z.tanh())
    });
}

fn operands_swapped(s: &mut Spot<'_>) {
    let (gate, up) = (&s.inputs[0].data, &s.inputs[1].data);
    for i in 0..gate.len() {
        let u = up[i];
        s.out[i] = u / (1.0 + (-u).exp()) * gate[i];
    }
}

/// What is added is what the norm of the block gave.
fn normed_added(s: &mut Spot<'_>) {
    let of_block = if s.node.role == Role::AttnOutput { Role::AttnInput } else { Role::FfnInput };
    let mut layer = s.graph.nodes.iter().filter(|n| n.id.layer == s.node.id.layer);
    let normed = layer.find(|n| norm(n, &[of_block])).and_then(|n| s.others.get(&n.id));
    let Some(normed) = normed else {
        return;
    };
    for i in 0..s.out.len() {
        s.out[i] = s.inputs[0].data[i] + normed[i];
    }
}

/// Sums kept in f16, term by term.
fn in_half(s: &mut Spot<'_>) {
    let w = s.values(s.weight());
    let (n, m) = s.extent(s.weight());
    let x = &s.inputs[0].data;
    for t in 0..s.positions.len() {
        for o in 0..m {
            let mut sum = f16::ZERO;
            for i in 0..n {
                sum = f16::from_f32(sum.to_f32() + w[o * n + i] * x[t * n + i]);
            }
            s.out[t * m + o] = sum.to_f32();
        }
    }
}

fn norms(_: &Graph, n: &Node, _: &Model) -> bool {
    matches!(n.op, Op::RmsNorm(_))
}

pub(super) const FAULTS: &[Fault] = &[
    fault("rms-weight-missing", norms, |s| normed(s, s.config.rms_eps, |_| 1.0)),
    fault("rms-weight-plus-one", norms, |s| normed(s, s.config.rms_eps, |w| w + 1.0)),
    fault("rms-mean-subtracted", norms, centred),
    fault("rms-eps-wrong", norms, |s| normed(s, 1e-5, |w| w)),
    fault("rms-eps-wrong:eps=0.01", norms, |s| normed(s, 1e-2, |w| w)),
    fault("gelu-for-silu:kind=0", |_, n, _| n.op == Op::SwiGlu, gelu),
    fault("gelu-for-silu:kind=2", |_, n, _| n.op == Op::SwiGlu, |s| act(s, |g| if g > 0.0 { g } else { 0.0 })),
    fault("gate-up-operands-swapped", |_, n, _| n.op == Op::SwiGlu, operands_swapped),
    fault("residual-missing", |_, n, _| n.op == Op::Residual, input_alone),
    fault("residual-wrong-side", |_, n, _| n.op == Op::Residual, normed_added),
    fault("ffn-down-f16-overflow", |_, n, _| linear(n, &[Role::FfnOutput]), in_half),
    fault("compute-16f", |_, n, _| linear(n, &[Role::Key, Role::Up]), in_half),
];
