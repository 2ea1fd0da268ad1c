//! Runs, each in its figures per stage: small enough to be committed.

use qdiff::machine::Machine;
use qdiff::metrics::largest;
use qdiff::number::{Real, number, percent, rounded};
use qdiff::report::{Document as _, ModelInfo, NONE, Outcome, Report, grouped};
use qdiff::verdict::{Local, StageResult};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Version of the layout of results; raised when a field changes its meaning.
pub const RESULTS_VERSION: u32 = 1;

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
    fn or(self, other: Self) -> Self {
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
    fn word(&self) -> &str {
        self.verdict.split([':', ' ']).next().unwrap_or("")
    }

    /// What selects the path through the engines: the options of the run but for its prompt.
    fn path(&self) -> String {
        let prompt = format!("--prompt {} ", self.prompt);
        let command = format!("{} ", self.command);
        command.replacen("qdiff run ", "", 1).replacen(&prompt, "", 1).trim().to_owned()
    }

    /// A row of the table of prompts.
    fn row(&self) -> Vec<String> {
        vec![
            self.prompt.clone(),
            format!("{} + {}", self.tokens, self.decode),
            self.subject.clone(),
            self.reference.clone(),
            self.word().to_owned(),
            format!("{} of {}", self.coverage.judged, self.coverage.asked),
            share(self.worst(|s| s.subject)),
            share(self.worst(|s| s.reference)),
            format!("{} of {}", self.agreed.0, self.agreed.1),
            number(self.kl.0),
        ]
    }

    /// The worst figures of one side over all stages.
    fn worst(&self, side: fn(&StageDigest) -> Option<Figures>) -> Option<Figures> {
        self.stages.iter().filter_map(side).reduce(Figures::or)
    }
}

impl StageDigest {
    fn new(stage: &StageResult) -> Self {
        let figures = |l: &Local| Figures { residual: Real(rounded(l.residual)), used: Real(rounded(l.used)) };
        let [subject, reference] = [&stage.subject, &stage.reference].map(|side| side.as_ref().map(figures));
        Self { stage: stage.id.name.to_owned(), layers: 1, subject, reference }
    }

    /// A row of the table of stages.
    fn row(&self) -> Vec<String> {
        let sides = [self.subject, self.reference].into_iter();
        let figures = sides.flat_map(|f| [f.map_or_else(|| NONE.to_owned(), |f| number(f.residual.0)), share(f)]);
        [self.stage.clone(), self.layers.to_string()].into_iter().chain(figures).collect()
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
            schema_version: RESULTS_VERSION,
            kind: "runs".to_owned(),
            title: title.to_owned(),
            machine: reports.first().map_or_else(Machine::this, |r| r.machine.clone()),
            runs: reports.iter().map(Digest::new).collect(),
        }
    }

    /// As the document has it: rows of its tables, commands, and the worst of each stage over all runs.
    pub(super) fn told(&self) -> Value {
        let stages = folded(self.runs.iter().flat_map(|r| r.stages.iter().cloned()), usize::max);
        let commands: Vec<&str> = self.runs.iter().map(|r| r.command.as_str()).collect();
        json!({
            "title": self.title, "machine": self.machine, "runs": self.runs,
            "rows": self.runs.iter().map(Digest::row).collect::<Vec<_>>(),
            "commands": commands.join("\n"),
            "stages": stages.iter().map(StageDigest::row).collect::<Vec<_>>(),
        })
    }
}

/// The share of what is allowed, of one side.
fn share(figures: Option<Figures>) -> String {
    figures.map_or_else(|| NONE.to_owned(), |f| percent(f.used.0))
}

/// The largest share that a subject takes of what rounding allows.
pub(super) fn worst(all: &[&Digest]) -> String {
    share(all.iter().filter_map(|run| run.worst(|s| s.subject)).reduce(Figures::or))
}

/// A row for each model and the options of its runs, over all prompts: those of a model together, models in the order in which they
/// first appear. The column of the model says which file it is.
pub(super) fn paths(all: &[&Digest]) -> Vec<Vec<String>> {
    let models = grouped(all, |run| &run.model.sha256);
    let paths = models.into_iter().flat_map(|(_, runs)| grouped(runs, |run| (&run.subject, run.path())));
    let row = |((subject, path), runs): ((&String, String), Vec<&&Digest>)| {
        let sum = |of: fn(&Digest) -> usize| runs.iter().map(|r| of(r)).sum::<usize>();
        let worst = |side: fn(&StageDigest) -> Option<Figures>| {
            share(runs.iter().filter_map(|r| r.worst(side)).reduce(Figures::or))
        };
        vec![
            format!("{} {}", runs[0].model.name, runs[0].model.format),
            path.strip_prefix("-m ")
                .and_then(|rest| rest.split_once(' '))
                .map_or(path.clone(), |(_, rest)| rest.to_owned()),
            subject.clone(),
            runs.len().to_string(),
            verdict(&runs),
            format!("{} of {}", sum(|r| r.coverage.judged), sum(|r| r.coverage.asked)),
            worst(|s| s.subject),
            worst(|s| s.reference),
        ]
    };
    paths.map(row).collect()
}

/// The verdict of all prompts, or how many have which.
fn verdict(runs: &[&&Digest]) -> String {
    let mut words = grouped(runs, |run| run.word());
    words.sort_unstable_by_key(|(word, _)| *word);
    let alone = words.len() == 1;
    let told = words.iter().map(|(word, n)| if alone { (*word).to_owned() } else { format!("{} {word}", n.len()) });
    told.collect::<Vec<_>>().join(", ")
}
