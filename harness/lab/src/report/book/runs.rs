//! Runs, each in its figures per stage: small enough to be committed.

use qdiff::machine::Machine;
use qdiff::metrics::largest;
use qdiff::number::{Real, rounded};
use qdiff::report::grouped;
use qdiff::report::{Document as _, ModelInfo, Outcome, Report};
use qdiff::verdict::{Local, StageResult};
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
    /// The worse of both, for each figure.
    pub(super) fn or(self, other: Self) -> Self {
        let worse = |a: Real, b: Real| if b.0 > a.0 || b.0.is_nan() { b } else { a };
        Self { residual: worse(self.residual, other.residual), used: worse(self.used, other.used) }
    }
}

impl Digest {
    /// The figures of `report`.
    pub fn new(report: &Report) -> Self {
        let verdict = &report.diagnosis.verdict;
        let stages = folded(verdict.stages.iter().map(StageDigest::new), |a, b| a + b);
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
            kl: Real(rounded(largest(verdict.logits.iter().map(|r| f64::from(r.kl))))),
            command: report.run.repeat(),
            stages,
        }
    }

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
    fn new(stage: &StageResult) -> Self {
        let figures = |l: &Local| Figures { residual: Real(rounded(l.residual)), used: Real(rounded(l.used)) };
        let [subject, reference] = [&stage.subject, &stage.reference].map(|side| side.as_ref().map(figures));
        Self { stage: stage.id.name.to_owned(), layers: 1, subject, reference }
    }
}

/// Stages of one name in one: the worst of each side, and as many layers as `layers` makes of those of two.
fn folded(stages: impl Iterator<Item = StageDigest>, layers: fn(usize, usize) -> usize) -> Vec<StageDigest> {
    let worse = |a: Option<Figures>, b| a.into_iter().chain(b).reduce(Figures::or);
    let one = |a: StageDigest, b: StageDigest| StageDigest {
        layers: layers(a.layers, b.layers),
        subject: worse(a.subject, b.subject),
        reference: worse(a.reference, b.reference),
        stage: a.stage,
    };
    let groups = grouped(stages, |s| s.stage.clone()).into_iter();
    groups.filter_map(|(_, group)| group.into_iter().reduce(one)).collect()
}

impl Runs {
    /// The figures of `reports`, which ran on one machine.
    pub fn new(title: &str, reports: &[Report]) -> Self {
        Self {
            schema_version: super::missing::RESULTS_VERSION,
            kind: "runs".to_owned(),
            title: title.to_owned(),
            machine: reports.first().map_or_else(Machine::this, |r| r.machine.clone()),
            runs: reports.iter().map(Digest::new).collect(),
        }
    }

    /// Stages over all runs.
    pub(super) fn stages(&self) -> Vec<StageDigest> {
        folded(self.runs.iter().flat_map(|r| r.stages.iter().cloned()), usize::max)
    }
}
