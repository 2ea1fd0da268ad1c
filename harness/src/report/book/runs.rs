//! Runs, each in its figures per stage: small enough to be committed.

use super::super::{Document as _, ModelInfo, Outcome, Report};
use crate::machine::Machine;
use crate::number::{Real, rounded};
use crate::verdict::{Local, StageResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Runs of one model on one machine.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Runs {
    /// Version of this layout.
    pub schema_version: u32,
    /// Always `runs`.
    pub kind: String,
    /// Heading.
    pub title: String,
    /// Where they ran.
    pub machine: Machine,
    /// The runs.
    pub runs: Vec<Digest>,
}

/// A run in its figures.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Digest {
    /// The model.
    pub model: ModelInfo,
    /// Name of the prompt.
    pub prompt: String,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Decode steps after it.
    pub decode: usize,
    /// Name of the subject.
    pub subject: String,
    /// Name of the reference.
    pub reference: String,
    /// The outcome.
    pub outcome: Outcome,
    /// The outcome as the screen says it.
    pub verdict: String,
    /// What was judged.
    pub coverage: Rows,
    /// Steps after which both sides choose the same token, and all steps.
    pub agreed: (usize, usize),
    /// Largest Kullback-Leibler divergence of a position, in nats.
    pub kl: Real,
    /// Command line that repeats the run.
    pub command: String,
    /// The stages, layers folded.
    pub stages: Vec<StageDigest>,
}

/// Stage rows of a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Rows {
    /// Asked for.
    pub asked: usize,
    /// Judged.
    pub judged: usize,
}

/// A stage over all layers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageDigest {
    /// Name of the stage.
    pub stage: String,
    /// Layers that have it.
    pub layers: usize,
    /// The worst of the subject.
    pub subject: Option<Figures>,
    /// The worst of the reference.
    pub reference: Option<Figures>,
}

/// A local residual in three digits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Largest relative L2 distance of a row from f64.
    pub residual: Real,
    /// Largest share of what is allowed.
    pub used: Real,
}

impl Figures {
    /// The worse of both, each figure by itself.
    pub(super) fn or(self, other: Self) -> Self {
        let worse = |a: Real, b: Real| if b.0 > a.0 || b.0.is_nan() { b } else { a };
        Self { residual: worse(self.residual, other.residual), used: worse(self.used, other.used) }
    }
}

/// The worse of what is there.
fn worse(a: Option<Figures>, b: Option<Figures>) -> Option<Figures> {
    a.into_iter().chain(b).reduce(Figures::or)
}

impl Digest {
    /// The figures of `report`.
    pub fn new(report: &Report) -> Self {
        let verdict = &report.diagnosis.verdict;
        let mut stages: Vec<StageDigest> = Vec::new();
        for stage in &verdict.stages {
            match stages.iter_mut().find(|s| s.stage == stage.id.name) {
                Some(seen) => seen.add(stage),
                None => {
                    let mut new =
                        StageDigest { stage: stage.id.name.to_owned(), layers: 0, subject: None, reference: None };
                    new.add(stage);
                    stages.push(new);
                }
            }
        }
        let same = verdict.tokens.iter().filter(|t| t.subject == t.reference);
        let mut model = report.model.clone();
        // Where the file lay on the machine that ran is nobody's concern.
        let file = std::path::Path::new(&model.path).file_name();
        model.path = file.unwrap_or_default().to_string_lossy().into_owned();
        Self {
            model,
            prompt: report.run.prompt.clone(),
            tokens: report.run.tokens.len(),
            decode: report.run.decoded.len(),
            subject: report.subject.name.clone(),
            reference: report.reference.name.clone(),
            outcome: report.outcome,
            verdict: report.screen(false).line(),
            coverage: Rows { asked: verdict.coverage.asked, judged: verdict.coverage.judged },
            agreed: (same.count(), verdict.tokens.len()),
            kl: Real(rounded(
                verdict
                    .logits
                    .iter()
                    .map(|r| f64::from(r.kl))
                    .fold(0.0, |m: f64, kl| if kl.is_nan() || m.is_nan() { f64::NAN } else { m.max(kl) }),
            )),
            command: report.run.repeat(),
            stages,
        }
    }
}

impl Digest {
    /// The verdict in one word.
    pub(super) fn word(&self) -> &str {
        self.verdict.split([':', ' ']).next().unwrap_or("")
    }

    /// What selects the path through the engines: the options of the run but for its prompt.
    pub(super) fn path(&self) -> String {
        let prompt = format!("--prompt {} ", self.prompt);
        let command = format!("{} ", self.command);
        command.replacen("qdiff run ", "", 1).replacen(&prompt, "", 1).trim().to_owned()
    }

    /// The worst figures of one side over all stages.
    pub(super) fn worst(&self, side: fn(&StageDigest) -> Option<Figures>) -> Option<Figures> {
        self.stages.iter().filter_map(side).reduce(Figures::or)
    }
}

impl StageDigest {
    fn add(&mut self, stage: &StageResult) {
        let figures = |local: &Option<Local>| {
            local.as_ref().map(|l| Figures { residual: Real(rounded(l.residual)), used: Real(rounded(l.used)) })
        };
        self.layers += 1;
        self.subject = worse(self.subject, figures(&stage.subject));
        self.reference = worse(self.reference, figures(&stage.reference));
    }
}

impl Runs {
    /// The figures of `reports`, which ran on one machine.
    pub fn new(title: &str, reports: &[Report]) -> Self {
        Self {
            schema_version: super::RESULTS_VERSION,
            kind: "runs".to_owned(),
            title: title.to_owned(),
            machine: reports.first().map_or_else(Machine::this, |r| r.machine.clone()),
            runs: reports.iter().map(Digest::new).collect(),
        }
    }

    /// Stages over all runs: the worst of each side.
    pub(super) fn stages(&self) -> Vec<StageDigest> {
        let mut all: Vec<StageDigest> = Vec::new();
        for stage in self.runs.iter().flat_map(|r| &r.stages) {
            match all.iter_mut().find(|s| s.stage == stage.stage) {
                Some(seen) => {
                    seen.layers = seen.layers.max(stage.layers);
                    seen.subject = worse(seen.subject, stage.subject);
                    seen.reference = worse(seen.reference, stage.reference);
                }
                None => all.push(stage.clone()),
            }
        }
        all
    }
}
