//! What `qdiff sweep` tells: the same tokens in steps of different size.

use super::screen::{Check, Document, Line, Next, Screen, Section, Table};
use super::stages::NONE;
use super::{Outcome, origin, standing};
use crate::number::{counted, number};
use crate::sweep::{Difference, Pass, words};
use schemars::JsonSchema;
use serde::Serialize;

/// The report of a sweep.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SweepReport {
    /// What it comes to.
    pub outcome: Outcome,
    /// Where the first pass that tells something is wrong, or that none is.
    pub headline: String,
    /// Name of the prompt.
    pub prompt: String,
    /// Tokens of the run, those that were decoded included.
    pub tokens: usize,
    /// Who was under suspicion.
    pub subject: String,
    /// What it was held against.
    pub reference: String,
    /// Faults injected into the subject, in words.
    pub injected: Vec<String>,
    /// Those of them that change no stage of any pass by more than rounding may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inert: Vec<String>,
    /// Rules that replace the bounds of chosen stages.
    pub tolerance: Vec<String>,
    /// A pass per size, the whole in one batch first.
    pub passes: Vec<Pass>,
    /// The command that judges the first wrong pass alone; empty where none is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
}

impl SweepReport {
    /// What `passes` on so many `tokens` come to.
    pub fn new(
        (prompt, tokens): (String, usize), [subject, reference]: [String; 2],
        (injected, inert, tolerance): (Vec<String>, Vec<String>, Vec<String>), passes: Vec<Pass>,
    ) -> Self {
        let (outcome, headline) = judged(&passes);
        let headline = match outcome {
            Outcome::Match | Outcome::Incomplete => origin::loosened(&tolerance) + &origin::inert(&inert) + &headline,
            _ => headline,
        };
        Self {
            outcome,
            headline,
            prompt,
            tokens,
            subject,
            reference,
            injected,
            inert,
            tolerance,
            passes,
            command: String::new(),
        }
    }
}

impl SweepReport {
    /// The first pass in which a side is wrong.
    pub fn first_wrong(&self) -> Option<&Pass> {
        self.passes.iter().find(|pass| pass.wrong > 0 || pass.disputed.is_some())
    }
}

fn judged(passes: &[Pass]) -> (Outcome, String) {
    if passes.iter().any(|p| p.wrong > 0) {
        return (Outcome::Diverged, words(passes));
    }
    if let Some(stage) = passes.iter().find_map(|p| p.disputed) {
        let text = "the subject agrees with f64, the reference does not: `qdiff run` tests which of the two is wrong";
        return (Outcome::OracleSuspect, format!("at {stage}: {text}"));
    }
    if passes.iter().all(|p| p.coverage.complete()) {
        return (Outcome::Match, words(passes));
    }
    (Outcome::Incomplete, "no divergence, but not everything asked for could be judged".to_owned())
}

impl Document for SweepReport {
    const KIND: &'static str = "sweep";

    fn screen(&self, _: bool) -> Screen {
        let tokens = counted(self.tokens, "token");
        let (subject, reference) = (&self.subject, &self.reference);
        let mut run: Vec<Line> =
            vec![("run", format!("{}: {tokens}; subject {subject}, reference {reference}", self.prompt))];
        run.extend(self.tolerance.iter().map(|rule| ("tolerance", format!("{rule}, instead of the bound"))));
        run.extend(origin::injected(&self.injected, &self.inert));
        let table = Table::new(
            &["fed", "steps", "stages wrong", "first wrong", "difference, subject", "difference, reference"],
            &[1, 2],
            self.passes.iter().map(row),
        );
        let meaning = format!(
            "the largest relative L2 distance of a row from the same row of the run {}",
            self.passes.first().map_or("", |p| &p.fed)
        );
        let check =
            |pass: &Pass| Check::new("sweep", pass.fed.clone(), origin::ended(outcome(pass), wrong_stages(pass)));
        let wrong = self.first_wrong();
        let cause = wrong.filter(|pass| pass.wrong > 0).map(|pass| match &pass.cause {
            Some(cause) => format!("{cause}; {}", standing::UNTRIED),
            None => origin::UNKNOWN.to_owned(),
        });
        let remedy = wrong.and_then(|pass| pass.remedy.clone());
        let why = cause.map(|cause| ("cause", cause)).into_iter().chain(remedy.map(|remedy| ("remedy", remedy)));
        let next = Next { command: self.command.clone(), why: "the first wrong pass, with every stage" };
        Screen {
            next: (!self.command.is_empty()).then_some(next),
            sections: vec![
                Section::lines("", why.collect()),
                Section::lines("Run", run),
                Section::table("Passes", table),
                Section::lines("", vec![("difference", meaning)]),
            ],
            checks: self.passes.iter().map(check).collect(),
            ..Screen::new(format!("{}, in steps of different size", self.prompt), self.outcome, self.headline.clone())
        }
    }
}

fn outcome(pass: &Pass) -> Outcome {
    match (pass.wrong, pass.disputed) {
        (0, None) if pass.coverage.complete() => Outcome::Match,
        (0, None) => Outcome::Incomplete,
        (0, Some(_)) => Outcome::OracleSuspect,
        _ => Outcome::Diverged,
    }
}

fn wrong_stages(pass: &Pass) -> String {
    let at = pass.first_wrong.or(pass.disputed).map_or_else(String::new, |id| format!(", first {id}"));
    format!("{} wrong{at}", counted(pass.wrong, "stage"))
}

/// Distances that are printed as numbers.
const MOST: f64 = 999.0;

fn row(pass: &Pass) -> Vec<String> {
    let none = || NONE.to_owned();
    // More says only that the one row is next to nothing.
    let size = |error: f64| if error > MOST { format!(">{MOST}") } else { number(error) };
    let difference = |d: &Option<Difference>| match d {
        None => none(),
        Some(d) if d.global.error == 0.0 => "0".to_owned(),
        Some(d) => format!("{} {}", size(d.global.error), d.stage),
    };
    vec![
        pass.fed.clone(),
        pass.steps.to_string(),
        pass.wrong.to_string(),
        pass.first_wrong().map_or_else(none, |(stage, p)| format!("{stage} p{p}")),
        difference(&pass.subject),
        difference(&pass.reference),
    ]
}
