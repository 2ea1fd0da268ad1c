//! Why: the catalogue evaluated on the subject's own operands.

use super::{Mutation, catalogue};
use crate::capture::Filter;
use crate::number::Real;
use crate::oracle::Oracle;
use crate::verdict::{Block, Check, Finding, Local, Policy, Side, StageResult, describe, evaluate};
use qdiff_engine::model::{StageId, Write};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;

/// An explanation that reproduces the subject's output.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    /// Name of the mutation, with its parameter.
    pub name: String,
    /// What is wrong, in one sentence.
    pub story: String,
    /// How to mend it.
    pub remedy: String,
    /// Residual of the stage as it should be.
    #[serde(with = "Real")]
    #[schemars(with = "Real")]
    pub before: f64,
    /// Residual once the fault is assumed.
    #[serde(with = "Real")]
    #[schemars(with = "Real")]
    pub after: f64,
}

/// Looks for a cause of every origin. The whole catalogue is tried on the
/// first origin of each stage name; its explanation is then tested on the
/// others of that name before anything else is.
pub fn explain(
    oracle: &Oracle<'_>,
    subject: &Side<'_>,
    origins: &[&StageResult],
    filter: &Filter,
    policy: &Policy,
) -> Vec<Finding> {
    let mut known: Vec<(&'static str, &'static Mutation, f64)> = Vec::new();
    origins
        .iter()
        .map(|origin| {
            let mut candidates = candidates(origin.id.name);
            // What explained the same stage of another layer goes first.
            candidates.sort_by_key(|(m, v)| {
                let hit = known
                    .iter()
                    .any(|(s, k, kv)| *s == origin.id.name && k.name == m.name && kv == v);
                !hit
            });
            // A fault of all positions before one that begins somewhere.
            let starts = std::iter::once(0).chain(start(origin));
            let cause = starts.into_iter().find_map(|since| {
                candidates.iter().find_map(|&(mutation, value)| {
                    let what = (mutation, value, since);
                    let cause = test(oracle, subject, origin, what, filter, policy)?;
                    known.push((origin.id.name, mutation, value));
                    Some(cause)
                })
            });
            let shape = match cause {
                Some(_) => String::new(),
                None => shape(oracle, subject, origin, filter),
            };
            Finding {
                id: origin.id,
                cause,
                shape,
            }
        })
        .collect()
}

/// The first wrong position, where positions before it are right.
fn start(origin: &StageResult) -> Option<usize> {
    let first = origin.subject.as_ref()?.bad_positions.first()?;
    (*first > 0).then_some(*first)
}

fn shape(oracle: &Oracle<'_>, subject: &Side<'_>, origin: &StageResult, filter: &Filter) -> String {
    let index = oracle.graph.index(origin.id);
    index.map_or_else(String::new, |i| {
        describe(&oracle.graph.nodes[i], oracle, subject, filter)
    })
}

fn candidates(stage: &str) -> Vec<(&'static Mutation, f64)> {
    catalogue()
        .filter(|m| m.concerns(stage))
        .flat_map(|m| match &m.param {
            None => vec![(m, 0.0)],
            Some(p) => std::iter::once(p.default)
                .chain(p.search.iter().copied())
                .map(|v| (m, v))
                .collect(),
        })
        .collect()
}

/// The cause, if assuming the mutation from position `since` on leaves nothing
/// unexplained.
fn test(
    oracle: &Oracle<'_>,
    subject: &Side<'_>,
    origin: &StageResult,
    (mutation, value, since): (&'static Mutation, f64, usize),
    filter: &Filter,
    policy: &Policy,
) -> Option<Cause> {
    let index = oracle.graph.index(origin.id)?;
    let mut node = oracle.graph.nodes[index].clone();
    if !(mutation.apply)(&mut node, value, &oracle.graph.config) {
        return None;
    }
    let write = std::mem::replace(&mut node.write, Write::All);
    // Earlier rows are right without it: none of them is beyond its bound.
    let filter = &filter.since(since);
    let mut check = Check::new(&node, filter, policy);
    let sides = std::slice::from_ref(subject);
    let (graph, weights) = (&oracle.graph, &oracle.weights);
    evaluate(&node, graph, weights, sides, filter, &mut |mut block| {
        leave(write, &mut block, subject, node.id);
        check.take(&block);
        // The first row that it does not explain refutes it.
        if check.ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    let after: Local = check.finish()?;
    let before = origin.subject.as_ref()?;
    let param = mutation.param.as_ref();
    let param = param.map_or_else(String::new, |p| format!(":{}={value}", p.name));
    let range = match since {
        0 => String::new(),
        since => format!("@p{since}.."),
    };
    after.ok().then(|| Cause {
        name: format!("{}{param}{range}", mutation.name),
        story: mutation.story.to_owned(),
        remedy: mutation.remedy.to_owned(),
        before: before.residual,
        after: after.residual,
    })
}

/// Puts what the buffer held after the step before where `write` leaves it.
fn leave(write: Write, block: &mut Block<'_>, subject: &Side<'_>, id: StageId) {
    if write == Write::All {
        return;
    }
    let steps = &subject.capture.steps;
    let before = block.index.checked_sub(1).and_then(|i| steps[i].get(id));
    let at = block.rows.start * block.value.row_len();
    let old = before.as_ref().and_then(|t| t.data.get(at..));
    write.leave(&mut block.value, old);
}
