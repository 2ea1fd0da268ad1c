//! What the two sides chose alike and otherwise, such as a token's experts.

use super::operands::rows_of;
use super::rows::{row_at, rows};
use super::{Place, StageResult};
use crate::capture::{Capture, Filter};
use crate::metrics::{largest, largest_difference, margin};
use crate::number::Real;
use qdiff_engine::model::{Graph, Node, StageId};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Decision;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The choices of both sides at one stage.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Decisions {
    /// The stage that chooses.
    pub stage: StageId,
    /// Rows that both sides have.
    pub rows: usize,
    /// Rows in which the two sides chose other places.
    pub other: usize,
    /// Rows in which they chose the same places in another order.
    pub reordered: usize,
    /// The first row of either kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Place>,
    /// Rows of either kind where both sides' values were captured, of which the places are.
    pub compared: usize,
    /// By how much the subject's values prefer the subject's places to the reference's, at most, of these rows.
    #[serde(with = "Real")]
    pub margin: f64,
    /// Largest difference between the two sides' values in such a row.
    #[serde(with = "Real")]
    pub moved: f64,
}

/// The choices of every requested decision that both sides have.
pub(super) fn compare(
    graph: &Graph, stages: &[StageResult], subject: &Capture, reference: &Capture, filter: &Filter,
) -> Vec<Decisions> {
    let asked = graph.nodes.iter().filter(|node| stages.iter().any(|stage| stage.id == node.id));
    asked
        .filter_map(|node| {
            let Anatomy::Decision(decision) = node.op.anatomy() else { return None };
            Some(of_stage((node, decision), &graph.nodes[*node.inputs.first()?], [subject, reference], filter))
        })
        .filter(|of| of.rows > 0)
        .collect()
}

fn of_stage(
    (node, decision): (&Node, Decision), source: &Node, [subject, reference]: [&Capture; 2], filter: &Filter,
) -> Decisions {
    let mut of = Decisions {
        stage: node.id,
        rows: 0,
        other: 0,
        reordered: 0,
        first: None,
        compared: 0,
        margin: 0.0,
        moved: 0.0,
    };
    for step in &subject.steps {
        let Some(stored) = step.stages.get(&node.id) else { continue };
        let positions = step.positions();
        let Some(given) = rows_of(node, stored, &(0..positions.len())) else { continue };
        for (at, range) in rows(node, &given.shape, step, positions) {
            if !step.has_row(node.id, at.position) || !filter.position(at.position) {
                continue;
            }
            let (ours, Some(theirs)) = (&given.data[range], row_at(node, reference, at)) else { continue };
            of.rows += 1;
            if *ours == theirs {
                continue;
            }
            of.first = of.first.or(Some(at));
            let (a, b) = (row_at(source, subject, at), row_at(source, reference, at));
            let values = a.as_deref().or(b.as_deref()).map_or(0, <[f32]>::len);
            let places = |chosen: &[f32]| decision.places(values, at.position as u32, chosen);
            let Some((ours, theirs)) = places(ours).zip(places(&theirs)) else {
                of.other += 1;
                continue;
            };
            let only = |of: &[usize], other: &[usize]| -> Vec<usize> {
                of.iter().copied().filter(|place| !other.contains(place)).collect()
            };
            let (own, other) = (only(&ours, &theirs), only(&theirs, &ours));
            let same = own.is_empty() && other.is_empty();
            (of.other, of.reordered) = (of.other + usize::from(!same), of.reordered + usize::from(same));
            let (Some(a), Some(b)) = (a, b) else { continue };
            // In another order, the subject prefers each of its places to the one that the reference has there.
            let pairs: Vec<(usize, usize)> = match same {
                true => ours.into_iter().zip(theirs).filter(|(own, other)| own != other).collect(),
                false => own.iter().flat_map(|own| other.iter().map(|other| (*own, *other))).collect(),
            };
            of.compared += 1;
            of.margin = of.margin.max(largest(pairs.iter().map(|(own, other)| margin(&a, *own, *other).max(0.0))));
            of.moved = of.moved.max(largest_difference(&a, &b));
        }
    }
    of
}
