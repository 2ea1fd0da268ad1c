//! Memory read in another order than it was written in.

use super::Mutation;
use qdiff_engine::model::Node;
use qdiff_engine::ops::{Layout, Linear, Op};

fn transpose(node: &mut Node, _: f64) -> bool {
    node.op = Op::Linear(Linear {
        layout: Layout::Transposed,
    });
    true
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "qkv-weight-transposed",
        stages: &["q_proj", "k_proj", "v_proj"],
        story: "the weight is read transposed: a GGUF row of n_in contiguous weights is taken for a column",
        remedy: "a GGUF weight is [out][in]; to cuBLAS it is column-major [in, out]: use OP_T with lda = n_in",
        param: None,
        apply: transpose,
    },
    Mutation {
        name: "lm-head-transposed",
        stages: &["logits"],
        story: "the output projection is read transposed, so every id is wrong and none is an outlier by itself",
        remedy: "output.weight is [vocab][n_embd]; to cuBLAS it is column-major [n_embd, vocab]: use OP_T with lda = n_embd",
        param: None,
        apply: transpose,
    },
];
