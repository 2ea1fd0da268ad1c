//! Positions: the rotation and the cache.

use super::{Mutation, Param};
use qdiff_engine::model::Node;
use qdiff_engine::ops::{Op, Pairing, Rope};

fn rope(node: &mut Node, change: impl FnOnce(&mut Rope)) -> bool {
    match &mut node.op {
        Op::Rope(rope) => {
            change(rope);
            true
        }
        _ => false,
    }
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "rope-base",
        stages: &["q_rope", "k_rope"],
        story: "the rotary base is not the model's",
        remedy: "read <arch>.rope.freq_base from the GGUF",
        param: Some(Param {
            name: "base",
            help: "base of the rotary frequencies",
            default: 10_000.0,
            search: &[500_000.0, 100_000.0, 5_000_000.0, 1_000_000.0],
        }),
        apply: |node, base, _| match &mut node.op {
            Op::Rope(rope) if rope.base != base => {
                rope.base = base;
                true
            }
            _ => false,
        },
    },
    Mutation {
        name: "rope-pairing",
        stages: &["q_rope", "k_rope"],
        story: "adjacent elements are rotated (NORM) where Qwen rotates split halves (NEOX)",
        remedy: "pair element i with i + head_dim/2",
        param: None,
        apply: |node, _, _| rope(node, |r| r.pairing = Pairing::Norm),
    },
    Mutation {
        name: "rope-position-off-by-one",
        stages: &["q_rope", "k_rope"],
        story: "the rotation takes another position than the token's",
        remedy: "the first token of the prompt is at position 0; a decoded one at the number of tokens before it",
        param: Some(Param {
            name: "by",
            help: "positions too far",
            default: 1.0,
            search: &[-1.0, 2.0, -2.0],
        }),
        apply: |node, by, _| rope(node, |r| r.offset = by),
    },
    Mutation {
        name: "rope-missing",
        stages: &["q_rope", "k_rope"],
        story: "nothing is rotated",
        remedy: "apply RoPE to q and to k",
        param: None,
        apply: |node, _, _| rope(node, |r| r.turns = 0.0),
    },
    Mutation {
        name: "rope-twice",
        stages: &["q_rope", "k_rope"],
        story: "the rotation is applied twice",
        remedy: "apply RoPE once, before the key enters the cache",
        param: None,
        apply: |node, _, _| rope(node, |r| r.turns = 2.0),
    },
    Mutation {
        name: "rope-partial",
        stages: &["q_rope", "k_rope"],
        story: "only part of each head is rotated",
        remedy: "rotate all head_dim elements; Qwen has no partial rotary factor",
        param: Some(Param {
            name: "dims",
            help: "elements of a head that are rotated",
            default: 32.0,
            search: &[16.0, 64.0, 48.0],
        }),
        apply: |node, dims, _| {
            let dims = dims as usize;
            let fits =
                matches!(&node.op, Op::Rope(r) if dims < r.head_dim && dims.is_multiple_of(2));
            fits && rope(node, |r| r.rotated = dims)
        },
    },
    Mutation {
        name: "kv-position-stuck",
        stages: &["k_cache", "v_cache"],
        story: "the cache length never advances: each step overwrites the same rows and attention sees only its own tokens",
        remedy: "advance the cache position by the number of tokens after every step",
        param: None,
        apply: |node, _, _| match &mut node.op {
            Op::KvCache(cache) => {
                cache.advance = false;
                true
            }
            _ => false,
        },
    },
];
