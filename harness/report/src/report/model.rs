//! The content of a report, in every format.

use crate::capture::Whose;
use crate::decoded::DecodedCheck;
use crate::diagnose::Diagnosis;
use crate::ends::EndCheck;
use crate::machine::Machine;
use crate::number::counted;
use crate::runners::Manifest;
use crate::severity::Severity;
use crate::slots::SlotsCheck;
use crate::tokens::TokensCheck;
use crate::verdict::{Coverage, Gap, Repeated, Verdict};
use crate::weights::WeightCheck;
use qdiff_engine::model::Placement;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON layout; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 3;

/// The place of a run among those of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// SHA-256 over the model and all prompts in order, in hexadecimal: the same in all parts of a batch.
    pub batch: String,
    /// Which prompt it is, from 1 on.
    pub number: usize,
    /// How many there are in all parts.
    pub of: usize,
}

/// One run, judged.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Version of the qdiff that wrote it.
    pub qdiff: String,
    /// The outcome in one word.
    pub outcome: Outcome,
    /// Where it ran.
    pub machine: Machine,
    /// The model.
    pub model: ModelInfo,
    /// The run.
    pub run: RunInfo,
    /// Its place in a batch; absent where the run was none of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Place>,
    /// The runner under suspicion.
    pub subject: Manifest,
    /// The runner it is held against.
    pub reference: Manifest,
    /// What repeating the subject showed; absent where it ran once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<Repeated>,
    /// The stage before all others.
    pub weights: WeightCheck,
    /// The engine's tokenizer against llama.cpp's; absent where tokens were given.
    pub tokens: Option<TokensCheck>,
    /// What the subject fed at its decode steps, against what its own logits choose; absent where it chose nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoded: Option<DecodedCheck>,
    /// The positions, cache slots and block tables of a recorded subject against the rows of the run; absent where none were captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<SlotsCheck>,
    /// Where a recorded subject ended its text, against what the file says; absent where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndCheck>,
    /// What was found, and what explains it.
    #[serde(rename = "verdict")]
    pub diagnosis: Diagnosis,
    /// How grave that is; absent where nothing was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// What a subject that declares no arithmetic could put into its manifest so that every stage is right; absent where there is no such
    /// thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declaration: Option<String>,
    /// Who is wrong where only the reference misses f64.
    pub doubt: Option<Doubt>,
    /// What was not judged, and what to capture so that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
    /// How long it took.
    #[serde(default)]
    pub seconds: Seconds,
    /// What memory it took; absent where nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// Memory of a run, in bytes, without what is mapped of files, as a model's weights are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// The most that was taken.
    pub peak: u64,
    /// What might be taken.
    pub allowed: u64,
    /// Captured stages that were kept in a file.
    pub on_disk: u64,
}

impl Report {
    /// What counts more rows in a part than in the whole, as no report does that qdiff wrote. Sentences subtract them.
    pub fn miscounts(&self) -> Option<String> {
        let verdict = &self.diagnosis.verdict;
        let rows = &verdict.coverage;
        if rows.within > rows.judged || rows.judged > rows.asked {
            return Some("its coverage".to_owned());
        }
        let stage =
            verdict.stages.iter().find(|stage| {
                stage.subject.iter().chain(&stage.reference).any(|l| {
                    l.bad_rows.max(l.prefill_rows) > l.rows || l.bad_prefill_rows > l.bad_rows.min(l.prefill_rows)
                })
            });
        stage.map(|stage| stage.id.to_string())
    }

    /// The outcome that follows from what was found.
    pub fn comes_to(&self) -> Outcome {
        let race = self.repeated.as_ref().is_some_and(|r| r.race.is_some());
        let decoded = self.decoded.as_ref().is_some_and(DecodedCheck::diverged);
        let slots = self.slots.as_ref().is_some_and(SlotsCheck::diverged);
        match race || decoded || slots || self.end.as_ref().is_some_and(EndCheck::diverged) {
            true => Outcome::Diverged,
            false => {
                let verdict = &self.diagnosis.verdict;
                let outcome = Outcome::of(&self.weights, self.tokens.as_ref(), verdict, self.doubt.as_ref());
                self.model.settle(outcome, &verdict.coverage)
            }
        }
    }
}

/// How long the parts of a run took, in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Seconds {
    /// Every weight against ggml's; once for all prompts of a batch.
    pub weights: f64,
    /// The engine's tokens against llama.cpp's.
    pub tokens: f64,
    /// Running or reading the reference.
    pub reference: f64,
    /// Running or reading the subject, and its repetitions; of one on a GPU that ran beside the reference, what it took
    /// longer than that.
    pub subject: f64,
    /// Judging every stage, and looking for causes.
    pub judging: f64,
    /// Judging each stage, in the order of the verdict; several are judged at the same time.
    #[serde(default)]
    pub stages: Vec<f64>,
}

impl Seconds {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.weights + self.tokens + self.reference + self.subject + self.judging
    }
}

/// The outcome of a run; the exit code follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Everything asked for was judged and matches.
    Match,
    /// The subject is wrong somewhere.
    Diverged,
    /// The subject meets f64 and the reference does not.
    ReferenceSuspect,
    /// qdiff itself is in doubt.
    OracleSuspect,
    /// No divergence, but not everything asked for could be judged.
    Incomplete,
}

impl Outcome {
    /// As every format calls it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Match => "MATCH",
            Self::Diverged => "DIVERGED",
            Self::ReferenceSuspect => "REFERENCE-SUSPECT",
            Self::OracleSuspect => "ORACLE-SUSPECT",
            Self::Incomplete => "INCOMPLETE",
        }
    }

    /// Its place among all outcomes, the worst first.
    pub fn rank(self) -> usize {
        let order = [Self::Diverged, Self::OracleSuspect, Self::ReferenceSuspect, Self::Incomplete, Self::Match];
        order.iter().position(|o| *o == self).unwrap_or(0)
    }

    /// What weights, tokens, verdict and doubt come to.
    pub fn of(weights: &WeightCheck, tokens: Option<&TokensCheck>, verdict: &Verdict, doubt: Option<&Doubt>) -> Self {
        let before = !weights.mismatches.is_empty() || tokens.is_some_and(TokensCheck::diverged);
        if verdict.diverged() || before {
            return Self::Diverged;
        }
        match doubt.map(|d| d.suspect) {
            Some(Suspect::Reference) => Self::ReferenceSuspect,
            Some(Suspect::Oracle | Suspect::Unknown) => Self::OracleSuspect,
            None if verdict.coverage.complete() => Self::Match,
            None => Self::Incomplete,
        }
    }
}

impl ModelInfo {
    /// The outcome, given that of a folder there is no reference that anybody could have run: each stage is held against
    /// f64, and that is all.
    pub fn settle(&self, outcome: Outcome, coverage: &Coverage) -> Outcome {
        match outcome {
            Outcome::Incomplete if self.folder && coverage.complete_alone() => Outcome::Match,
            outcome => outcome,
        }
    }
}

/// Who is wrong where the subject meets f64 and the reference does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Doubt {
    /// Who.
    pub suspect: Suspect,
    /// Why, in words.
    pub reason: String,
}

/// A party to a dispute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Suspect {
    /// The reference: on F32 weights it meets f64.
    Reference,
    /// The f64 evaluation: the reference misses it on F32 weights too.
    Oracle,
    /// It could not be tested.
    Unknown,
}

/// Identifies the model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ModelInfo {
    /// Path as given.
    pub path: String,
    /// `general.name`.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// Number of layers.
    pub layers: usize,
    /// Most frequent weight format by bytes.
    pub format: String,
    /// All formats of its weights, as an arithmetic names them; none in a report of an older qdiff.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<String>,
    /// Whether it is a folder of safetensors, which llama.cpp cannot run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub folder: bool,
    /// SHA-256 of the file, in hexadecimal; of several, and of a folder, of config.json and the files of weights one after
    /// the other.
    pub sha256: String,
    /// A command that prints this hash, for a model of several files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hashed_by: Option<String>,
    /// LoRA adapters that are added to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<AdapterInfo>,
}

/// The beginning and the end of a hash.
pub(super) fn shorten(hash: &str) -> String {
    match (hash.get(..4), hash.get(hash.len().saturating_sub(4)..)) {
        (Some(head), Some(tail)) if hash.len() >= 12 => format!("{head}…{tail}"),
        _ => hash.to_owned(),
    }
}

/// Identifies a LoRA adapter.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AdapterInfo {
    /// Path as given.
    pub path: String,
    /// The largest rank of its matrices.
    pub rank: usize,
    /// The sequences that have it; all if none is named.
    pub sequences: Vec<u32>,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
}

impl AdapterInfo {
    /// `lora.gguf, rank 8, of sequences 1 and 2, sha256 6366…ac0d`.
    pub(super) fn words(&self) -> String {
        let numbers: Vec<String> = self.sequences.iter().map(ToString::to_string).collect();
        let of = match numbers.as_slice() {
            [] => String::new(),
            [one] => format!(", of sequence {one}"),
            all => format!(", of sequences {}", all.join(", ")),
        };
        format!("{}, rank {}{of}, sha256 {}", self.path, self.rank, shorten(&self.sha256))
    }
}

/// Identifies the run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RunInfo {
    /// Name of the prompt.
    pub prompt: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Lengths of the passes in which they were fed, where they were not a prompt in parts of one size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<usize>,
    /// The sequence that the run is of, where several ran together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<SequenceInfo>,
    /// How the graph was cut over ranks, where it was: the shares of each rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ranks: Option<Placement>,
    /// Tokens fed at the decode steps, chosen by the reference.
    pub decoded: Vec<u32>,
    /// Whether these are tokens of the prompt, for want of a side that chooses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchosen: bool,
    /// Text of every token that the report mentions; bytes that are no UTF-8 are replaced.
    pub text: BTreeMap<u32, String>,
    /// Rules that replace the bounds of chosen stages, and the file that set them where it was not the command line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerance: Vec<String>,
    /// Injected faults that changed nothing by more than rounding may, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inert: Vec<String>,
    /// What these tokens do not exercise of any engine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unexercised: Vec<String>,
    /// Whether the subject's values are what an engine of its own dumped, and not what qdiff tapped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dumped: bool,
    /// Command line that repeats the run without its filters.
    pub command: String,
    /// Filters in force, as on the command line; empty for a whole run.
    pub filters: String,
}

/// One of several sequences of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SequenceInfo {
    /// Its number, from 0 on.
    pub number: u32,
    /// How often it had taken tokens back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rollbacks: u32,
    /// How many sequences there are.
    pub of: usize,
    /// The passes of all of them, as `--sequences` takes them.
    pub plan: String,
    /// What it began with of another sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Prefix>,
}

/// Cached tokens that a sequence began with.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Prefix {
    /// Whose they are: of another sequence, or of the same one before it took tokens back.
    #[serde(flatten)]
    pub whose: Whose,
    /// How many.
    pub tokens: usize,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl SequenceInfo {
    /// The sequence, and how often it had taken tokens back.
    pub fn whose(&self) -> Whose {
        Whose { sequence: self.number, rollbacks: self.rollbacks }
    }

    /// The words beside the number of tokens.
    pub(super) fn words(&self) -> String {
        let prefix = self.prefix.map_or_else(String::new, |prefix| match prefix.whose.sequence == self.number {
            true => format!("the first {} kept at the rollback; ", prefix.tokens),
            false => format!("the first {} in the cache slots of {}; ", prefix.tokens, prefix.whose),
        });
        format!(" ({prefix}{} in passes of {})", counted(self.of, "sequence"), self.plan)
    }
}

impl RunInfo {
    /// The token as a person reads it: its text in quotes where it is known, and its id.
    pub fn name(&self, token: u32) -> String {
        match self.text.get(&token) {
            Some(text) => format!("{text:?} (id {token})"),
            None => format!("id {token}"),
        }
    }

    /// The command line that repeats the run as it was.
    pub fn repeat(&self) -> String {
        let words = [self.command.as_str(), self.filters.as_str()];
        words.join(" ").trim_end().to_owned()
    }

    /// Fills [`RunInfo::text`] for the tokens of the run and of `verdict`.
    pub fn spell(&mut self, verdict: &Verdict, piece: impl Fn(u32) -> String) {
        let of_run = self.tokens.iter().chain(&self.decoded).copied();
        let choices = verdict.logits.iter().flat_map(|row| row.subject.iter().chain(&row.reference));
        let chosen = verdict.tokens.iter().flat_map(|t| [t.subject, t.reference]);
        let mentioned = of_run.chain(choices.map(|c| c.token)).chain(chosen);
        self.text = mentioned.map(|token| (token, piece(token))).collect();
    }
}
