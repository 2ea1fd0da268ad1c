//! Weights of keys that a query does not see, where they are not zero: that is the fault of the weights. The context may read
//! them or go by the mask, and it is right in both cases. So a context that is wrong of wrong weights is judged once more as if those
//! weights were zero. Whether the weights are wrong in the capture alone is settled before, as of any stage
//! ([`super::unread`]).

use super::inside::part;
use super::result::own_status;
use super::{Policy, Side, StageResult, Status, lost, residuals};
use crate::capture::{Capture, Filter};
use crate::oracle::Oracle;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;

/// Judges each wrong context of wrong weights by the mask; gives whether any is right so.
pub(super) fn settle(
    oracle: &Oracle<'_>, subject: Side<'_>, (filter, policy): (&Filter, &Policy),
    (stages, alone): (&mut [StageResult], bool),
) -> bool {
    let graph = &oracle.graph;
    let wrong = |node: &Node, stages: &[StageResult]| {
        let wrong = |s: &StageResult| s.origin && s.status == Status::Diverged && !s.unread && !s.kept;
        stages.iter().position(|s| s.id == node.id && wrong(s))
    };
    let mut any = false;
    for node in &graph.nodes {
        let (Anatomy::Contraction(Contraction::Context(_)), &[weights, ..]) = (node.op.anatomy(), &*node.inputs) else {
            continue;
        };
        let (Some(at), Some(_)) = (wrong(node, stages), wrong(&graph.nodes[weights], stages)) else { continue };
        let Some(capture) = by_mask(graph, node, &graph.nodes[weights], subject.capture) else { continue };
        let local = residuals(node, oracle, &[Side { capture: &capture, ..subject }], filter, policy).pop().flatten();
        let rows = stages[at].subject.as_ref().map_or(0, |before| before.rows);
        if let Some(local) = local.filter(|local| local.ok() && local.inconclusive == 0 && local.rows >= rows) {
            let stage = &mut stages[at];
            stage.status = own_status(Some(&local), stage.reference.as_ref(), alone);
            (stage.subject, stage.origin) = (Some(local), false);
            any = true;
        }
    }
    any
}

/// What a context is made of, with nothing of keys after a query's own; `None` if there is nothing, or if it is unknown which keys
/// those are.
fn by_mask(graph: &Graph, node: &Node, weights: &Node, capture: &Capture) -> Option<Capture> {
    let operands = node.inputs.iter().map(|&i| &graph.nodes[i]);
    let nodes: Vec<&Node> = operands.chain([node]).collect();
    let mut masked = part(capture, &nodes, &capture.steps.iter().flat_map(|step| step.first..step.keys()).collect());
    let mut any = false;
    for (index, step) in masked.steps.iter_mut().enumerate() {
        let Some(stored) = step.stages.get(&weights.id) else { continue };
        let mut values = stored.get().into_owned();
        let (rows, keys) = (step.rows(), step.keys());
        if values.shape[1..] != [rows, keys] || lost::own_rows(graph, weights, capture, index).is_some() {
            return None;
        }
        let positions = step.positions();
        for (row, values) in values.data.chunks_mut(keys.max(1)).enumerate() {
            let later = &mut values[keys.min(positions[row % rows] as usize + 1)..];
            any |= later.iter().any(|weight| *weight != 0.0);
            later.fill(0.0);
        }
        step.stages.insert(weights.id, capture.store.keep(values));
    }
    any.then_some(masked)
}
