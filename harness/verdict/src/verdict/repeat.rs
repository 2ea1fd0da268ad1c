//! Run-to-run nondeterminism: the same runner on the same tokens must give the
//! same bits, before anything else is worth judging.

use super::Place;
use super::rows::{place, rows};
use crate::capture::Capture;
use crate::number::{Real, counted};
use qdiff_engine::model::{Graph, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stages that a sentence names.
const NAMED: usize = 4;

/// What repeating the subject showed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Repeated {
    /// How often it ran.
    pub runs: usize,
    /// What was changed for some of the runs, in words, and changed nothing in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub varied: Vec<String>,
    /// Where runs first differ, if they do.
    pub race: Option<Race>,
    /// Why the subject did not run again, where it diverged and was to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The first difference between two runs of one runner.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Race {
    /// The run that differs from the first one, counted from 1.
    pub run: usize,
    /// First stage that differs, by step and graph order.
    pub stage: StageId,
    /// First row that differs there.
    pub at: Place,
    /// First element of the row that differs.
    pub index: usize,
    /// Its value in the first run.
    #[serde(with = "Real")]
    pub first: f32,
    /// Its value in the other.
    #[serde(with = "Real")]
    pub other: f32,
    /// Elements of the stage that differ in that step.
    pub elements: usize,
    /// Elements of the stage in that step.
    pub of: usize,
    /// Stages of the run that differ in any step.
    pub stages: usize,
    /// Their names, in the order of the run.
    #[serde(default)]
    pub differing: Vec<StageId>,
    /// What was changed for that run, in words, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<String>,
}

impl Race {
    /// Compares run `run` with the first, bit by bit, as far as both were fed the same tokens.
    pub fn between(graph: &Graph, first: &Capture, other: &Capture, run: usize) -> Option<Self> {
        let mut race: Option<Self> = None;
        let mut stages: Vec<StageId> = Vec::new();
        let same = first.steps.iter().zip(&other.steps).take_while(|(a, b)| a.tokens == b.tokens);
        for (a, b) in same {
            for node in &graph.nodes {
                let (Some(x), Some(y)) = (a.get(node.id), b.get(node.id)) else {
                    continue;
                };
                // Scores of keys that a row does not see are nothing that a run gave.
                let bits = |data: &[f32], flat: usize| data.get(flat).map(|value| value.to_bits());
                let mut differing = rows(node, &x.shape, a, a.positions())
                    .flat_map(|(at, part)| part.clone().map(move |flat| (at, flat, flat - part.start)))
                    .filter(|&(_, flat, _)| bits(&x.data, flat) != bits(&y.data, flat));
                let found = differing.next();
                if found.is_none() && x.shape == y.shape {
                    continue;
                }
                if !stages.contains(&node.id) {
                    stages.push(node.id);
                }
                if race.is_some() {
                    continue;
                }
                let elements = found.iter().count() + differing.count();
                let (at, flat, index) = found.unwrap_or((place(node, &x.shape, a, &a.positions(), 0), 0, 0));
                race = Some(Self {
                    run,
                    stage: node.id,
                    at,
                    index,
                    first: x.data.get(flat).copied().unwrap_or(f32::NAN),
                    other: y.data.get(flat).copied().unwrap_or(f32::NAN),
                    elements,
                    of: x.data.len(),
                    stages: 0,
                    differing: Vec::new(),
                    under: None,
                });
            }
        }
        race.map(|race| Self { stages: stages.len(), differing: stages, ..race })
    }

    /// In words.
    pub fn words(&self) -> String {
        let under = self.under.as_ref().map_or_else(String::new, |words| format!(" ({words})"));
        let named: Vec<String> = self.differing.iter().take(NAMED).map(ToString::to_string).collect();
        let more = if self.differing.len() > NAMED { ", …" } else { "" };
        let stages = if named.len() > 1 { format!(" ({}{more})", named.join(", ")) } else { String::new() };
        format!(
            "not the same twice at {}, {}: a race, or memory that was never written; element {} is {} in run 1 and {} in \
             run {}{under} on the same tokens; {} of {} elements differ there, and {} in all{stages}",
            self.stage,
            self.at,
            self.index,
            self.first,
            self.other,
            self.run,
            self.elements,
            self.of,
            counted(self.stages, "stage")
        )
    }
}
