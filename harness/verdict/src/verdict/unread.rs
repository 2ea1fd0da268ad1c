//! Stages that are wrong as captured, while all later stages were made from the right values: the captured array is
//! not what the engine went on from. An exporter dumps a buffer too late, or another one, or in another layout.
//!
//! Every captured stage that reads such a one, also through stages that were not captured, looks wrong alone, for it is
//! held against operands that it never read. It is judged once more as if the stage had not been captured, from the operands
//! before it. Only where that brings all of them within what is allowed, at all rows, and where that is small beside what
//! they were off by before, the stage is called unread. Two that the same stages read are judged together too: an
//! exporter that exchanges their names is wrong in both, and neither alone brings the readers in order. What reads a
//! state may have kept the values of this step, and a later step reads the state: rows of a state are called unread
//! where a later step read them. The readers of rows that the last step wrote show only that they had the right values:
//! the state, or its capture, is wrong ([`StageResult::kept`]). Nothing is reported where a path to the end was not
//! captured.

use super::inside::part;
use super::result::own_status;
use super::{Local, Policy, Side, StageResult, Status, residuals};
use crate::capture::{Capture, Filter};
use crate::oracle::Oracle;
use qdiff_engine::model::{Axis, Graph, StageId};
use std::collections::BTreeSet;

/// How much further a reader must be from what it would be of the captured values than it may be from what it would be of
/// the right ones.
const TELLING: f64 = 4.0;

/// Rows that are tried first: of an engine that is wrong everywhere they decide.
const FIRST: usize = 3;

/// Marks the origins that nothing read, and judges their readers without them; gives whether there are any.
pub(super) fn mark(
    oracle: &Oracle<'_>, subject: Side<'_>, (filter, policy): (&Filter, &Policy),
    (stages, alone): (&mut [StageResult], bool),
) -> bool {
    let nodes = &oracle.graph.nodes;
    let found = |index: usize, stages: &[StageResult]| stages.iter().position(|s| s.id == nodes[index].id);
    let captured = |i: usize| subject.capture.steps.iter().any(|step| step.stages.contains_key(&nodes[i].id));
    let wrong = |at: &usize, stages: &[StageResult]| {
        let stage = &stages[*at];
        stage.origin && matches!(stage.status, Status::Diverged | Status::Poisoned) && !stage.unread && !stage.kept
    };
    let told = |&i: &usize| {
        found(i, stages).is_some_and(|at| wrong(&at, stages)) && seen_to_the_end(&oracle.graph, i, &captured)
    };
    // What reads a state may have had the values of this step from elsewhere.
    let later = |i: usize, local: Option<&Local>| {
        !nodes[i].has_state() || local.is_some_and(|local| read_later(local, nodes[i].id, subject.capture))
    };
    let alone_or_two = groups(&oracle.graph, &(0..nodes.len()).filter(told).collect::<Vec<_>>(), &captured);
    let mut any = false;
    for (group, readers) in alone_or_two {
        let wrong = |at: &usize| wrong(at, stages);
        let members: Option<Vec<usize>> = group.iter().map(|&i| found(i, stages).filter(wrong)).collect();
        let places: Option<Vec<usize>> = readers.iter().map(|&i| found(i, stages).filter(wrong)).collect();
        let (Some(members), Some(places)) = (members, places) else { continue };
        let of_member = |&at: &usize| stages[at].subject.iter().flat_map(|l| l.bad_positions.iter().copied());
        let of_state = group.iter().any(|&i| nodes[i].has_state());
        let of_stage: BTreeSet<usize> = members.iter().flat_map(of_member).collect();
        let known = |i: usize| !group.contains(&i) && captured(i);
        let right = |reader: usize, place: usize, positions: Option<&BTreeSet<usize>>| {
            let before = stages[place].subject.as_ref()?;
            let local = without(oracle, subject, (filter, policy), reader, (&known, positions))?;
            let all = positions.is_some() || local.rows >= before.rows;
            let right = local.ok() && local.inconclusive == 0 && local.rows > 0 && all;
            // NaN was captured, and a reader gave numbers.
            let far = before.residual.is_nan() || before.residual > TELLING * local.allowed;
            // The rows of a state are no rows of what reads it.
            let telling = far && (of_state || before.bad_positions.is_superset(&of_stage));
            (right && telling).then_some(local)
        };
        let few: BTreeSet<usize> = of_stage.iter().copied().take(FIRST).collect();
        // Attention takes all rows before.
        let by_row = |reader: usize| {
            !nodes[reader].reads().any(|i| nodes[i].shape.contains(&Axis::Keys) || nodes[i].has_state())
        };
        let tried = readers.iter().zip(&places).all(|(&r, &p)| !by_row(r) || right(r, p, Some(&few)).is_some());
        let judged = readers.iter().zip(&places).filter(|_| tried).map(|(&r, &p)| right(r, p, None));
        let judged: Option<Vec<Local>> = judged.collect();
        if let Some(judged) = judged.filter(|judged| !judged.is_empty()) {
            any = true;
            let unread = group.iter().zip(&members).all(|(&i, &at)| later(i, stages[at].subject.as_ref()));
            for at in members {
                (stages[at].unread, stages[at].kept) = (unread, !unread);
            }
            for (place, local) in places.into_iter().zip(judged) {
                let stage = &mut stages[place];
                stage.status = own_status(Some(&local), stage.reference.as_ref(), alone);
                (stage.subject, stage.origin) = (Some(local), false);
            }
        }
    }
    any
}

/// Each of these nodes, then each two of them that the same captured nodes read, which an exporter may have exchanged; with
/// their readers.
fn groups(graph: &Graph, of: &[usize], captured: &dyn Fn(usize) -> bool) -> Vec<(Vec<usize>, Vec<usize>)> {
    let readers: Vec<Vec<usize>> = of.iter().map(|&i| graph.after(i, captured).into_iter().collect()).collect();
    let alone = (0..of.len()).map(|a| (vec![of[a]], readers[a].clone()));
    let alike =
        |a: usize| (a + 1..of.len()).filter(move |&b| graph.nodes[of[a]].id.layer == graph.nodes[of[b]].id.layer);
    let pairs = (0..of.len()).flat_map(|a| alike(a).map(move |b| (a, b))).filter(|&(a, b)| readers[a] == readers[b]);
    let two = pairs.map(|(a, b)| (vec![of[a], of[b]], readers[a].clone()));
    alone.chain(two).collect()
}

/// Whether later steps show the engine's own value of every wrong row of a state: the row is older than the step in
/// which it is wrong, so that this step read it; or a later step read it. For the last step's own rows the only
/// evidence is what became of those before.
fn read_later(local: &Local, id: StageId, capture: &Capture) -> bool {
    let with_it = || capture.steps.iter().filter(|step| step.stages.contains_key(&id));
    let bad = &local.bad_at;
    let older = |step: usize, p: usize| with_it().any(|s| s.index == step && p < s.first);
    let last = with_it().map(|step| step.index).max();
    let read = |step| last.is_some_and(|last| step < last);
    let any = bad.iter().any(|&(step, p)| !older(step, p) && read(step));
    let told = |&(step, p): &(usize, usize)| older(step, p) || read(step) || any;
    !bad.is_empty() && bad.iter().all(told)
}

/// Whether every path from a node on comes to one that was captured.
fn seen_to_the_end(graph: &Graph, index: usize, captured: &dyn Fn(usize) -> bool) -> bool {
    let mut readers = (index + 1..graph.nodes.len()).filter(|&i| graph.nodes[i].inputs.contains(&index)).peekable();
    readers.peek().is_some() && readers.all(|i| captured(i) || seen_to_the_end(graph, i, captured))
}

/// The residual of a node at these positions, or all, from those of its operands, and of theirs, that are `known`.
fn without(
    oracle: &Oracle<'_>, subject: Side<'_>, (filter, policy): (&Filter, &Policy), reader: usize,
    (known, positions): (&dyn Fn(usize) -> bool, Option<&BTreeSet<usize>>),
) -> Option<Local> {
    let graph = &oracle.graph;
    let mut nodes: BTreeSet<usize> = graph.before(reader, known).into_iter().collect();
    nodes.insert(reader);
    let nodes: Vec<_> = nodes.into_iter().map(|i| &graph.nodes[i]).collect();
    let all = || subject.capture.steps.iter().flat_map(|step| step.first..step.keys()).collect();
    let capture = part(subject.capture, &nodes, &positions.cloned().unwrap_or_else(all));
    residuals(&graph.nodes[reader], oracle, &[Side { capture: &capture, ..subject }], filter, policy).pop()?
}
