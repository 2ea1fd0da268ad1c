//! The right operands, through the wrong function.

use super::position::rounded;
use super::{Mutation, Param};
use crate::verdict::Evidence;
use qdiff_engine::model::{Node, WeightSource as _};
use qdiff_engine::ops::{Gate, NormWeight, Op, RmsNorm};

const NORMS: &[&str] = &["attn_norm", "ffn_norm", "final_norm", "q_normed", "k_normed"];

fn norm(node: &mut Node, change: impl FnOnce(&mut RmsNorm)) -> bool {
    match &mut node.op {
        Op::RmsNorm(norm) => {
            change(norm);
            true
        }
        _ => false,
    }
}

/// The epsilon that makes the scale of each run, weighted by how far it can be
/// told: 1/s² − mean(x²), with s the factor between w·x and the output.
fn fitted_eps(e: &Evidence<'_>) -> Option<f64> {
    let (Op::RmsNorm(norm), Some(name)) = (&e.node.op, &e.node.weight) else {
        return None;
    };
    let (len, _) = e.oracle.weights.extent(name);
    let mut weight = vec![0f32; len];
    e.oracle.weights.rows(name, 0, &mut weight);
    let (mut top, mut bottom) = (0.0, 0.0);
    for row in e.bad_rows() {
        let x = e.operand(row, 0)?;
        let (y, ..) = e.row(row);
        let run = x.len() / norm.groups;
        for (x, y) in x.chunks(run).zip(y.chunks(run)) {
            let (mut xy, mut xx, mut mean) = (0.0, 0.0, 0.0);
            for ((x, y), w) in x.iter().zip(y).zip(&weight) {
                let weighted = f64::from(*x) * f64::from(*w);
                xy += weighted * f64::from(*y);
                xx += weighted * weighted;
                mean += f64::from(*x).powi(2) / run as f64;
            }
            let eps = (xx / xy).powi(2) - mean;
            if eps.is_finite() && mean > 0.0 {
                top += eps / (mean * mean);
                bottom += 1.0 / (mean * mean);
            }
        }
    }
    Some(top / bottom).filter(|eps| eps.is_finite() && *eps >= 0.0)
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "rms-weight-missing",
        stages: NORMS,
        story: "the norm's weight is not multiplied in",
        seen: "every row has a root mean square of 1",
        remedy: "multiply the normalised value by the norm's weight",
        apply: |node, _, _| norm(node, |n| n.weight = NormWeight::Missing),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rms-weight-plus-one",
        stages: NORMS,
        story: "the norm multiplies by 1 + weight, as Gemma does",
        seen: "the output is too large by the normalised input",
        remedy: "Qwen multiplies by the weight itself",
        apply: |node, _, _| norm(node, |n| n.weight = NormWeight::PlusOne),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rms-mean-subtracted",
        stages: NORMS,
        story: "the mean is subtracted, as LayerNorm does",
        seen: "the normalised input sums to zero",
        remedy: "RMSNorm divides by the root mean square and subtracts nothing",
        apply: |node, _, _| norm(node, |n| n.centred = true),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rms-eps-wrong",
        stages: NORMS,
        story: "epsilon of the norm is not the model's",
        seen: "early layers, where the input is small, are off by a factor near 1; late ones are not",
        remedy: "read <arch>.attention.layer_norm_rms_epsilon from the GGUF",
        params: &[Param { name: "eps", help: "epsilon", default: 1e-5, search: &[] }],
        apply: |node, values, _| {
            let own = matches!(&node.op, Op::RmsNorm(n) if n.eps == values[0]);
            !own && norm(node, |n| n.eps = values[0])
        },
        propose: Some(|e| {
            let mut all = vec![1e-5, 1e-6, 0.0];
            if let Some(eps) = fitted_eps(e) {
                all.extend([rounded(eps, 1), rounded(eps, 2), rounded(eps, 4), eps]);
            }
            all.into_iter().map(|eps| vec![eps]).collect()
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gelu-for-silu",
        stages: &["ffn_act"],
        story: "another activation stands in the place of SiLU (0: GELU, 1: quick GELU, 2: ReLU)",
        seen: "right for large gates, wrong for small ones",
        remedy: "compute gate * sigmoid(gate) * up",
        params: &[Param { name: "kind", help: "0: GELU, 1: quick GELU, 2: ReLU", default: 0.0, search: &[1.0, 2.0] }],
        apply: |node, values, _| {
            let gate = match values[0] as i64 {
                0 => Gate::Gelu,
                1 => Gate::QuickGelu,
                2 => Gate::Relu,
                _ => return false,
            };
            node.op = Op::SwiGlu(gate);
            true
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gate-up-operands-swapped",
        stages: &["ffn_act"],
        story: "SiLU is applied to up instead of gate",
        seen: "gate and up are right and their product is not",
        remedy: "compute silu(gate) * up",
        apply: |node, _, _| {
            node.inputs.swap(0, 1);
            true
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "residual-missing",
        stages: &["attn_residual", "layer_out"],
        story: "the residual is not added: the block's output stands alone",
        seen: "the hidden state forgets the token within a layer",
        remedy: "add the block's input to its output",
        apply: |node, _, _| {
            node.op = Op::Copy;
            true
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "residual-wrong-side",
        stages: &["attn_residual", "layer_out"],
        story: "the residual is taken from the wrong side of the norm: what is added is the norm's output",
        seen: "the hidden state stays small and changes too fast from layer to layer",
        remedy: "add the input of the norm, not its output, to the block's output",
        apply: |node, _, graph| {
            let normed = graph.nodes.iter().position(|n| {
                matches!(n.op, Op::RmsNorm(_)) && n.id.layer == node.id.layer && n.inputs.first() == node.inputs.get(1)
            });
            if let Some(normed) = normed {
                node.inputs[1] = normed;
            }
            normed.is_some()
        },
        ..Mutation::PLAIN
    },
];
