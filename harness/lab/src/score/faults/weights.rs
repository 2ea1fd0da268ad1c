//! Weights left out, or taken for each other.

use super::{Fault, Spot, fault, input_alone, linear, norm};
use qdiff_engine::model::Role;
use qdiff_engine::ops::Op;

fn by(s: &mut Spot<'_>, weight: &str) {
    let w = s.values(weight);
    let (n, _) = s.extent(weight);
    s.multiply(|o| w[o * n..(o + 1) * n].to_vec());
}

/// With the weight of another stage of the layer.
fn by_role(s: &mut Spot<'_>, role: Role) {
    if let Some(other) = s.other(s.node.id.layer, role) {
        by(s, &other.weights[0].name);
    }
}

fn gate_for_up(s: &mut Spot<'_>) {
    by_role(s, if s.node.role == Role::Gate { Role::Up } else { Role::Gate });
}

fn k_for_v(s: &mut Spot<'_>) {
    by_role(s, if s.node.role == Role::Key { Role::Value } else { Role::Key });
}

fn tied(s: &mut Spot<'_>) {
    if let Some(table) = s.graph.first(Role::Embedding) {
        by(s, &table.weights[0].name);
    }
}

/// The layer after; of the last, the first.
fn next_layer(s: &mut Spot<'_>) {
    let next = s.node.id.layer.map(|own| (own + 1) % s.config.n_layers as u16);
    if let Some(other) = s.other(next, s.node.role) {
        by(s, &other.weights[0].name);
    }
}

fn nothing_loaded(s: &mut Spot<'_>) {
    let n = s.inputs[0].data.len() / s.positions.len();
    s.multiply(|_| vec![0.0; n]);
}

pub(super) const FAULTS: &[Fault] = &[
    fault("qkv-bias-omitted", |_, n, _| n.op == Op::Bias, input_alone),
    fault("qk-norm-omitted", |_, n, _| norm(n, &[Role::Query, Role::Key]), input_alone),
    fault("gate-up-weights-swapped", |_, n, _| linear(n, &[Role::Gate, Role::Up]), gate_for_up),
    fault("tensor-taken-for-another", |_, n, _| linear(n, &[Role::Key, Role::Value]), k_for_v),
    fault("tied-head-wrong", |g, n, _| linear(n, &[Role::Logits]) && !g.tied_head(), tied),
    fault(
        "tensor-mapped-wrong",
        |g, n, _| {
            let roles = [Role::Query, Role::Value, Role::AttnOutput, Role::Gate, Role::FfnOutput];
            linear(n, &roles) && g.config.n_layers > 1
        },
        next_layer,
    ),
    fault("tensor-not-loaded", |_, n, _| linear(n, &[Role::AttnOutput, Role::Up]), nothing_loaded),
];
