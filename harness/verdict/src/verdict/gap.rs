//! What was not judged for want of captured stages, and the fewest stages that would have to be captured as well.

use super::{StageResult, Verdict};
use crate::capture::Capture;
use qdiff_engine::model::{Graph, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is missing of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// Stages of which rows were not judged, in graph order.
    pub stages: Vec<StageId>,
    /// Rows asked for and not judged.
    pub rows: usize,
    /// The stages to capture as well: each is judged alone, and shows those
    /// before it up to the last that is captured.
    pub add: Vec<StageId>,
    /// Whether it is the reference's capture that lacks them.
    pub of_reference: bool,
}

impl Verdict {
    /// The selected rows that were not judged, in the judged captures;
    /// `None` where nothing is missing, or only a reference.
    pub fn gap(&self, graph: &Graph, subject: &Capture, reference: Option<&Capture>) -> Option<Gap> {
        if self.coverage.asked <= self.coverage.judged {
            return None;
        }
        let open = |stage: &&StageResult| self.unjudged.iter().any(|u| u.stage == stage.id);
        let stages: Vec<&StageResult> = self.stages.iter().filter(open).collect();
        let of_subject = additions(graph, &stages, subject, |s| s.subject.is_none());
        let of_reference = match (of_subject.is_empty(), reference) {
            (true, Some(reference)) => additions(graph, &stages, reference, |s| s.reference.is_none()),
            _ => Vec::new(),
        };
        Some(Gap {
            stages: stages.iter().map(|s| s.id).collect(),
            rows: self.coverage.asked - self.coverage.judged,
            of_reference: of_subject.is_empty() && !of_reference.is_empty(),
            add: if of_subject.is_empty() { of_reference } else { of_subject },
        })
    }
}

/// The fewest stages that show all of `open`, from the last of the graph on: a stage shows those before it. In a
/// segment that says too little, the stage in its middle.
fn additions(
    graph: &Graph, open: &[&StageResult], capture: &Capture, unjudged: impl Fn(&StageResult) -> bool,
) -> Vec<StageId> {
    let mut captured: Vec<bool> =
        graph.nodes.iter().map(|n| capture.steps.iter().all(|s| s.stages.contains_key(&n.id))).collect();
    let mut add = Vec::new();
    for stage in open.iter().rev() {
        let Some(index) = graph.index(stage.id) else { continue };
        let local = stage.subject.as_ref().or(stage.reference.as_ref());
        match local.filter(|l| l.inconclusive > 0).and_then(|l| l.segment.as_ref()) {
            Some(segment) if captured[index] => {
                let unseen = |id: &&StageId| graph.index(**id).is_some_and(|i| !captured[i]);
                let inside: Vec<&StageId> = segment.stages.iter().filter(unseen).collect();
                add.extend(inside.get(inside.len() / 2).copied());
            }
            _ if unjudged(stage) && !captured[index] && graph.after(index, &|i| captured[i]).is_empty() => {
                captured[index] = true;
                add.push(stage.id);
            }
            _ => {}
        }
    }
    add.reverse();
    add
}
