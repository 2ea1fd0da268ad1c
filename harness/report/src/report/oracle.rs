//! What `qdiff verify-oracle` tells: whether the f64 evaluation itself is right.

use super::Outcome;
use super::origin::grouped;
use super::screen::{Check, Document, Fate, Screen, Section, Table};
use super::stages::{class, worst};
use crate::metrics::largest;
use crate::number::{counted, number, percent};
use crate::verdict::Local;
use qdiff_engine::model::StageId;
use schemars::JsonSchema;
use serde::Serialize;

/// How llama.cpp on F32 weights meets f64.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OracleReport {
    /// Name of the prompt.
    pub prompt: String,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Decode steps after it.
    pub decode: usize,
    /// Every stage that could be held against f64, in graph order.
    pub stages: Vec<OracleStage>,
}

/// A stage of llama.cpp on F32 weights.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OracleStage {
    /// The stage.
    pub stage: StageId,
    /// How far it is from f64 on its own operands.
    pub local: Local,
}

impl Document for OracleReport {
    const KIND: &'static str = "oracle";

    fn screen(&self, full: bool) -> Screen {
        let (outcome, headline) = match (self.stages.iter().find(|s| !s.local.ok()), self.stages.len()) {
            (Some(OracleStage { stage, .. }), _) => {
                (Outcome::OracleSuspect, format!("at {stage}: llama.cpp on F32 weights does not agree with f64"))
            }
            (None, 0) => (Outcome::Incomplete, "no stage could be compared with f64".to_owned()),
            (None, n) => {
                let (stages, used) = (counted(n, "stage"), percent(largest(self.stages.iter().map(|s| s.local.used))));
                let worst = format!("the worst error is {used} of what f32 allows");
                (Outcome::Match, format!("llama.cpp on F32 weights agrees with f64 in all {stages}; {worst}"))
            }
        };
        let (tokens, steps) = (counted(self.tokens, "prompt token"), counted(self.decode, "decode step"));
        let key = |s: &&OracleStage| if full { s.stage.to_string() } else { s.stage.name.to_owned() };
        let row = |(name, group): (String, Vec<&OracleStage>)| {
            let worst = worst(group.iter().map(|s| (s.stage, &s.local)));
            let figures = worst.map(|(_, l)| [number(l.residual), number(l.allowed), percent(l.used)]);
            [name, group.len().to_string()].into_iter().chain(figures.into_iter().flatten()).collect()
        };
        let table = Table::new(
            &["stage", "layers", "local, worst", "allowed", "used"],
            &[1, 2, 3, 4],
            grouped(&self.stages, key).into_iter().map(row),
        );
        let check = |s: &OracleStage| {
            let wrong = format!("residual {}, allowed {}", number(s.local.residual), number(s.local.allowed));
            let fate = if s.local.ok() { Fate::Passed(String::new()) } else { Fate::Error(wrong) };
            Check::new(class(s.stage), s.stage.to_string(), fate)
        };
        Screen {
            sections: vec![
                Section::lines("Run", vec![("run", format!("{}: {tokens} + {steps}", self.prompt))]),
                Section::table("Stages", table),
            ],
            checks: self.stages.iter().map(check).collect(),
            ..Screen::new(format!("the oracle, {}", self.prompt), outcome, headline)
        }
    }
}
