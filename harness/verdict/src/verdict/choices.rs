//! Decisions: integers that a runner chose from values.

use super::tolerance::ELEMENT_FACTOR;
use qdiff_engine::model::Node;
use qdiff_engine::ops::{Anatomy, Tensor};

/// Puts the runner's own choice into rows of `value`, what the node chooses of `inputs`, where the uncertainty of the
/// operands leaves that choice: with exact operands that is between equal values alone. Whether the node is a decision that
/// the runner gave.
pub(super) fn take(
    node: &Node, given: Option<&Tensor<f32>>, (inputs, deltas): (&[&Tensor<f64>], &[Option<&[f32]>]),
    positions: &[u32], value: &mut Tensor<f64>,
) -> bool {
    let Anatomy::Decision(decision) = node.op.anatomy() else { return false };
    let Some(given) = given else { return false };
    if !node.faults.none() || given.shape != value.shape {
        return true;
    }
    let n = inputs[0].row_len();
    let width = decision.width(n).max(1);
    let rows = inputs[0].data.chunks(n.max(1)).zip(given.data.chunks(width));
    for (i, ((row, given), chosen)) in rows.zip(value.data.chunks_mut(width)).enumerate() {
        let reach = |at: usize| deltas[0].map_or(0.0, |delta| ELEMENT_FACTOR * f64::from(delta[i * n + at]));
        let given: Vec<f64> = given.iter().map(|v| f64::from(*v)).collect();
        if decision.admits(row, positions.get(i).copied().unwrap_or(0), reach, &given) {
            chosen.copy_from_slice(&given);
        }
    }
    true
}
