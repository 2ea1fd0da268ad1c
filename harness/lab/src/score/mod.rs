//! How often the diagnosis is right: known faults planted, the whole diagnosis
//! run, and what it says held against what is known.
//!
//! What counts are faults that share no code with the hypotheses (the CPU engine's, in [`faults`]; the CUDA engine's
//! own). Faults that rewrite the graph are round trips, fault and hypothesis being one function, and are counted apart;
//! so are faults that change their stage's own output by no more than rounding may, which is measured
//! (`tests/inert-faults.txt` lists them).

#[cfg(feature = "faults")]
mod cuda;
pub mod faults;
mod regrade;
mod run;
mod sampling;
mod source;

#[cfg(feature = "faults")]
pub use cuda::{CUDA, CUDA_FAST, CUDA_KERNELS, FUSED_KERNELS};
pub use regrade::regrade;
pub use run::ScoreRun;
pub use sampling::Sampling;
pub use source::{FaultSource, INDEPENDENT, KERNELS, Plant, ROUND_TRIPS, SHORT, of_real_models};

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
    /// Causes that fit as well.
    pub ties: Vec<CauseId>,
    /// Origins besides it.
    pub others: usize,
    /// Whether anything was found.
    pub detected: bool,
    /// Whether the first origin, and the only one, is where it was planted.
    pub stage_right: bool,
    /// Whether the cause named first is the planted one.
    pub cause_right: bool,
    /// Of a fault that was not found: what it changed of its stage's output, against a run of the same engine without
    /// it, as a share of what is allowed there. Up to 1 it is inert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Real>,
    /// What is told of its cause, in a sentence, where it is no mutation that should be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    /// What that is worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worth: Option<Worth>,
    /// Time of the diagnosis, in seconds: verdict and search for the cause.
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

    /// Why it is not told as it was planted; empty if it is.
    pub fn reason(&self) -> String {
        let same = |tie: &CauseId| tie.mutation == self.fault.mutation;
        match self.effect {
            Some(effect) => format!("its effect is {} of what is allowed", number(effect.0)),
            None if !self.detected => "nothing was found".to_owned(),
            None if !self.stage_right => "the place is wrong or not the only one".to_owned(),
            None if self.cause_right => String::new(),
            None if self.ties.iter().any(same) => "both give these very values; the other is told first".to_owned(),
            None if self.cause.is_none() => "no hypothesis fits".to_owned(),
            None => "another hypothesis fits".to_owned(),
        }
    }
}

/// The middle of the times of these diagnoses, in seconds.
pub(crate) fn median(cases: &[&Case]) -> f64 {
    let mut seconds: Vec<f64> = cases.iter().map(|c| c.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}

/// What is told of the cause of a bug that stands in no catalogue, held against what the bug is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Worth {
    /// It is what was planted, and proved.
    Right,
    /// It is what was planted, and told as consistent only.
    Consistent,
    /// No more than the place is told, with how the error looks.
    Location,
    /// Something else is told as the cause.
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
    /// Whether they stand in no catalogue, so that a cause must be solved for.
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

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Score {
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
    /// Whether it reaches what is asked of it over independent faults that are not inert: all detected, each at its
    /// stage, 95 of 100 of those that can be named named, and no false alarm.
    pub fn reached(&self) -> bool {
        let of = |g: &&Group| g.independent && !g.unlisted;
        let counted = || self.groups.iter().filter(of).flat_map(Group::counted);
        let (all, named) = (counted().count(), counted().filter(|c| c.cause_right).count());
        let independent = || self.groups.iter().filter(|g| g.independent).flat_map(Group::counted);
        let found = independent().all(|c| c.detected && c.stage_right);
        independent().count() > 0 && found && named * 100 >= all * 95 && self.clean.alarms.is_empty()
    }
}
