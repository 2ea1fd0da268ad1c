//! What `qdiff generate` tells: the outcome, then the texts, token by token.

use super::origin::{self, UNKNOWN};
use super::screen::{Check, Document, Fate, Line, Next, Screen, Section, Table};
use super::{Doubt, ModelInfo, Outcome, standing};
use crate::diagnose::{Diagnosis, Finding};
use crate::ends::EndCheck;
use crate::generate::{Choice, Fork, GeneratedText, Generation, OtherDraw, Stop};
use crate::nonce::Changes;
use crate::number::{counted, number};
use crate::sampling::Sampling;
use crate::tokens::TokensCheck;
use crate::verdict::{TokenCheck, Verdict};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;

/// The report of a generation.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GenerationReport {
    /// The outcome in one word; the exit code follows from it.
    pub outcome: Outcome,
    /// The model.
    pub model: ModelInfo,
    /// Name of the prompt.
    pub prompt: String,
    /// Its text as tokenised; empty where tokens were given.
    pub prompt_text: String,
    /// Its tokens.
    pub prompt_tokens: Vec<u32>,
    /// How tokens were drawn.
    pub sampling: Sampling,
    /// The number in the prompt, if it was to have one.
    pub nonce: Option<u32>,
    /// The engine's tokenizer against llama.cpp's.
    pub tokens: Option<TokensCheck>,
    /// Faults injected into the subject, in words.
    pub injected: Vec<String>,
    /// Those of them, of stages, that change none by more than rounding may on the subject's text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inert: Vec<String>,
    /// Where the subject ends a text, against what the file says.
    pub end: EndCheck,
    /// The texts, and where they part.
    pub generation: Generation,
    /// Why they part.
    pub cause: Option<Cause>,
    /// Both sides on the reference's tokens, after the fork.
    pub forced: Option<TeacherForced>,
    /// What changed with the number in the prompt.
    pub changes: Option<Changes>,
    /// The command that judges every stage where one is wrong; empty where `qdiff run` would not feed the same tokens.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// The tokens of both sides as they are shown, the reference's first; empty of a side that has ended.
    #[serde(skip)]
    pub rows: Vec<[String; 2]>,
}

/// Why two texts part.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Cause {
    /// Every stage is correct on both sides: the difference comes from rounding (of quantised activations too).
    Flip,
    /// A stage of the subject is wrong.
    Divergence {
        /// The first such stage.
        stage: String,
        /// What explains it, if anything known does.
        why: Option<String>,
        /// How to mend it.
        #[serde(skip_serializing_if = "Option::is_none")]
        remedy: Option<String>,
        /// How many stages are.
        origins: usize,
    },
    /// The engine's samplers draw another token from the same logits.
    Sampler(OtherDraw),
    /// No stage is wrong as far as could be judged, and that is not far enough.
    Undecided {
        /// What is in the way.
        why: String,
    },
}

impl Cause {
    /// What a verdict on the same tokens says.
    pub fn of(diagnosis: &Diagnosis, outcome: Outcome, doubt: Option<Doubt>) -> Self {
        match diagnosis.findings.first() {
            Some(first) => Self::Divergence {
                stage: first.id.to_string(),
                why: Some(first).filter(|first| first.says_why()).and_then(Finding::told),
                remedy: first.mended().map(str::to_owned),
                origins: diagnosis.findings.len(),
            },
            None if outcome == Outcome::Match => Self::Flip,
            None => Self::Undecided { why: doubt.map_or("not every stage could be judged".to_owned(), |d| d.reason) },
        }
    }
}

/// The choices of both sides on the same tokens, after the fork.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TeacherForced {
    /// Tokens compared.
    pub compared: usize,
    /// Those at which the sides' most probable tokens differ.
    pub different: Vec<TokenCheck>,
}

impl TeacherForced {
    /// What a verdict says of the tokens after the one at `index`.
    pub fn of(verdict: &Verdict, index: usize) -> Self {
        let after = || verdict.tokens.iter().filter(|t| t.step > index);
        Self { compared: after().count(), different: after().filter(|t| t.subject != t.reference).cloned().collect() }
    }
}

impl Document for GenerationReport {
    const KIND: &'static str = "generation";

    fn screen(&self, _: bool) -> Screen {
        let mut said = said(self);
        let (word, headline) = said.remove(0);
        let also = said.into_iter().map(|(word, text)| ("also", format!("{word}: {text}")));
        Screen {
            word,
            next: next(self),
            sections: vec![
                Section::lines("", also.chain(why(self)).collect()),
                Section::lines("Run", facts(self)),
                Section::lines("Where the texts part", fork(self)),
                Section::lines("Texts", texts(&self.generation)),
                Section::table("Tokens", tokens(self)),
            ],
            checks: checks(self),
            ..Screen::new(format!("{}, {}", self.model.name, self.prompt), self.outcome, headline)
        }
    }
}

/// How far the cause may be relied on, and the remedies of all that is wrong.
fn why(report: &GenerationReport) -> Vec<Line> {
    let mut lines = Vec::new();
    let remedy = match &report.cause {
        Some(Cause::Divergence { why, remedy, .. }) => {
            lines.extend(why.as_ref().map(|_| ("cause", standing::UNTRIED.to_owned())));
            remedy.clone()
        }
        Some(Cause::Sampler(OtherDraw { causes, .. })) => match causes.as_slice() {
            [only] => Some(only.remedy.clone()),
            _ => None,
        },
        _ => None,
    };
    let of_tokens = report.tokens.as_ref().and_then(|check| check.cause.as_ref());
    let beside = of_tokens.into_iter().chain(&report.end.cause).map(|cause| cause.remedy.clone());
    lines.extend(beside.chain(remedy).map(|remedy| ("remedy", remedy)));
    lines
}

/// What to do where something is wrong: judge every stage, or read what a known fault beside the stages does.
fn next(report: &GenerationReport) -> Option<Next> {
    let of_tokens = report.tokens.as_ref().and_then(|check| check.cause.as_ref());
    let of_samplers = match &report.cause {
        Some(Cause::Divergence { .. }) if !report.command.is_empty() => {
            let why = "every stage, and the cause tried on other tokens";
            return Some(Next { command: report.command.clone(), why });
        }
        Some(Cause::Sampler(OtherDraw { causes, .. })) => causes.as_slice(),
        _ => &[],
    };
    let known = of_tokens.into_iter().chain(&report.end.cause).chain(of_samplers).next()?;
    let fault = known.name.split(':').next().unwrap_or(&known.name);
    Some(Next { command: format!("qdiff mutations show {fault}"), why: "what this fault is, and how to plant it" })
}

/// A row for each token; those that differ have a mark.
fn tokens(report: &GenerationReport) -> Table {
    let Generation { reference, subject, .. } = &report.generation;
    let rows = report.rows.iter().enumerate().map(|(index, [theirs, ours])| {
        let mark = if theirs == ours { "" } else { "<" };
        vec![index.to_string(), theirs.clone(), ours.clone(), mark.to_owned()]
    });
    Table::new(&["token", &reference.name, &subject.name, ""], &[0], rows)
}

/// What there is to say, the gravest first, each with its word.
fn said(report: &GenerationReport) -> Vec<(&'static str, String)> {
    let spoken = &report.generation;
    let mut said = Vec::new();
    if let Some(first) = report.changes.as_ref().and_then(|c| c.unchanged.first()) {
        said.push(("DIVERGED", format!("{first} does not change with the prompt; it is not computed from it")));
    }
    if let Some(check) = report.tokens.as_ref().filter(|c| c.diverged()) {
        said.push(("DIVERGED", format!("at tokens: {}", check.words())));
    }
    if report.end.diverged() {
        said.push(("DIVERGED", format!("at the end of generation: {}", report.end.words())));
    }
    said.push(parting(report));
    if let (Some(_), None) = (&spoken.subject.repetition, &spoken.reference.repetition) {
        said.push(("LOOP", "the subject's output is repetitive, the reference's is not".to_owned()));
    }
    said
}

/// Where and why the texts part, or that they do not.
fn parting(report: &GenerationReport) -> (&'static str, String) {
    let spoken = &report.generation;
    let fork = match (&spoken.fork, spoken.parts_at()) {
        (Some(f), _) => format!("token {}, {} for {}", f.index, f.subject.drawn.text, f.reference.drawn.text),
        (None, Some(at)) => format!("token {at}, where a logit is NaN"),
        (None, None) => "no token".to_owned(),
    };
    match &report.cause {
        None => {
            let [ours, theirs] = [&spoken.subject.tokens, &spoken.reference.tokens].map(Vec::len);
            let ended = if ours == theirs { "" } else { ", up to where one of them ended" };
            let inert = origin::inert(&report.inert);
            let both = counted(ours.min(theirs), "token");
            let text = "only the tokens were compared, no stage was judged";
            ("SAME TEXT", format!("{inert}{both} on both sides{ended}; {text}"))
        }
        Some(Cause::Flip) => (
            "FLIP",
            format!(
                "{}at {fork}: every stage is correct on both sides, so the difference comes from rounding (of quantised activations too)",
                origin::inert(&report.inert)
            ),
        ),
        Some(Cause::Divergence { stage, why, origins, .. }) => {
            let more = if *origins > 1 { format!(" (the first of {origins} origins)") } else { String::new() };
            ("DIVERGED", format!("at {fork}: {stage}, {}{more}", why.as_deref().unwrap_or(UNKNOWN)))
        }
        Some(Cause::Sampler(other)) => {
            let why = match other.causes.as_slice() {
                [] => UNKNOWN.to_owned(),
                [one] => format!("{} ({})", one.story, one.name),
                // These tokens tell them apart no further.
                _ => format!("as one of these would: {}", other.names()),
            };
            let at = other.index;
            let text = "from the same logits the engine's samplers draw another token than llama.cpp's";
            ("DIVERGED", format!("at token {at}: {text}: {why}"))
        }
        Some(Cause::Undecided { why }) => ("UNDECIDED", format!("at {fork}: {why}")),
    }
}

fn facts(report: &GenerationReport) -> Vec<Line> {
    let m = &report.model;
    let tokens = counted(report.prompt_tokens.len(), "token");
    let mut lines = vec![
        ("model", format!("{} {}", m.name, m.format)),
        ("prompt", format!("{}: {tokens}; {}", report.prompt, sampling(&report.sampling))),
    ];
    lines.extend(origin::injected(&report.injected, &report.inert));
    if report.outcome == Outcome::Match {
        let unseen = report.injected.iter().filter(|fault| !report.inert.contains(fault));
        lines.extend(unseen.map(|fault| ("unseen", format!("{fault}: no token changes because of it"))));
    }
    if let Some(check) = &report.tokens {
        lines.push(("tokenizer", check.words()));
    }
    lines.push(("end", report.end.words()));
    lines
}

fn fork(report: &GenerationReport) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(fork) = &report.generation.fork {
        lines.push(("reference", best(&fork.reference)));
        lines.push(("subject", best(&fork.subject)));
        // The errors of logits account for a flip alone; of a stage that is wrong they say nothing.
        let reach = if report.cause == Some(Cause::Flip) { reach(fork) } else { String::new() };
        let errors = (number(fork.error), number(fork.error_before));
        lines.push(("logits", format!("differ by at most {} here, {} before{reach}", errors.0, errors.1)));
    }
    lines.extend(report.forced.iter().filter(|f| f.compared > 0).map(|forced| ("forced", same_tokens(forced))));
    lines.extend(report.changes.iter().map(|changes| ("nonce", nonce(changes))));
    lines
}

fn texts(spoken: &Generation) -> Vec<Line> {
    let of = |side, text: &GeneratedText| [(side, format!("{}: {:?}", text.name, text.text)), ("ended", ending(text))];
    [of("reference", &spoken.reference), of("subject", &spoken.subject)].concat()
}

fn checks(report: &GenerationReport) -> Vec<Check> {
    let tokens = report.tokens.iter().filter(|c| c.unchecked.is_none());
    let tokens = tokens.map(|c| Check::new("model", "tokens", Fate::of(c.diverged().then(|| c.words()))));
    let changes = report.changes.iter().map(|c| {
        let stale =
            (!c.unchanged.is_empty()).then(|| format!("not computed from the prompt: {}", c.unchanged.join(", ")));
        Check::new("model", "every stage changes with the prompt", Fate::of(stale))
    });
    let end = origin::end_check(&report.end);
    let (word, words) = parting(report);
    let words = format!("{word} {words}");
    let text = match &report.cause {
        None | Some(Cause::Flip) => Fate::Passed(words),
        Some(Cause::Undecided { .. }) => Fate::Skipped(words),
        Some(Cause::Divergence { .. } | Cause::Sampler(_)) => Fate::of(Some(words)),
    };
    tokens.chain(changes).chain([end, Check::new("model", "the same text", text)]).collect()
}

fn sampling(s: &Sampling) -> String {
    let penalties = if s.repeat_last_n > 0
        && (s.repeat_penalty != 1.0 || s.frequency_penalty != 0.0 || s.presence_penalty != 0.0)
    {
        format!(
            ", penalties {} {} {} over {} tokens",
            s.repeat_penalty, s.frequency_penalty, s.presence_penalty, s.repeat_last_n
        )
    } else {
        String::new()
    };
    if s.temp <= 0.0 {
        return format!("greedy{penalties}");
    }
    format!("seed {}, temp {}, top-k {}, top-p {}, min-p {}{penalties}", s.seed, s.temp, s.top_k, s.top_p, s.min_p)
}

fn best(choice: &Choice) -> String {
    let list: Vec<String> =
        choice.best.iter().map(|t| format!("{} {:.2} ({:.1} %)", t.text, t.logit, t.probability * 100.0)).collect();
    let draw = choice
        .draw
        .map_or(String::new(), |d| format!(", drawn at {:.4} in its share {:.4} to {:.4}", d.at, d.from, d.to));
    format!("{}, ahead by {}{draw}; best {}", choice.drawn.text, number(choice.margin), list.join("  "))
}

/// Whether the measured error of the logits accounts for the other choice.
fn reach(fork: &Fork) -> String {
    let what = match fork.reference.draw {
        None => "the reference's margin",
        Some(_) => "the distance of the draw from the edge of its share",
    };
    let (needed, possible) = (number(fork.reach.needed), number(fork.reach.possible));
    if fork.reach.within() {
        return format!(": {what} is {needed}; a difference of this size can change it by up to {possible}");
    }
    format!(
        ": {what} is {needed}; a difference of this size can change it by {possible} at most, so the order or the choice of the tokens that share changed"
    )
}

fn same_tokens(forced: &TeacherForced) -> String {
    let mut text = format!(
        "fed the reference's next {}, the subject makes the reference's choice after {} of them",
        counted(forced.compared, "token"),
        forced.compared - forced.different.len()
    );
    if let Some(t) = forced.different.iter().max_by(|a, b| a.margin.total_cmp(&b.margin)) {
        let _ = write!(text, "; the largest margin of a different choice is {}", number(t.margin));
    }
    text
}

fn nonce(changes: &Changes) -> String {
    format!("with another number {} of {} stages change", changes.compared - changes.unchanged.len(), changes.compared)
}

fn ending(text: &GeneratedText) -> String {
    let stop = match text.stop {
        Stop::EndOfGeneration if text.tokens.len() == 1 => "ended at once, without a text",
        Stop::EndOfGeneration => "ended by the model",
        Stop::Length => "cut at -n",
        Stop::NotANumber => "ended where a logit is NaN",
    };
    let repetition = text.repetition.map_or(String::new(), |l| {
        format!("; repetitive: {} {} times from token {} on", counted(l.period, "token"), l.times, l.from)
    });
    let decode = text.decode_speed.map_or(String::new(), |s| format!(", decode {s:.1}"));
    let tokens = counted(text.tokens.len(), "token");
    format!("{tokens}, {stop}{repetition}; prefill {:.1}{decode} tok/s", text.prefill_speed)
}
