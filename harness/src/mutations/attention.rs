//! Scores, softmax and context.

use super::{Mutation, Param};
use qdiff_engine::model::Node;
use qdiff_engine::ops::{Mask, Op, Softmax};

fn softmax(node: &mut Node, change: impl FnOnce(&mut Softmax)) -> bool {
    match &mut node.op {
        Op::AttnWeights(softmax) => {
            change(softmax);
            true
        }
        _ => false,
    }
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "attn-scale-missing",
        stages: &["attn_weights"],
        story: "the scores are not scaled by 1/sqrt(head_dim), so the weights are nearly one-hot",
        remedy: "multiply the scores by 1/sqrt(head_dim) before the softmax",
        param: None,
        apply: |node, _, _| softmax(node, |s| s.scale = 1.0),
    },
    Mutation {
        name: "attn-uniform",
        stages: &["attn_weights"],
        story: "all visible keys weigh alike: the scores are not read",
        remedy: "check that the softmax reads the scores, with the stride they were written with",
        param: None,
        apply: |node, _, _| softmax(node, |s| s.scale = 0.0),
    },
    Mutation {
        name: "mask-missing",
        stages: &["attn_weights"],
        story: "the causal mask is left out: a query sees the tokens after it",
        remedy: "mask the keys after the query's position before the softmax",
        param: None,
        apply: |node, _, _| softmax(node, |s| s.mask = Mask::None),
    },
    Mutation {
        name: "mask-off-by-one",
        stages: &["attn_weights"],
        story: "the causal mask is off by one (1: the next token is seen, -1: the token itself is not)",
        remedy: "a query at position p sees the keys 0 to p, p included",
        param: Some(Param {
            name: "by",
            help: "1: one key too many, -1: one too few",
            default: 1.0,
            search: &[-1.0],
        }),
        apply: |node, by, _| {
            softmax(node, |s| {
                s.mask = if by > 0.0 { Mask::Ahead } else { Mask::Behind }
            })
        },
    },
    Mutation {
        name: "gqa-head-map",
        stages: &["attn_scores", "attn_context"],
        story: "query head h reads KV head h mod n_kv instead of h / group",
        remedy: "divide the query head by n_heads / n_kv_heads",
        param: None,
        apply: |node, _, _| match &mut node.op {
            Op::AttnScores(a) | Op::AttnContext(a) => {
                a.interleaved = true;
                true
            }
            _ => false,
        },
    },
];
