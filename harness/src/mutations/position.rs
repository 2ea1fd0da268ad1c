//! Positions: the rotation and the cache.

use super::{Mutation, Param};
use qdiff_engine::ops::Op;

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
        apply: |node, base| match &mut node.op {
            Op::Rope(rope) if rope.base != base => {
                rope.base = base;
                true
            }
            _ => false,
        },
    },
    Mutation {
        name: "kv-position-stuck",
        stages: &["k_cache", "v_cache"],
        story: "the cache length never advances: each step overwrites the same rows and attention sees only its own tokens",
        remedy: "advance the cache position by the number of tokens after every step",
        param: None,
        apply: |node, _| match &mut node.op {
            Op::KvCache(cache) => {
                cache.advance = false;
                true
            }
            _ => false,
        },
    },
];
