//! Memory read in another order than it was written in.

use super::{Mutation, Param};
use qdiff_engine::model::{Config, Node};
use qdiff_engine::ops::{Layout, Linear, Op};

fn transpose(node: &mut Node, _: f64, _: &Config) -> bool {
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
        name: "linear-weight-transposed",
        stages: &["attn_out", "ffn_gate", "ffn_up", "ffn_down"],
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
    Mutation {
        name: "lm-head-ld",
        stages: &["logits"],
        story: "the output projection is read with the wrong leading dimension: each id starts further off",
        remedy: "the leading dimension of output.weight is n_embd",
        param: Some(Param {
            name: "extra",
            help: "elements by which the leading dimension is too large",
            default: 1.0,
            search: &[-1.0, 8.0, -8.0, 32.0, -32.0, 64.0, -64.0, 128.0, -128.0],
        }),
        apply: |node, extra, _| {
            node.op = Op::Linear(Linear {
                layout: Layout::Strided(extra as i32),
            });
            true
        },
    },
    Mutation {
        name: "embed-transposed",
        stages: &["embed"],
        story: "the embedding table is read across: element i of a token at i * vocab + token",
        remedy: "token_embd.weight is [vocab][n_embd]: a token's row is contiguous",
        param: None,
        apply: |node, _, _| {
            node.op = Op::Embed { transposed: true };
            true
        },
    },
];
