//! Weights left out or taken for each other.

use super::Mutation;
use qdiff_engine::ops::Op;

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "qkv-bias-omitted",
        stages: &["q_biased", "k_biased", "v_biased"],
        story: "the bias is not added",
        remedy: "add blk.N.attn_{q,k,v}.bias after the projection; values of -30 and beyond are real",
        param: None,
        apply: |node, _| {
            node.op = Op::Copy;
            true
        },
    },
    Mutation {
        name: "gate-up-operands-swapped",
        stages: &["ffn_act"],
        story: "SiLU is applied to up instead of gate",
        remedy: "compute silu(gate) * up",
        param: None,
        apply: |node, _| {
            node.inputs.swap(0, 1);
            true
        },
    },
];
