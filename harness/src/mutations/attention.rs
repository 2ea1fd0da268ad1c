//! The softmax and what feeds it.

use super::Mutation;
use qdiff_engine::ops::Op;

pub(super) const MUTATIONS: &[Mutation] = &[Mutation {
    name: "attn-scale-missing",
    stages: &["attn_weights"],
    story: "the scores are not scaled by 1/sqrt(head_dim), so the weights are nearly one-hot",
    remedy: "multiply the scores by 1/sqrt(head_dim) before the softmax",
    param: None,
    apply: |node, _| match &mut node.op {
        Op::AttnWeights(softmax) => {
            softmax.scale = 1.0;
            true
        }
        _ => false,
    },
}];
