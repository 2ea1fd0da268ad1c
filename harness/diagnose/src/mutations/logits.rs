//! Logits that are not written everywhere.

use super::places::head;
use super::{Mutation, Param};
use qdiff_engine::model::fault::Output;
use std::collections::BTreeSet;

/// In each row, the elements `phase`, `phase + stride`, … keep what the buffer
/// held after the step before, zero before the first.
fn stale(out: Output<'_>, stride: usize, phase: usize) {
    let width = out.value.row_len().max(1);
    for row in 0..out.value.rows() {
        for i in (phase..width).step_by(stride) {
            out.value.data[row * width + i] = out.before(row * width + i);
        }
    }
}

pub(super) const MUTATIONS: &[Mutation] = &[Mutation {
    name: "logits-stale",
    fits: Some(head),
    story: "some ids are not written and keep what the buffer held a step before",
    seen: "values at some ids change from step to step without reason, or never",
    remedy: "check that the grid covers all ids, the last partial tile included, with the stride it is read with",
    params: &[
        Param::new("stride", "distance between ids that are not written", 128.0),
        Param::new("phase", "first id that is not written", 127.0),
    ],
    apply: |node, values, _| {
        let stride = values[0].max(1.0) as usize;
        let phase = values[1].max(0.0) as usize % stride;
        // Every id would be the fault of a launch that never ran.
        (stride > 1).then(|| node.writing(move |out| stale(out, stride, phase)))
    },
    propose: Some(|e| {
        let ids: BTreeSet<usize> = e.wrong().iter().map(|w| w.index).collect();
        let mut ids = ids.into_iter();
        let (Some(first), Some(second)) = (ids.next(), ids.next()) else {
            return Vec::new();
        };
        // An id that happens to be nearly right leaves a hole, never a smaller step.
        let stride = ids.fold(second - first, |step, id| gcd(step, id - first));
        vec![vec![stride as f64, (first % stride) as f64]]
    }),
    ..Mutation::PLAIN
}];

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
