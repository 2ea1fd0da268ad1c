//! What `qdiff rl` tells: which side is wrong, and what of the gap of the logprobs rounding does not explain.

use super::origin;
use super::screen::{Check, Document, Fate, Line, Screen, Section, Table};
use super::{ModelInfo, Outcome};
use crate::diagnose::Diagnosis;
use crate::number::{counted, number};
use crate::rl::{Meaning, OfSide, RUNS, Study, Token};
use crate::runners::Manifest;
use schemars::JsonSchema;
use serde::Serialize;

/// Tokens that are shown: those whose gap is the largest share of what is allowed.
const SHOWN: usize = 8;

/// The report of a trainer and a rollout.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RlReport {
    /// What it comes to.
    pub outcome: Outcome,
    /// Which side is wrong and where, or by how much the logprobs are apart.
    pub headline: String,
    /// The model.
    pub model: ModelInfo,
    /// The tokens of both runs.
    pub tokens: Vec<u32>,
    /// The trainer, judged alone.
    pub trainer: RlSide,
    /// The rollout, judged alone.
    pub rollout: RlSide,
    /// Their logprobs.
    pub logprobs: Study,
}

/// One side, judged alone.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RlSide {
    /// What it is, and its arithmetic.
    pub manifest: Manifest,
    /// Its stages, each on its own operands, and why the wrong ones are.
    #[serde(rename = "verdict")]
    pub diagnosis: Diagnosis,
}

impl RlReport {
    /// What these came to.
    pub fn new(model: ModelInfo, tokens: Vec<u32>, [trainer, rollout]: [RlSide; 2], logprobs: Study) -> Self {
        let mut report =
            Self { outcome: Outcome::Match, headline: String::new(), model, tokens, trainer, rollout, logprobs };
        (report.outcome, report.headline) = report.settled();
        report
    }

    fn sides(&self) -> [(&'static str, &RlSide, &OfSide); 2] {
        [("trainer", &self.trainer, &self.logprobs.trainer), ("rollout", &self.rollout, &self.logprobs.rollout)]
    }

    fn settled(&self) -> (Outcome, String) {
        let wrong: Vec<String> = self.sides().iter().filter_map(|(name, side, of)| wrong(name, side, of)).collect();
        if !wrong.is_empty() {
            return (Outcome::Diverged, wrong.join("; "));
        }
        let beyond: Vec<&Token> =
            self.logprobs.tokens.iter().filter(|token| token.remains.0.is_nan() || token.remains.0 > 0.0).collect();
        if let Some(worst) = worst(&beyond).first() {
            let (of, all) = (beyond.len(), counted(self.logprobs.tokens.len(), "token"));
            let text = format!(
                "no stage is wrong, but at {of} of {all} rounding does not explain the gap of the logprobs: {} nats at p{}, \
                 of which rounding allows {}",
                number(worst.gap.0),
                worst.position,
                allowed(worst)
            );
            return (Outcome::Diverged, text);
        }
        let complete = self.sides().iter().all(|(_, side, _)| side.diagnosis.verdict.coverage.complete_alone());
        let bounded = self.logprobs.tokens.iter().all(|token| token.allowed.is_some());
        let all: Vec<&Token> = self.logprobs.tokens.iter().collect();
        let Some(worst) = worst(&all).first().copied() else {
            return (Outcome::Incomplete, "there is no token of which both sides give a logprob".to_owned());
        };
        let text = format!(
            "the logprobs of {} differ by no more than rounding allows: the gap nearest its limit is {} nats, where {} are allowed, at p{}",
            counted(self.logprobs.tokens.len(), "token"),
            number(worst.gap.0),
            allowed(worst),
            worst.position
        );
        match (complete, bounded) {
            (true, true) => (Outcome::Match, text),
            (false, _) => (Outcome::Incomplete, format!("{text}; not every stage of both sides could be judged")),
            (true, false) => (Outcome::Incomplete, format!("{text}; at some tokens rounding may do anything")),
        }
    }
}

fn allowed(token: &Token) -> String {
    token.allowed.map_or_else(|| "anything".to_owned(), |allowed| number(allowed.0))
}

/// The tokens by the share of what they are allowed, the largest first.
fn worst<'a>(tokens: &[&'a Token]) -> Vec<&'a Token> {
    let share = |token: &Token| match token.allowed {
        _ if token.gap.0.is_nan() => f64::INFINITY,
        Some(allowed) => token.gap.0.abs() / allowed.0,
        None => 0.0,
    };
    let mut all = tokens.to_vec();
    all.sort_by(|a, b| share(b).total_cmp(&share(a)));
    all
}

/// What is wrong of a side, if anything is.
fn wrong(name: &str, side: &RlSide, of: &OfSide) -> Option<String> {
    let verdict = &side.diagnosis.verdict;
    let stage = side
        .diagnosis
        .findings
        .first()
        .map(|finding| format!("the {name} is wrong {}", origin::headline(verdict, finding)));
    let ailment =
        || verdict.ailment().map(|symptom| format!("the {name} is wrong at {symptom} (a health check fails)"));
    let means = of.means.filter(|means| means.what != Meaning::Plain);
    let meaning = means.map(|means| match means.what {
        Meaning::Unknown => format!(
            "{} of {} that the {name} reports are {}, first at p{}",
            means.other,
            counted(means.tokens, "logprob"),
            means.what.words(),
            means.first.unwrap_or_default()
        ),
        what => format!(
            "the logprobs that the {name} reports are {}; confirmed by {} that it was not fitted on",
            what.words(),
            counted(means.predicted, "token")
        ),
    });
    let beyond = |of: &OfSide| {
        let first = of.first_beyond?;
        Some(format!(
            "the {name} is further from the model in f64 than rounding allows at {} of {}, first at p{first}",
            of.beyond,
            counted(of.tokens, "token")
        ))
    };
    let parts: Vec<String> = stage.or_else(ailment).into_iter().chain(meaning).collect();
    if parts.is_empty() { beyond(of) } else { Some(parts.join("; ")) }
}

impl Document for RlReport {
    const KIND: &'static str = "rl";

    fn screen(&self, full: bool) -> Screen {
        let study = &self.logprobs;
        let mut lines: Vec<Line> = Vec::new();
        for (name, side, of) in self.sides() {
            lines.push((name, told(side, of)));
            lines.extend(origin::why(&side.diagnosis));
            if let Some(also) = of.means.and_then(|means| means.also) {
                lines.push(("fits too", also.words()));
            }
        }
        if !study.tokens.is_empty() {
            let text = format!(
                "{} nats (root mean square over {}); rounding of both makes it about {}",
                number(study.rms.0),
                counted(study.tokens.len(), "token"),
                number(study.expected.0)
            );
            lines.push(("gap", text));
            let text = format!(
                "10 standard deviations over {} in f64 for each side; each run adds a random error to every value, within the \
                 value's bound",
                counted(RUNS, "run")
            );
            lines.push(("allowed", text));
        }
        let all: Vec<&Token> = study.tokens.iter().collect();
        let of_all = all.len();
        let shown = if full { all } else { worst(&all).into_iter().take(SHOWN).collect() };
        let title = match shown.len() {
            some if some < of_all => format!("Tokens: the {some} of {of_all} whose gap is largest for what is allowed"),
            _ => "Tokens".to_owned(),
        };
        let checks = self.sides().map(|(name, side, of)| Check::new("side", name, Fate::of(wrong(name, side, of))));
        Screen {
            sections: vec![Section::lines("Sides", lines), Section::table(&title, table(&shown))],
            checks: checks.into(),
            ..Screen::new(format!("{}, trainer and rollout", self.model.name), self.outcome, self.headline.clone())
        }
    }
}

/// A side in words: its name, the rows that were judged, and what its logprobs are.
fn told(side: &RlSide, of: &OfSide) -> String {
    let coverage = &side.diagnosis.verdict.coverage;
    let first = side
        .diagnosis
        .findings
        .first()
        .map_or_else(|| "no stage is wrong".to_owned(), |finding| format!("the first wrong stage is {}", finding.id));
    let source = match of.means {
        Some(means) if means.what == Meaning::Plain => {
            format!("reports {}, {}", counted(of.tokens, "logprob"), means.what.words())
        }
        Some(_) => format!("reports {}", counted(of.tokens, "logprob")),
        None => format!("{} from its logits", counted(of.tokens, "logprob")),
    };
    let beyond = if of.beyond > 0 {
        format!(", {} of them further from f64 than rounding allows", of.beyond)
    } else {
        String::new()
    };
    format!("{}: {first} ({} of {} rows judged); {source}{beyond}", side.manifest.name, coverage.judged, coverage.asked)
}

fn table(tokens: &[&Token]) -> Table {
    let row = |token: &&Token| {
        let value = |v: f64| format!("{v:.5}");
        vec![
            format!("p{}", token.position),
            format!("{:?}", token.text),
            value(token.trainer.0),
            value(token.rollout.0),
            value(token.f64.0),
            number(token.gap.0),
            allowed(token),
            number(token.remains.0),
        ]
    };
    let columns = ["token", "text", "trainer", "rollout", "f64", "gap", "allowed", "remains"];
    Table::new(&columns, &[2, 3, 4, 5, 6, 7], tokens.iter().map(row))
}
