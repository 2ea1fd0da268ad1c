//! Weights left out, or taken for each other.

use super::{Mutation, Param};
use qdiff_engine::model::{Config, Node};
use qdiff_engine::ops::Op;

fn leave_out(node: &mut Node, _: f64, _: &Config) -> bool {
    node.op = Op::Copy;
    true
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "qkv-bias-omitted",
        stages: &["q_biased", "k_biased", "v_biased"],
        story: "the bias is not added",
        remedy: "add blk.N.attn_{q,k,v}.bias after the projection; values of -30 and beyond are real",
        param: None,
        apply: leave_out,
    },
    Mutation {
        name: "qk-norm-omitted",
        stages: &["q_normed", "k_normed"],
        story: "the norm over each head is left out",
        remedy: "apply RMSNorm with blk.N.attn_{q,k}_norm.weight to every head before RoPE (Qwen3)",
        param: None,
        apply: leave_out,
    },
    Mutation {
        name: "gate-up-weights-swapped",
        stages: &["ffn_gate", "ffn_up"],
        story: "ffn_gate.weight and ffn_up.weight are taken for each other",
        remedy: "load blk.N.ffn_gate.weight as gate and blk.N.ffn_up.weight as up",
        param: None,
        apply: |node, _, _| {
            let Some(name) = &mut node.weight else {
                return false;
            };
            *name = if name.contains("gate") {
                name.replace("gate", "up")
            } else {
                name.replace("up", "gate")
            };
            true
        },
    },
    Mutation {
        name: "tensor-mapped-wrong",
        stages: &["*"],
        story: "the weight of another layer is used",
        remedy: "check the map from tensor names to layers: blk.N belongs to layer N",
        param: Some(Param {
            name: "off",
            help: "layers by which the weight is off",
            default: -1.0,
            search: &[1.0, -2.0, 2.0],
        }),
        apply: |node, off, config| {
            let (Some(layer), Some(name)) = (node.id.layer, &mut node.weight) else {
                return false;
            };
            let other = f64::from(layer) + off;
            if off == 0.0 || !(0.0..config.n_layers as f64).contains(&other) {
                return false;
            }
            *name = name.replacen(&format!("blk.{layer}."), &format!("blk.{other}."), 1);
            true
        },
    },
];
