//! The work of evaluating stages, in multiply-adds; what else is computed counts as so many of them as it takes time.

use crate::capture::{Capture, Step};
use crate::oracle::Oracle;
use qdiff_engine::model::{Node, WeightSource as _};
use qdiff_engine::ops::Op;

/// The work of evaluating a node in f64, with its bounds, in all steps of a capture that have it.
pub(crate) fn work_of(node: &Node, oracle: &Oracle<'_>, capture: &Capture) -> u64 {
    let steps = capture.steps.iter().filter(|step| step.stages.contains_key(&node.id));
    let steps: Vec<&Step> = steps.collect();
    work_in(node, oracle, &steps)
}

/// The same in these steps.
pub(crate) fn work_in(node: &Node, oracle: &Oracle<'_>, steps: &[&Step]) -> u64 {
    let elements = |step: &&Step| step.extent(node).iter().product::<usize>() as u64;
    let each = |step: &&Step| match &node.op {
        Op::Linear => 2 * oracle.weights.extent(&node.weights[0].name).0 as u64,
        Op::AttnScores(a) => 2 * a.head_dim as u64,
        Op::AttnContext(_) => 2 * step.keys() as u64,
        // Sines, exponentials and roots.
        Op::Rope(_) | Op::AttnWeights(_) | Op::SwiGlu => 40,
        Op::RmsNorm(_) => 16,
        Op::Embed | Op::Bias | Op::KvCache(_) | Op::Residual => 8,
    };
    // A weight is unpacked once for all rows that are computed together.
    let weights = match node.op {
        Op::Linear => node.weights.iter().map(|w| w.extent.iter().product::<usize>() as u64).sum(),
        _ => 0,
    };
    steps.iter().map(|step| elements(step) * each(step)).sum::<u64>() + 2 * weights
}
