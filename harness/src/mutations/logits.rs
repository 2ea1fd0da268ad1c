//! Buffers that are not written, or not everywhere.

use super::{Mutation, Param};
use qdiff_engine::model::Write;
use qdiff_engine::ops::Op;

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "logits-stale",
        stages: &["logits"],
        story: "some ids are not written and keep what the buffer held a step before",
        remedy: "check that the grid covers all ids, the last partial tile included, with the stride it is read with",
        param: Some(Param {
            name: "stride",
            help: "distance between ids that are not written",
            default: 128.0,
            search: &[32.0, 64.0, 256.0, 512.0, 1024.0],
        }),
        apply: |node, stride, _| {
            let stride = stride.max(1.0) as usize;
            node.write = Write::Stale {
                stride,
                phase: stride - 1,
            };
            true
        },
    },
    Mutation {
        name: "stale-from-previous-step",
        stages: &["*"],
        story: "the stage is not computed after the first step: its buffer keeps what the step before left there",
        remedy: "check that the kernel is launched, and into this buffer, at every decode step",
        param: None,
        apply: |node, _, _| {
            if matches!(node.op, Op::KvCache(_)) {
                return false;
            }
            node.write = Write::Previous;
            true
        },
    },
];
