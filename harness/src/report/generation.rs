//! What `qdiff generate` tells: the texts as they come, then the outcome.

use super::{Doubt, ModelInfo, Outcome};
use crate::diagnose::Diagnosis;
use crate::generate::{Choice, Fork, GeneratedText, Generation, OtherDraw, Stop};
use crate::nonce::Changes;
use crate::number::number;
use crate::runners::RunnerKind;
use crate::tokens::TokensCheck;
use crate::verdict::{TokenCheck, Verdict};
use anstyle::{AnsiColor, Style};
use qdiff_engine::sampler::Settings;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;

const RED: Style = AnsiColor::Red.on_default().bold();
const GREEN: Style = AnsiColor::Green.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();

/// Version of the JSON layout.
pub const SCHEMA_VERSION: u32 = 1;

/// Width of a column of the table of tokens.
const WIDTH: usize = 28;

/// What the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Two texts.
    Generation,
}

/// All that is told of a generation.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GenerationReport {
    /// Version of this layout; raised when a field changes its meaning.
    pub schema_version: u32,
    /// What this file is.
    pub kind: Kind,
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
    /// The texts, and where they part.
    pub generation: Generation,
    /// Why they part.
    pub cause: Option<Cause>,
    /// Both sides on the reference's tokens, after the fork.
    pub forced: Option<TeacherForced>,
    /// What changed with the number in the prompt.
    pub changes: Option<Changes>,
}

/// The samplers, as llama.cpp's options name them.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[allow(missing_docs, reason = "the fields are those of Settings")]
pub struct Sampling {
    pub temp: f32,
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: f32,
    pub repeat_last_n: usize,
    pub repeat_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub seed: u32,
}

impl From<Settings> for Sampling {
    fn from(s: Settings) -> Self {
        Self {
            temp: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            repeat_last_n: s.repeat_last_n,
            repeat_penalty: s.repeat_penalty,
            frequency_penalty: s.frequency_penalty,
            presence_penalty: s.presence_penalty,
            seed: s.seed,
        }
    }
}

/// Why two texts part.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Cause {
    /// Every stage does its mathematics on both sides: rounding and quantised
    /// activations alone made it.
    Flip,
    /// A stage of the subject is wrong.
    Divergence {
        /// The first such stage.
        stage: String,
        /// What explains it, if anything known does.
        why: Option<String>,
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
                why: first.cause.as_ref().map(|c| c.story.to_owned()),
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

/// The heading of the table of tokens.
pub fn columns(reference: &RunnerKind, subject: &RunnerKind) -> String {
    format!("token  {:<WIDTH$}  {subject}\n", reference.to_string(), subject = subject)
}

/// A row of it, as soon as both tokens are there; empty for a side that has ended.
pub fn row(index: usize, reference: &str, subject: &str, same: bool) -> String {
    let mark = if same { "" } else { "  <" };
    let pad = WIDTH.saturating_sub(reference.chars().count());
    format!("{index:>5}  {reference}{:pad$}  {subject}{mark}\n", "")
}

/// The outcome as text with colours, the verdict first.
pub fn render(report: &GenerationReport) -> String {
    let mut out = String::from("\n");
    headline(report, &mut out);
    let m = &report.model;
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<10} {text}");
    };
    let spoken = &report.generation;
    line("model", format!("{} {}", m.name, m.format));
    line("prompt", format!("{}: {} tokens; {}", report.prompt, report.prompt_tokens.len(), sampling(&report.sampling)));
    for fault in &report.injected {
        line("injected", fault.clone());
    }
    if let Some(check) = &report.tokens {
        line("tokenizer", check.words());
        if let Some(cause) = &check.cause {
            line("remedy", cause.remedy.clone());
        }
    }
    if let Some(fork) = &spoken.fork {
        for (name, choice) in [("reference", &fork.reference), ("subject", &fork.subject)] {
            line(name, best(choice));
        }
        // Of a stage that is wrong the logits' error says nothing.
        let reach = match report.cause {
            Some(Cause::Divergence { .. }) => String::new(),
            _ => reach(fork),
        };
        line(
            "logits",
            format!("differ by at most {} here, {} before{reach}", number(fork.error), number(fork.error_before),),
        );
    }
    if let Some(forced) = &report.forced {
        line("forced", same_tokens(forced));
    }
    if let Some(changes) = &report.changes {
        line("nonce", nonce(changes));
    }
    for speech in [&spoken.reference, &spoken.subject] {
        line(&speech.name, format!("{:?}", speech.text));
        line("", ending(speech));
    }
    out
}

fn headline(report: &GenerationReport, out: &mut String) {
    let spoken = &report.generation;
    if let Some(first) = report.changes.as_ref().and_then(|c| c.unchanged.first()) {
        let _ =
            writeln!(out, "{RED}DIVERGED{RED:#}: {first} does not change with the prompt; it is not computed from it");
    }
    if let Some(check) = report.tokens.as_ref().filter(|c| c.diverged()) {
        let _ = writeln!(out, "{RED}DIVERGED{RED:#} at tokens: {}", check.words());
    }
    let fork = match (&spoken.fork, spoken.parts_at()) {
        (Some(f), _) => format!("token {}, {} for {}", f.index, f.subject.drawn.text, f.reference.drawn.text),
        (None, Some(at)) => format!("token {at}, where a logit is NaN"),
        (None, None) => String::new(),
    };
    let _ = match &report.cause {
        None => writeln!(out, "{GREEN}SAME TEXT{GREEN:#}: {} tokens on both sides", spoken.subject.tokens.len()),
        Some(Cause::Flip) => writeln!(
            out,
            "{YELLOW}FLIP{YELLOW:#} at {fork}: every stage does its mathematics on both sides, so rounding and quantised activations alone made it"
        ),
        Some(Cause::Divergence { stage, why, origins }) => writeln!(
            out,
            "{RED}DIVERGED{RED:#} at {fork}: {stage}, {}{}",
            why.as_deref().unwrap_or("no known cause"),
            match origins {
                1 => String::new(),
                n => format!(" (the first of {n} origins)"),
            }
        ),
        Some(Cause::Sampler(other)) => writeln!(
            out,
            "{RED}DIVERGED{RED:#} at token {}: from the same logits the engine's samplers draw another token than llama.cpp's{}",
            other.index,
            match other.causes.first() {
                Some(first) => format!(": {} ({})", first.story, other.names()),
                None => "; no known cause".to_owned(),
            }
        ),
        Some(Cause::Undecided { why }) => {
            writeln!(out, "{YELLOW}UNDECIDED{YELLOW:#} at {fork}: {why}")
        }
    };
    if let (Some(_), None) = (&spoken.subject.repetition, &spoken.reference.repetition) {
        let _ = writeln!(out, "{YELLOW}LOOP{YELLOW:#}: only the subject's text turns in a circle");
    }
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
    format!("{} by {}{draw}; best {}", choice.drawn.text, number(choice.margin), list.join("  "))
}

/// Whether the measured error of the logits accounts for the other choice.
fn reach(fork: &Fork) -> String {
    let what = match fork.reference.draw {
        None => "the reference's margin",
        Some(_) => "the draw's distance from its share's edge",
    };
    let verdict = if fork.reach.within() {
        "within"
    } else {
        "beyond, so they changed the order or the choice of tokens that share,"
    };
    format!(
        ": {what}, {}, is {verdict} the {} they can move it by",
        number(fork.reach.needed),
        number(fork.reach.possible)
    )
}

fn same_tokens(forced: &TeacherForced) -> String {
    let mut text = format!(
        "on the reference's next {} tokens the same choice after {}",
        forced.compared,
        forced.compared - forced.different.len()
    );
    if let Some(t) = forced.different.iter().max_by(|a, b| a.margin.total_cmp(&b.margin)) {
        let _ = write!(text, "; largest margin of another {}", number(t.margin));
    }
    text
}

fn nonce(changes: &Changes) -> String {
    format!("with another number {} of {} stages change", changes.compared - changes.unchanged.len(), changes.compared)
}

fn ending(speech: &GeneratedText) -> String {
    let stop = match speech.stop {
        Stop::EndOfGeneration if speech.tokens.len() == 1 => "ended at once, without a text",
        Stop::EndOfGeneration => "ended by the model",
        Stop::Length => "cut at -n",
        Stop::NotANumber => "ended where a logit is NaN",
    };
    let repetition = speech.repetition.map_or(String::new(), |l| {
        format!("; a circle: {} tokens {} times from token {} on", l.period, l.times, l.from)
    });
    let decode = speech.decode_speed.map_or(String::new(), |s| format!(", decode {s:.1}"));
    format!("{} tokens, {stop}{repetition}; prefill {:.1}{decode} tok/s", speech.tokens.len(), speech.prefill_speed)
}
