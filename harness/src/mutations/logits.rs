//! The output projection's buffer.

use super::{Mutation, Param};
use qdiff_engine::model::Write;

pub(super) const MUTATIONS: &[Mutation] = &[Mutation {
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
    apply: |node, stride| {
        let stride = stride.max(1.0) as usize;
        node.write = Write::Stale {
            stride,
            phase: stride - 1,
        };
        true
    },
}];
