//! Why: the catalogue evaluated on the subject's own operands.

use super::{Mutation, catalogue};
use crate::capture::{Capture, Filter, Step};
use crate::oracle::Oracle;
use crate::verdict::{Finding, Local, Policy, Side, StageResult, evaluate, residual};
use qdiff_engine::model::{Node, Write};
use serde::Serialize;

/// An explanation that reproduces the subject's output.
#[derive(Clone, Debug, Serialize)]
pub struct Cause {
    /// Name of the mutation, with its parameter.
    pub name: String,
    /// What is wrong, in one sentence.
    pub story: &'static str,
    /// How to mend it.
    pub remedy: &'static str,
    /// Residual of the stage as it should be.
    pub before: f64,
    /// Residual once the fault is assumed.
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
            let cause = candidates.into_iter().find_map(|(mutation, value)| {
                let cause = test(oracle, subject, origin, (mutation, value), filter, policy)?;
                known.push((origin.id.name, mutation, value));
                Some(cause)
            });
            Finding {
                stage: origin.stage.clone(),
                id: origin.id,
                cause,
            }
        })
        .collect()
}

fn candidates(stage: &str) -> Vec<(&'static Mutation, f64)> {
    catalogue()
        .filter(|m| m.stages.contains(&stage))
        .flat_map(|m| match &m.param {
            None => vec![(m, 0.0)],
            Some(p) => std::iter::once(p.default)
                .chain(p.search.iter().copied())
                .map(|v| (m, v))
                .collect(),
        })
        .collect()
}

/// The cause, if assuming the mutation leaves nothing unexplained.
fn test(
    oracle: &Oracle<'_>,
    subject: &Side<'_>,
    origin: &StageResult,
    (mutation, value): (&'static Mutation, f64),
    filter: &Filter,
    policy: &Policy,
) -> Option<Cause> {
    let index = oracle.graph.index(origin.id)?;
    let mut node = oracle.graph.nodes[index].clone();
    if !(mutation.apply)(&mut node, value) {
        return None;
    }
    let clean = Write::All;
    let write = std::mem::replace(&mut node.write, clean);
    let mut expected = evaluate(
        &node,
        &oracle.graph,
        &oracle.weights,
        std::slice::from_ref(subject),
    )
    .pop()?;
    if let Write::Stale { stride, phase } = write {
        keep_stale(&mut expected, subject.capture, &node, stride, phase);
    }
    let after: Local = residual(&node, oracle, subject, &expected, filter, policy)?;
    let before = origin.subject.as_ref()?;
    after.ok().then(|| Cause {
        name: match &mutation.param {
            Some(p) => format!("{}:{}={value}", mutation.name, p.name),
            None => mutation.name.to_owned(),
        },
        story: mutation.story,
        remedy: mutation.remedy,
        before: before.residual,
        after: after.residual,
    })
}

/// Puts the subject's values of the step before where nothing was written.
fn keep_stale(
    expected: &mut crate::verdict::Expected,
    capture: &Capture,
    node: &Node,
    stride: usize,
    phase: usize,
) {
    let mut before: Option<&Step> = None;
    for (step, expected) in capture.steps.iter().zip(expected) {
        if let Some((value, _)) = expected {
            let width = value.row_len();
            let old = before.and_then(|s| s.stages.get(&node.id));
            for t in 0..value.rows() {
                for i in (phase..width).step_by(stride.max(1)) {
                    let at = t * width + i;
                    let kept = old.and_then(|o| o.data.get(at)).copied().unwrap_or(0.0);
                    value.data[at] = f64::from(kept);
                }
            }
        }
        before = Some(step);
    }
}
