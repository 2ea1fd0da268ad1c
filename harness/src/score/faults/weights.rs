//! Weights left out, or taken for each other.

use super::{Fault, Spot, input_alone, linear, norm};
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
    Fault { cause: "qkv-bias-omitted", places: |_, n, _| n.op == Op::Bias, spoil: input_alone },
    Fault { cause: "qk-norm-omitted", places: |_, n, _| norm(n, &[Role::Query, Role::Key]), spoil: input_alone },
    Fault {
        cause: "gate-up-weights-swapped",
        places: |_, n, _| linear(n, &[Role::Gate, Role::Up]),
        spoil: gate_for_up,
    },
    Fault { cause: "tensor-taken-for-another", places: |_, n, _| linear(n, &[Role::Key, Role::Value]), spoil: k_for_v },
    Fault { cause: "tied-head-wrong", places: |g, n, _| linear(n, &[Role::Logits]) && !g.tied_head(), spoil: tied },
    Fault {
        cause: "tensor-mapped-wrong",
        places: |g, n, _| {
            let roles = [Role::Query, Role::Value, Role::AttnOutput, Role::Gate, Role::FfnOutput];
            linear(n, &roles) && g.config.n_layers > 1
        },
        spoil: next_layer,
    },
    Fault {
        cause: "tensor-not-loaded",
        places: |_, n, _| linear(n, &[Role::AttnOutput, Role::Up]),
        spoil: nothing_loaded,
    },
];
