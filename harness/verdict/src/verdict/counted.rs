//! The work of evaluating stages, in multiply-adds; what else is computed counts as so many of them as it takes time.

use crate::capture::{Capture, Step};
use crate::oracle::Oracle;
use qdiff_engine::model::{Node, WeightSource as _};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::RowReduction;

/// The work of evaluating a node in f64, with its bounds, in all steps of a capture that have it.
pub fn work_of(node: &Node, oracle: &Oracle<'_>, capture: &Capture) -> u64 {
    let steps = capture.steps.iter().filter(|step| step.stages.contains_key(&node.id));
    let steps: Vec<&Step> = steps.collect();
    work_in(node, oracle, &steps)
}

/// The same in these steps.
pub(crate) fn work_in(node: &Node, oracle: &Oracle<'_>, steps: &[&Step]) -> u64 {
    let elements = |step: &&Step| step.extent(node).iter().product::<usize>() as u64;
    let anatomy = node.op.anatomy();
    let each = |step: &&Step| match anatomy {
        Anatomy::Contraction(_) => {
            let terms = anatomy.terms(|| oracle.weights.extent(&node.weights[0].name).0, step.keys());
            2 * terms.unwrap_or(1) as u64
        }
        Anatomy::RowReduction(RowReduction::MeanSquare(_)) => 16,
        // Sines, exponentials and roots.
        _ if anatomy.calls_functions() => 40,
        Anatomy::Gather(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => 8,
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => 8,
    };
    // A weight is unpacked once for all rows that are computed together.
    let weights = match anatomy.multiplies_weights() {
        true => node.weights.iter().map(|w| w.extent.iter().product::<usize>() as u64).sum(),
        false => 0,
    };
    steps.iter().map(|step| elements(step) * each(step)).sum::<u64>() + 2 * weights
}
