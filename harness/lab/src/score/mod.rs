//! How often the diagnosis is right: known faults planted, the whole diagnosis
//! run, and its result compared with the planted fault.
//!
//! A cause is right if it predicts: the cause after one other run, as in `qdiff run`, is held against the values
//! that the faulty engine gives on two more prompts, of other tokens, other lengths and other parts. No words are compared.
//!
//! What counts are faults that share no code with the hypotheses (the CPU engine's, in [`faults`]; the CUDA engine's
//! own). Faults that rewrite the graph are round trips, fault and hypothesis being one function, and are counted apart;
//! so are faults that change their stage's own output by no more than rounding may, which is measured
//! (`tests/inert-faults.txt` lists them).

#[cfg(feature = "faults")]
mod cuda;
pub mod faults;
mod run;
mod sampling;
mod source;

#[cfg(feature = "faults")]
pub use cuda::{CUDA, CUDA_FAST, CUDA_KERNELS, FUSED_KERNELS};
pub use run::ScoreRun;
pub use sampling::Sampling;
pub use source::{CACHES, FaultSource, INDEPENDENT, KERNELS, NEWER, Plant, ROUND_TRIPS, SHORT, of_real_models};

use qdiff::machine::Machine;
use qdiff::mutations::CauseId;
use qdiff::number::{Real, number};
use qdiff::verdict::Status;
use qdiff_engine::model::StageId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of one planted fault.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Case {
    /// Model it was planted in.
    pub model: String,
    /// The mutation that should be named.
    pub fault: CauseId,
    /// Where it was planted.
    pub stage: StageId,
    /// Where the diagnosis says that the first origin is.
    pub found: Option<StageId>,
    /// The cause that it names there, with parameters.
    pub cause: Option<CauseId>,
    /// Origins besides it.
    pub others: usize,
    /// Whether anything was found.
    pub detected: bool,
    /// Whether the first origin, and the only one, is where it was planted.
    pub stage_right: bool,
    /// The effect of a fault that was not found on its stage's output, against a run of the same engine without
    /// the fault, as a share of the bound there. Up to 1 it is inert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Real>,
    /// What the bug computes instead, for a reader, if it is outside the catalogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted: Option<String>,
    /// The reported cause, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    /// What that is worth on tokens that neither search nor confirmation saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worth: Option<Worth>,
    /// Whether the cause was the planted one, in a score that compared words.
    #[serde(default, rename = "cause_right", skip_serializing_if = "Option::is_none")]
    named: Option<bool>,
    /// The cause that one run alone gave and another run refuted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
    /// Time of the diagnosis, in seconds: verdict, search for the cause, and its confirmation on one other run.
    #[serde(with = "Real")]
    pub seconds: f64,
    /// The same in seconds of a core, which other programs do not lengthen; 0 where nobody measured them.
    #[serde(default, with = "Real")]
    pub core: f64,
}

impl Case {
    /// Whether no code could find it.
    pub fn inert(&self) -> bool {
        !self.detected && self.effect.is_some_and(|e| e.0 <= 1.0)
    }

    /// Whether the reported cause is right.
    pub fn cause_right(&self) -> bool {
        self.named.unwrap_or(self.worth == Some(Worth::Right))
    }

    /// Why the report does not name the planted fault; empty if it does.
    pub fn reason(&self) -> String {
        match (self.effect, self.worth) {
            (Some(effect), _) => format!("its effect is {} of what is allowed", number(effect.0)),
            (None, _) if !self.detected => "nothing was found".to_owned(),
            (None, _) if !self.stage_right => "the place is wrong or not the only one".to_owned(),
            (None, _) if self.cause_right() => String::new(),
            (None, None) if self.named.is_some() && self.cause.is_some() => "another hypothesis fits".to_owned(),
            (None, Some(_)) if self.named.is_some() => "its words are not those of the planted fault".to_owned(),
            (None, Some(Worth::Right)) => String::new(),
            (None, Some(Worth::Consistent)) => "it gives the values, and not why others are right".to_owned(),
            (None, Some(Worth::False)) => "it does not give what the engine gives on other tokens".to_owned(),
            (None, Some(Worth::Location) | None) => "only the place is named".to_owned(),
        }
    }
}

/// The middle of the times of these diagnoses, in seconds.
pub(crate) fn median(cases: &[&Case]) -> f64 {
    let mut seconds: Vec<f64> = cases.iter().map(|c| c.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}

/// The grade of a cause, held against what the faulty engine gives on two prompts that nothing was fitted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Worth {
    /// It gives every wrong element there and makes no right one wrong.
    Right,
    /// It gives every wrong element there: one of the reported conditions holds, and not the first; or the report says
    /// that none is known; or the sizes of errors are all that it gives.
    Consistent,
    /// Only the place is reported, with a description of the error; or these prompts do not decide.
    Location,
    /// It does not hold there.
    False,
}

/// Two faults at once.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PairCase {
    /// Model they were planted in.
    pub model: String,
    /// What was planted, and where.
    pub faults: [(String, String); 2],
    /// The origins found, each with its cause.
    pub found: Vec<(String, String)>,
    /// What the verdict says of a planted stage that is no origin to it, such as
    /// `poisoned` where the other fault leaves NaN behind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfound: Vec<(String, Status)>,
    /// Whether both places, and no others, were found.
    pub stages_right: bool,
    /// Whether both causes are right.
    pub causes_right: bool,
}

impl PairCase {
    /// Why a place was not found, or what else is amiss.
    pub(crate) fn reason(&self) -> String {
        if self.unfound.is_empty() {
            return "both are found, with another cause or another place beside them".to_owned();
        }
        let say = |(stage, status): &(String, Status)| match status {
            Status::Poisoned => format!("the other leaves NaN at {stage}, which cannot be judged"),
            Status::Missing | Status::Inconclusive => format!("{stage} cannot be judged after the other"),
            _ => format!("{stage} was not found"),
        };
        let words: Vec<String> = self.unfound.iter().map(say).collect();
        words.join("; ")
    }
}

/// Cases of one source of faults.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Where the faults come from.
    pub source: String,
    /// Whether they share no code with the hypotheses.
    pub independent: bool,
    /// Whether they are outside the catalogue, so that the solvers must find the cause.
    #[serde(default)]
    pub unlisted: bool,
    /// One fault at a time.
    pub cases: Vec<Case>,
    /// Two at a time.
    pub pairs: Vec<PairCase>,
}

impl Group {
    /// Cases that count: not inert.
    pub fn counted(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|c| !c.inert())
    }
}

/// Runs without a fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Clean {
    /// How many.
    pub runs: usize,
    /// Those in which something was found: what was run, and the headline.
    pub alarms: Vec<(String, String)>,
}

/// How small a fault may be.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Graded {
    /// The mutation.
    pub fault: String,
    /// Where it was injected.
    pub stage: StageId,
    /// Smallest relative magnitude at which it is found at its stage.
    pub found: Option<Real>,
    /// Smallest at which its cause is named, too.
    pub named: Option<Real>,
}

/// How a cause is graded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Grading {
    /// By its words, as scores did that were measured before causes had to predict.
    #[default]
    Words,
    /// By what it predicts of tokens that nothing was fitted on.
    Prediction,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Score {
    /// How causes were graded.
    #[serde(default)]
    pub grading: Grading,
    /// The engine that the faults are planted in.
    pub subject: String,
    /// What kind of models, and the card if it takes one.
    pub on: String,
    /// Command that measures it again.
    pub command: String,
    /// Where it was measured.
    pub machine: Machine,
    /// The models.
    pub models: Vec<String>,
    /// By source of faults.
    pub groups: Vec<Group>,
    /// False alarms.
    pub clean: Clean,
    /// Smallest magnitudes.
    pub graded: Vec<Graded>,
    /// Time of everything, in seconds.
    #[serde(with = "Real")]
    pub seconds: f64,
}

impl Score {
    /// Independent faults that are not inert.
    pub fn independent(&self) -> impl Iterator<Item = &Case> {
        self.groups.iter().filter(|g| g.independent).flat_map(Group::counted)
    }

    /// Whether it reaches its goal over independent faults that are not inert: all detected, each at its
    /// stage, the causes of 90 of 100 right on other tokens and none of them false, and no false alarm.
    pub fn reached(&self) -> bool {
        let (all, right) = (self.independent().count(), self.independent().filter(|c| c.cause_right()).count());
        let found = self.independent().all(|c| c.detected && c.stage_right && c.worth != Some(Worth::False));
        all > 0 && found && right * 100 >= all * 90 && self.clean.alarms.is_empty()
    }
}
