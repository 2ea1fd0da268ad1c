//! A result that changes from run to run. It cannot be recognised by evaluating it; running again sees it.

use super::Mutation;
use qdiff_engine::model::fault::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Leaves one element out of order, another one each time.
fn unordered(out: Output<'_>, times: &AtomicUsize) {
    let n = out.value.data.len();
    if n > 0 {
        // A prime stride, so that neighbours in time are none in the buffer.
        let at = times.fetch_add(1, Ordering::Relaxed).wrapping_mul(7919) % n;
        let largest = out.value.data.iter().fold(0f64, |m, v| m.max(v.abs()));
        out.value.data[at] += 0.1 * largest.max(1.0);
    }
}

pub(super) const MUTATIONS: &[Mutation] = &[Mutation {
    name: "race",
    story: "the result changes from run to run",
    seen: "`qdiff run` runs a subject that diverges once more, and reports different bits first",
    remedy: "compute-sanitizer --tool racecheck; look for a missing barrier or an atomic sum",
    recurs: false,
    apply: |node, _, _| {
        let times = AtomicUsize::new(0);
        Some(node.writing(move |out| unordered(out, &times)))
    },
    ..Mutation::ANYWHERE
}];
