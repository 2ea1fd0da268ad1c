//! Stages that are wrong as they were captured, while what reads them was made of the right values: what was captured is
//! not what the engine went on from. An exporter dumps a buffer too late, or another one, or in another layout.
//!
//! Every captured reader of such a stage looks wrong by itself, for it is held against operands that it never read. It is
//! judged once more as if the stage had not been captured, from the operands before it. Only where that brings it within
//! what is allowed, and where that is small beside what it was off by before, the stage is said to be unread.

use super::evidence::part;
use super::judge::own_status;
use super::{Local, Policy, Side, StageResult, Status, residuals};
use crate::capture::Filter;
use crate::oracle::Oracle;
use std::collections::BTreeSet;

/// How much further a reader must be from what it would be of the captured values than it may be from what it would be of
/// the right ones.
const TELLING: f64 = 4.0;

/// Marks the origins that nothing read, and judges their readers without them; gives whether there are any.
pub(super) fn mark(
    oracle: &Oracle<'_>, subject: Side<'_>, (filter, policy): (&Filter, &Policy),
    (stages, alone): (&mut [StageResult], bool),
) -> bool {
    let nodes = &oracle.graph.nodes;
    let found = |index: usize, stages: &[StageResult]| stages.iter().position(|s| s.id == nodes[index].id);
    let mut any = false;
    for index in 0..nodes.len() {
        let wrong = |at: &usize| stages[*at].origin && stages[*at].status == Status::Diverged;
        let Some(at) = found(index, stages).filter(wrong) else { continue };
        let captured = |i: usize| subject.capture.steps.iter().any(|step| step.stages.contains_key(&nodes[i].id));
        let readers: Vec<usize> =
            (0..nodes.len()).filter(|&i| captured(i) && nodes[i].reads().any(|r| r == index)).collect();
        let places: Option<Vec<usize>> = readers.iter().map(|&i| found(i, stages).filter(wrong)).collect();
        let Some(places) = places.filter(|places| !places.is_empty()) else { continue };
        let judged = readers.iter().zip(&places).map(|(&reader, &place)| {
            let local = without(oracle, subject, (filter, policy), reader, &|i| i != index && captured(i))?;
            let before = stages[place].subject.as_ref().map_or(0.0, |l| l.residual);
            let right = local.ok() && local.inconclusive == 0 && local.rows > 0;
            (right && before > TELLING * local.allowed).then_some(local)
        });
        if let Some(judged) = judged.collect::<Option<Vec<Local>>>() {
            any = true;
            stages[at].unread = true;
            for (place, local) in places.into_iter().zip(judged) {
                let stage = &mut stages[place];
                stage.status = own_status(Some(&local), stage.reference.as_ref(), alone);
                (stage.subject, stage.origin) = (Some(local), false);
            }
        }
    }
    any
}

/// The residual of a node, from those of its operands, and of theirs, that are `known`.
fn without(
    oracle: &Oracle<'_>, subject: Side<'_>, (filter, policy): (&Filter, &Policy), reader: usize,
    known: &dyn Fn(usize) -> bool,
) -> Option<Local> {
    let graph = &oracle.graph;
    let mut nodes: BTreeSet<usize> = graph.before(reader, known).into_iter().collect();
    nodes.insert(reader);
    let nodes: Vec<_> = nodes.into_iter().map(|i| &graph.nodes[i]).collect();
    let positions = subject.capture.steps.iter().flat_map(|step| step.first..step.keys()).collect();
    let capture = part(subject.capture, &nodes, &positions);
    residuals(&graph.nodes[reader], oracle, &[Side { capture: &capture, ..subject }], filter, policy).pop()?
}
