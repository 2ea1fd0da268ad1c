//! Why: what explains the origins of a verdict. The catalogue of mutations is evaluated on the subject's own operands.

mod agreed;
mod borrowed;
mod confirm;
mod doubt;
mod explain;
mod fit;
mod glance;
mod golden;
mod joined;
mod leaks;
mod once_more;
pub mod pass;
mod passes;
mod resumed;
mod scattered;
mod searcher;
mod shared;
mod shared_page;
mod siblings;
mod solve;
mod spots;
mod strangers;
mod sums;
mod taken_over;
#[cfg(test)]
mod tests;
mod through;
mod trial;
mod work;

pub use agreed::agree_among_sequences;
pub use confirm::{confirm, narrow};
pub use doubt::{undecided, unsteady};
pub use explain::explain;
pub use once_more::{bear_out, once_more};
pub use siblings::{
    Opinions, Sibling, again_among_sequences, among_sequences, confirm_among_sequences, rules_among_sequences,
};
pub use solve::{Confidence, Example, Holds, Solution, When, anywhere};
pub use trial::{OtherRun, Trial};

use crate::mutations::{CauseId, Explains, find};
use crate::number::Real;
use crate::verdict::Verdict;
use qdiff_engine::model::{Graph, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An explanation that reproduces the subject's output.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    /// Name of the mutation, with its parameters.
    pub name: CauseId,
    /// What is wrong, in one sentence.
    pub story: String,
    /// How to mend it.
    pub remedy: String,
    /// What it means that it fits.
    pub kind: Explains,
    /// Residual of the stage as it should be.
    #[serde(with = "Real")]
    pub before: f64,
    /// Residual once the fault is assumed.
    #[serde(with = "Real")]
    pub after: f64,
    /// Share of what is allowed that is taken once the fault is assumed.
    #[serde(with = "Real")]
    pub used: f64,
    /// Whether all of the stage is as the fault says, or only what is wrong of it.
    pub whole: bool,
    /// Other mutations that fit as well, the simpler first; of a stage with
    /// a very large weight, those that take no second pass over it.
    pub ties: Vec<CauseId>,
}

/// What the search for causes took.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Search {
    /// Hypotheses evaluated.
    pub tried: usize,
    /// Time it took.
    #[serde(with = "Real")]
    pub seconds: f64,
    /// Work that it might take, as a multiple of the usual.
    #[serde(default, with = "Real")]
    pub budget: f64,
    /// Origins whose search ended before everything was tried, for the work of it was used up.
    pub unfinished: usize,
}

/// What to do about a stage that is wrong in the capture alone.
pub const EXPORTER: &str = "mend the capture of this stage: it may take another buffer or layout than the next stages read, or take the buffer too early or too late";

/// What to do about a cache that lacks rows, or holds others.
const CACHE: &str = "write the row of each token, in the number format of the cache, to the slot of its position in every step, and keep the \
                     rows of earlier steps; if the engine does so, the rows are read from other slots than these: look at the page table that the \
                     reader has, or at what the dump reads";

/// An origin with its evidence.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The stage.
    #[serde(rename = "stage")]
    pub id: StageId,
    /// Stages of its segment, not captured, that the explanation is about; none where it is about the stage itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inside: Vec<StageId>,
    /// Whether the stages that read it were made of the right values: the captured array is wrong, and not the engine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// Whether it is the same of a cache where no later step tells whether the engine's own is wrong as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Whether the only error is that the captured array seems never to have been written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unwritten: bool,
    /// Whether `shape` itself says what is wrong: an extent, rows that a cache lacks, or slots of another sequence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evident: bool,
    /// Whether causes were tried on some rows of the stage alone, for it has very many elements.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub excerpt: bool,
    /// How to mend it, where no cause of the catalogue says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// What explains it, if anything known does.
    pub cause: Option<Cause>,
    /// What was computed instead, solved for where nothing known explains it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub solution: Option<Solution>,
    /// What the residual looks like, where nothing known explains all of it.
    pub shape: String,
    /// What became of the explanation on other tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
    /// A wrong element worked out, of the first findings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub example: Option<Example>,
    /// What is wrong inside of the segment, as it is looked for again.
    #[serde(skip)]
    pub key: Option<through::Key>,
}

impl Finding {
    /// One of a stage that the engine gave, and others read.
    pub fn of(
        id: StageId, (inside, cause, solution, shape): (Vec<StageId>, Option<Cause>, Option<Solution>, String),
    ) -> Self {
        Self {
            id,
            inside,
            unread: false,
            kept: false,
            unwritten: false,
            evident: false,
            excerpt: false,
            remedy: None,
            cause,
            solution,
            shape,
            trial: None,
            example: None,
            key: None,
        }
    }

    /// Whether it says why, and not only where.
    pub fn says_why(&self) -> bool {
        self.solution.is_some() || self.cause.as_ref().is_some_and(|cause| cause.kind != Explains::Place)
    }

    /// What its cause is called in any layer, wherever it holds.
    pub fn name(&self) -> Option<String> {
        let told = match (&self.solution, &self.cause) {
            (Some(solution), _) => solution.what.clone(),
            (None, cause) => {
                let cause = cause.as_ref().filter(|_| self.says_why())?;
                CauseId { since: None, ..cause.name.clone() }.to_string()
            }
        };
        Some(anywhere(&told, self.id.layer))
    }

    /// Whether its cause would change rows that are right.
    fn is_of_some_rows(&self) -> bool {
        let of_cause = || self.cause.as_ref().is_some_and(|cause| cause.kind == Explains::Value && !cause.whole);
        self.solution.as_ref().map_or_else(of_cause, |solution| solution.holds != Holds::Everywhere)
    }

    /// The other stage whose values are in the place of its own, by its cause.
    fn source_of_cause(&self, graph: &Graph) -> Option<StageId> {
        let node = graph.index(self.id).map(|i| &graph.nodes[i])?;
        let cause = self.cause.as_ref()?;
        let values: Vec<f64> = cause.name.parameters.iter().map(|(_, value)| *value).collect();
        let other = find(&cause.name.mutation)?.applied(node, &values, graph)?;
        other.inputs.iter().map(|&i| graph.nodes[i].id).find(|id| id.name == self.id.name && *id != self.id)
    }

    /// Takes the cause back: what is left is the place, and `shape`, what that looks like.
    pub(crate) fn leave_place(&mut self, shape: String) {
        (self.cause, self.solution, self.key, self.remedy, self.shape) = (None, None, None, None, shape);
        self.inside.clear();
    }

    /// Tells what is wrong in these words, which something else of the run shows, in the place of any cause.
    pub fn explained_by(&mut self, words: &str) {
        self.leave_place(words.to_owned());
        (self.evident, self.remedy, self.trial) = (true, None, None);
    }

    /// What is wrong, where it needs no cause to be known: the words of [`Finding::shape`].
    pub fn plain(&self) -> Option<&str> {
        let known = self.cause.is_some() || self.solution.is_some();
        ((self.evident || self.unwritten) && !known).then_some(self.shape.as_str())
    }

    /// How to mend it, as far as that is known.
    pub fn mended(&self) -> Option<&str> {
        let of_cause = |cause: &'_ Cause| self.solution.is_none() || cause.kind != Explains::Place;
        let of_cause = self.cause.as_ref().filter(|cause| of_cause(cause)).map(|cause| cause.remedy.as_str());
        // A law's own remedy knows more of this run than that of the fault which the law is named after.
        let (first, second) = if self.solution.is_some() {
            (self.remedy.as_deref(), of_cause)
        } else {
            (of_cause, self.remedy.as_deref())
        };
        first.or(second).filter(|remedy| !remedy.is_empty())
    }

    /// What was computed instead, with its name in the catalogue where it has one.
    pub fn told(&self) -> Option<String> {
        // That of a solution is its own.
        let under = match &self.trial {
            Some(Trial::Narrowed { holds, .. }) => format!(", {holds}"),
            _ => String::new(),
        };
        let told = match (&self.solution, &self.cause) {
            // The name of a place says no more than where it holds.
            (Some(solution), Some(cause)) if cause.kind != Explains::Place => {
                format!("{} ({})", solution.told(), cause.name)
            }
            (Some(solution), _) => solution.told(),
            (None, Some(cause)) => format!("{}{under} ({})", cause.story, cause.name),
            (None, None) => return None,
        };
        // Another stage may give the same at the end of its segment.
        Some(if self.inside.is_empty() {
            told
        } else {
            format!("a fault in {} gives these values: {told}", through::list(&self.inside))
        })
    }
}

/// A verdict with what explains it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// The statuses of the stages.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Its origins, first first.
    pub findings: Vec<Finding>,
    /// What the search for their causes took.
    pub search: Search,
    /// Other runs of the subject, that the causes were tried on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherRun>,
}
