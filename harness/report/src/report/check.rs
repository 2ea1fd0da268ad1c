//! What `qdiff check` tells: a battery of runs, and what none of them exercised.

use super::screen::{Check, Document, Fate, Line, Next, Screen, Section, Table};
use super::stages::NONE;
use super::{ModelInfo, Outcome, Report, origin, standing};
use crate::capture::Whose;
use crate::diagnose::Finding;
use crate::metrics::largest;
use crate::number::{Real, counted, percent};
use qdiff_engine::model::StageId;
use schemars::JsonSchema;
use serde::Serialize;

/// The report of a battery.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CheckReport {
    /// What it comes to.
    pub outcome: Outcome,
    /// How many cases match, which does not, and what was left out.
    pub headline: String,
    /// The model.
    pub model: ModelInfo,
    /// Faults injected into the subject, in words.
    pub injected: Vec<String>,
    /// Those of them that change no stage of any case by more than rounding may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inert: Vec<String>,
    /// Every case of the battery.
    pub cases: Vec<Case>,
    /// What no case exercised.
    pub unexercised: Vec<String>,
}

/// A case of the battery.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// What it exercises.
    pub about: String,
    /// What became of it.
    #[serde(flatten)]
    pub fared: Fared,
}

/// What became of a case.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "fared")]
pub enum Fared {
    /// It was run.
    Run(Box<Run>),
    /// It was not run, for the model has no room for it or nobody wanted it.
    LeftOut {
        /// Why.
        why: String,
    },
    /// It could not be run.
    Failed {
        /// Why.
        error: String,
    },
}

/// A case that was run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Run {
    /// Its outcome.
    pub outcome: Outcome,
    /// Its verdict, as `qdiff run` tells it.
    pub headline: String,
    /// The runner under suspicion.
    pub subject: String,
    /// The runner it was held against.
    pub reference: String,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Tokens decoded after it.
    pub decoded: usize,
    /// Largest share of what is allowed that a stage of the subject took.
    #[serde(with = "Real")]
    pub used: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Why it is wrong, if the headline says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Told>,
    /// What it did not exercise.
    pub unexercised: Vec<String>,
    /// Injected faults that change no stage by more than rounding may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inert: Vec<String>,
    /// The first bits of a batch that differ from those of a sequence alone, if that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<Other>,
    /// The command that repeats it.
    pub command: String,
}

/// A cause as a case tells it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Told {
    /// What it is called in any layer, wherever it holds.
    pub name: String,
    /// What other tokens say of it, if they bear it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<String>,
    /// How to mend it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Bits that a sequence gives beside others, and not alone.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Other {
    /// The sequence, and how often it had taken tokens back.
    #[serde(flatten)]
    pub whose: Whose,
    /// The first stage that has such bits.
    pub stage: StageId,
    /// The first position there.
    pub position: usize,
    /// Elements of the stage, in that step, that differ.
    pub elements: usize,
    /// Whether the stage is right within rounding all the same.
    pub right: bool,
}

impl Other {
    fn words(&self) -> String {
        let Self { whose, stage, position, elements, right } = self;
        let by = if *right {
            "another order of summation explains the difference, so no arithmetic is wrong"
        } else {
            "the difference is larger than rounding"
        };
        format!(
            "{whose} gives other bits than alone, first at {stage}, position {position}, in {}; {by}",
            counted(*elements, "element")
        )
    }
}

impl Fared {
    /// What became of a case whose run gave `report`.
    pub fn run(report: &Report) -> Self {
        let screen = Document::screen(report, false);
        let locals = report.diagnosis.verdict.stages.iter().filter_map(|s| s.subject.as_ref());
        let first = report.diagnosis.findings.first();
        let told = first.filter(|first| {
            let words = first.told().or_else(|| first.plain().map(str::to_owned));
            words.is_some_and(|words| screen.headline.contains(&words))
        });
        // What the values of several sequences show has the numbers of one run in its words.
        let shown = |first: &Finding| first.trial.as_ref().and(first.plain()).map(without_numbers);
        let name = |first: &Finding| first.name().or_else(|| shown(first));
        let remedy = |first: &Finding| first.mended().map(str::to_owned);
        let cause = told.and_then(|first| {
            Some(Told { name: name(first)?, standing: standing::short(first), remedy: remedy(first) })
        });
        Self::Run(Box::new(Run {
            outcome: report.outcome,
            headline: screen.headline,
            cause,
            subject: report.subject.name.clone(),
            reference: report.reference.name.clone(),
            tokens: report.run.tokens.len(),
            decoded: report.run.decoded.len(),
            used: largest(locals.map(|l| l.used)),
            seconds: report.seconds.total() - report.seconds.weights,
            unexercised: report.run.unexercised.clone(),
            inert: report.run.inert.clone(),
            other: None,
            command: report.run.repeat(),
        }))
    }

    /// What became of a batch whose sequences gave `reports`: the one that fared worst speaks for all. Where other bits than those
    /// of a run alone are a fault, `other` is one.
    ///
    /// # Panics
    /// If there is no report.
    pub fn batch(reports: &[&Report], other: Option<Other>) -> Self {
        // Prefers the one that went wrong at the first stage, then one that says why.
        let badness = |report: &&&Report| {
            let stages = &report.diagnosis.verdict.stages;
            let first = report.diagnosis.findings.first();
            let at = first.map_or(0, |first| stages.iter().position(|stage| stage.id == first.id).unwrap_or(0));
            let tried = first.is_some_and(|first| standing::short(first).is_some());
            (report.outcome.rank(), at, !tried, !first.is_some_and(Finding::says_why))
        };
        let worst = reports.iter().min_by_key(badness).expect("a batch has sequences");
        let Self::Run(mut run) = Self::run(worst) else { unreachable!("a report is of a run") };
        let own = |report: &&&Report| match Self::run(report) {
            Self::Run(run) => Some(run),
            _ => None,
        };
        let all: Vec<Box<Run>> = reports.iter().filter_map(|report| own(&report)).collect();
        run.used = largest(all.iter().map(|run| run.used));
        run.tokens = all.iter().map(|run| run.tokens).sum();
        run.seconds = all.iter().map(|run| run.seconds).sum();
        run.unexercised.retain(|what| all.iter().all(|run| run.unexercised.contains(what)));
        if let Some(other) = other {
            if run.outcome == Outcome::Match {
                (run.outcome, run.headline) = (Outcome::Diverged, other.words());
            }
            run.other = Some(other);
        }
        Self::Run(run)
    }
}

impl CheckReport {
    /// A battery of which nothing is known yet.
    pub fn new(model: ModelInfo, injected: Vec<String>) -> Self {
        let (outcome, headline) = (Outcome::Incomplete, String::new());
        let (cases, unexercised, inert) = (Vec::new(), Vec::new(), Vec::new());
        Self { outcome, headline, model, injected, inert, cases, unexercised }
    }

    /// The same with what its cases come to.
    pub fn judged(self) -> Self {
        let in_all = |pick: fn(&Run) -> &Vec<String>| -> Vec<String> {
            let first = self.runs().next().map(|(_, run)| pick(run).clone()).unwrap_or_default();
            first.into_iter().filter(|what| self.runs().all(|(_, run)| pick(run).contains(what))).collect()
        };
        let (unexercised, inert) = (in_all(|run| &run.unexercised), in_all(|run| &run.inert));
        let failed = self.cases.iter().any(|c| matches!(c.fared, Fared::Failed { .. })) || self.runs().next().is_none();
        let outcomes = self.runs().map(|(_, run)| run.outcome).chain(failed.then_some(Outcome::Incomplete));
        let outcome = outcomes.min_by_key(|o| o.rank()).unwrap_or(Outcome::Incomplete);
        let reserve =
            if matches!(outcome, Outcome::Match | Outcome::Incomplete) { origin::inert(&inert) } else { String::new() };
        Self { outcome, headline: reserve + &self.told(outcome), unexercised, inert, ..self }
    }

    fn runs(&self) -> impl Iterator<Item = (&Case, &Run)> {
        self.cases.iter().filter_map(|c| if let Fared::Run(run) = &c.fared { Some((c, &**run)) } else { None })
    }

    fn told(&self, outcome: Outcome) -> String {
        let of = |wanted: Outcome| self.runs().filter(move |(_, run)| run.outcome == wanted);
        let (ran, right) = (self.runs().count(), of(Outcome::Match).count());
        let mut parts = vec![match ran {
            0 => "no case was run".to_owned(),
            ran => format!("{right} of {} match", counted(ran, "case")),
        }];
        if outcome != Outcome::Match {
            parts.extend(of(outcome).next().map(|(case, run)| format!("{} {}", case.name, run.line())));
            parts.extend(causes(&of(outcome).collect::<Vec<_>>()));
        }
        // Cases with one reason that follow each other make one line.
        let same = |a: &&Case, b: &&Case| match (&a.fared, &b.fared) {
            (Fared::LeftOut { why: a }, Fared::LeftOut { why: b }) => a == b,
            (Fared::Failed { .. }, Fared::Failed { .. }) => true,
            _ => false,
        };
        let others: Vec<&Case> = self.cases.iter().filter(|c| !matches!(c.fared, Fared::Run(_))).collect();
        parts.extend(others.chunk_by(same).map(|alike| {
            let names: Vec<&str> = alike.iter().map(|case| case.name.as_str()).collect();
            let name = names.join(", ");
            match &alike[0].fared {
                Fared::LeftOut { why } => {
                    format!("{name} {} left out ({why})", if names.len() > 1 { "were" } else { "was" })
                }
                Fared::Failed { error } => format!("{name} could not be run ({error})"),
                Fared::Run(_) => String::new(),
            }
        }));
        parts.join("; ")
    }
}

/// How far the cause of the first of several wrong cases may be relied on, and what the others say.
fn causes(wrong: &[(&Case, &Run)]) -> Option<String> {
    let ((_, first), others) = wrong.split_first()?;
    let cause = |run: &&(&Case, &Run)| run.1.cause.is_some();
    let say = |n: usize, one: &str, several: &str| match n {
        0 => None,
        1 => Some(format!("1 other case {one}")),
        n => Some(format!("{n} other cases {several}")),
    };
    let Some(own) = &first.cause else {
        let borne_out =
            |(case, run): &(&Case, &Run)| Some((case.name.clone(), run.cause.as_ref()?.standing.clone()?, run.line()));
        let (case, standing, line) = others.iter().find_map(borne_out)?;
        return Some(format!("{case} names a cause, {standing}: {line}"));
    };
    let same = |run: &&(&Case, &Run)| run.1.cause.as_ref().is_some_and(|cause| cause.name == own.name);
    let (alike, named) = (others.iter().filter(same).count(), others.iter().filter(cause).count());
    let parts = [
        Some(format!("its cause is {}", own.standing.as_deref().unwrap_or("not confirmed on other tokens"))),
        say(alike, "has the same", "have the same"),
        say(named - alike, "names another", "name others"),
        say(others.len() - named, "has no known cause", "have no known cause"),
    ];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

/// The words with an N for each number.
fn without_numbers(words: &str) -> String {
    let digits = words.chars().map(|c| if c.is_ascii_digit() { 'N' } else { c });
    digits.fold(String::new(), |mut all, c| {
        if c != 'N' || !all.ends_with('N') {
            all.push(c);
        }
        all
    })
}

impl Run {
    /// `DIVERGED at L00.q_rope, …`.
    fn line(&self) -> String {
        Screen::new("", self.outcome, self.headline.clone()).line()
    }
}

impl Document for CheckReport {
    const KIND: &'static str = "check";

    fn screen(&self, _: bool) -> Screen {
        let model = format!("{} {}, {}", self.model.name, self.model.format, counted(self.model.layers, "layer"));
        let mut facts: Vec<Line> = vec![("model", model)];
        facts.extend(self.model.adapters.iter().map(|adapter| ("adapter", adapter.words())));
        facts.extend(
            self.runs().next().map(|(_, r)| ("run", format!("subject {}, reference {}", r.subject, r.reference))),
        );
        facts.extend(origin::injected(&self.injected, &self.inert));
        if !self.unexercised.is_empty() {
            facts.push(("untested", format!("not exercised by any case: {}", self.unexercised.join(", "))));
        }
        let columns = ["case", "what", "outcome", "used", "seconds"];
        let table = Table::new(&columns, &[3, 4], self.cases.iter().map(row)).status(2);
        let wrong = self.runs().find(|(_, run)| run.outcome == self.outcome && run.outcome != Outcome::Match);
        let why = |run: &Run| match (self.outcome, &run.other) {
            (Outcome::Incomplete, _) => "the first incomplete case alone",
            (_, Some(other)) if other.right => "the stages of that case; qdiff run does not compare bits",
            _ => "the first wrong case alone",
        };
        let next = wrong.map(|(_, run)| Next { command: run.command.clone(), why: why(run) });
        let remedy = wrong.and_then(|(_, run)| run.cause.as_ref()?.remedy.clone());
        let remedy = remedy.map(|remedy| ("remedy", remedy)).into_iter().collect();
        Screen {
            sections: vec![Section::lines("", remedy), Section::lines("Run", facts), Section::table("Cases", table)],
            checks: self.cases.iter().map(check).collect(),
            next,
            seconds: self.runs().map(|(_, run)| run.seconds).sum(),
            ..Screen::new(format!("{}, the battery", self.model.name), self.outcome, self.headline.clone())
        }
    }
}

fn row(case: &Case) -> Vec<String> {
    let none = || NONE.to_owned();
    let (outcome, used, seconds) = match &case.fared {
        Fared::Run(run) => (run.outcome.word().to_owned(), percent(run.used), format!("{:.1}", run.seconds)),
        Fared::LeftOut { .. } => ("left out".to_owned(), none(), none()),
        Fared::Failed { .. } => ("could not be run".to_owned(), none(), none()),
    };
    vec![case.name.clone(), case.about.clone(), outcome, used, seconds]
}

fn check(case: &Case) -> Check {
    match &case.fared {
        Fared::Run(run) => {
            Check::new("check", case.name.as_str(), origin::ended(run.outcome, run.headline.clone())).took(run.seconds)
        }
        Fared::LeftOut { why } => Check::new("check", case.name.as_str(), Fate::Skipped(why.clone())),
        Fared::Failed { error } => Check::new("check", case.name.as_str(), Fate::Error(error.clone())),
    }
}
