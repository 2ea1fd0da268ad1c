//! The right operands, through the wrong function.

use super::{Mutation, Param};
use qdiff_engine::model::Node;
use qdiff_engine::ops::{Gate, NormWeight, Op, RmsNorm};

const NORMS: &[&str] = &[
    "attn_norm",
    "ffn_norm",
    "final_norm",
    "q_normed",
    "k_normed",
];

fn norm(node: &mut Node, change: impl FnOnce(&mut RmsNorm)) -> bool {
    match &mut node.op {
        Op::RmsNorm(norm) => {
            change(norm);
            true
        }
        _ => false,
    }
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "rms-weight-missing",
        stages: NORMS,
        story: "the norm's weight is not multiplied in",
        remedy: "multiply the normalised value by the norm's weight",
        param: None,
        apply: |node, _, _| norm(node, |n| n.weight = NormWeight::Missing),
    },
    Mutation {
        name: "rms-weight-plus-one",
        stages: NORMS,
        story: "the norm multiplies by 1 + weight, as Gemma does",
        remedy: "Qwen multiplies by the weight itself",
        param: None,
        apply: |node, _, _| norm(node, |n| n.weight = NormWeight::PlusOne),
    },
    Mutation {
        name: "rms-mean-subtracted",
        stages: NORMS,
        story: "the mean is subtracted, as LayerNorm does",
        remedy: "RMSNorm divides by the root mean square and subtracts nothing",
        param: None,
        apply: |node, _, _| norm(node, |n| n.centred = true),
    },
    Mutation {
        name: "rms-eps-wrong",
        stages: NORMS,
        story: "epsilon of the norm is not the model's",
        remedy: "read <arch>.attention.layer_norm_rms_epsilon from the GGUF",
        param: Some(Param {
            name: "eps",
            help: "epsilon",
            default: 1e-5,
            search: &[1e-6, 1e-8, 1e-12, 0.0, 1e-3, 1e-2],
        }),
        apply: |node, eps, _| norm(node, |n| n.eps = eps),
    },
    Mutation {
        name: "gelu-for-silu",
        stages: &["ffn_act"],
        story: "another activation stands in the place of SiLU (0: GELU, 1: quick GELU, 2: ReLU)",
        remedy: "compute gate * sigmoid(gate) * up",
        param: Some(Param {
            name: "kind",
            help: "0: GELU, 1: quick GELU, 2: ReLU",
            default: 0.0,
            search: &[1.0, 2.0],
        }),
        apply: |node, kind, _| {
            let gate = match kind as i64 {
                0 => Gate::Gelu,
                1 => Gate::QuickGelu,
                2 => Gate::Relu,
                _ => return false,
            };
            node.op = Op::SwiGlu(gate);
            true
        },
    },
    Mutation {
        name: "gate-up-operands-swapped",
        stages: &["ffn_act"],
        story: "SiLU is applied to up instead of gate",
        remedy: "compute silu(gate) * up",
        param: None,
        apply: |node, _, _| {
            node.inputs.swap(0, 1);
            true
        },
    },
    Mutation {
        name: "residual-missing",
        stages: &["attn_residual", "layer_out"],
        story: "the residual is not added: the block's output stands alone",
        remedy: "add the block's input to its output",
        param: None,
        apply: |node, _, _| {
            node.op = Op::Copy;
            true
        },
    },
];
