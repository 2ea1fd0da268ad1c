//! What engines that are right use of what is allowed.

use qdiff::report::markdown::escape;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Right engines, judged: written by the example `false_alarms` of the tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FalseAlarms {
    /// Always `false-alarms`.
    pub kind: String,
    /// Version of this layout.
    pub schema_version: u32,
    /// The command that measured it.
    pub command: String,
    /// Each kind of engine.
    pub engines: Vec<RightEngine>,
}

/// One kind of engine, in every order of summation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RightEngine {
    /// What it is called.
    pub name: String,
    /// Captures judged.
    pub captures: usize,
    /// Captures with a stage that the verdict calls wrong.
    pub diverged: usize,
    /// Inconclusive rows.
    pub inconclusive: usize,
    /// The largest share used of what a stage is allowed, in percent.
    pub percent: u32,
    /// That stage.
    pub stage: String,
}

/// A row for each kind of engine.
pub(super) fn render(all: &[FalseAlarms], out: &mut String) {
    out.push_str("\n## How near right engines come to an alarm\n");
    super::missing::missing("false-alarms", all.is_empty(), out);
    for measured in all {
        let _ = writeln!(
            out,
            "\nThe graph of a small model with massive activations, evaluated in f32 in the styles of other programs, each in ten \
             orders of summation, with every stage and every pair of stages left out: measured by `{}`.\n\n\
             | engine | captures | DIVERGED | rows inconclusive | largest error / bound | at |\n\
             | --- | ---: | ---: | ---: | ---: | --- |",
            measured.command.replace('`', "'")
        );
        for RightEngine { name, captures, diverged, inconclusive, percent, stage } in &measured.engines {
            let (name, stage) = (escape(name), escape(stage));
            let _ = writeln!(out, "| {name} | {captures} | {diverged} | {inconclusive} | {percent} % | {stage} |");
        }
    }
}
