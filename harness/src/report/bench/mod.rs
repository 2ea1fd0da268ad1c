//! What `qdiff bench` tells: time and memory, against llama.cpp in the same run.

mod cuda;

use super::Outcome;
use super::screen::{Check, Document, Fate, Screen, Section, Table};
use super::stages::NONE;
use crate::number::counted;
use crate::verdict::CheckMode;
use clap::ValueEnum as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cuda::{Bench, BenchRow, CardState, DecodeStep, Kernel, StageBytes, TapRow, usual_depth};

/// What was measured.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "one of them a process")]
pub enum BenchReport {
    /// The CPU engine.
    Speed(Speed),
    /// The CUDA engine on its card, with an earlier measurement of it to be told beside.
    Cuda {
        /// The figures.
        #[serde(flatten)]
        now: Bench,
        /// Earlier ones.
        #[serde(skip)]
        before: Option<Bench>,
    },
    /// Memory that stayed flat.
    Soak {
        /// The card.
        device: String,
        /// The last position.
        position: usize,
    },
    /// A whole run.
    Run(WholeRun),
    /// Verdicts alone.
    Verdict(VerdictBench),
    /// llama.cpp tapped.
    TappedPrefill {
        /// Name of the prompt.
        prompt: String,
        /// Stages tapped.
        stages: usize,
    },
}

/// Speeds of the CPU engine and of llama.cpp.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Speed {
    /// Threads of either.
    pub threads: usize,
    /// Rounds measured.
    pub rounds: u16,
    /// Prefill and decode.
    pub rows: Vec<SpeedRow>,
}

/// A speed, the median of all rounds.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SpeedRow {
    /// `prefill` or `decode`.
    pub what: &'static str,
    /// Of how many tokens.
    pub tokens: usize,
    /// Tokens per second of the CPU engine.
    pub cpu: f64,
    /// Of llama.cpp.
    pub llama: f64,
    /// The median of the rounds' ratios, the engine's by llama.cpp's.
    pub ratio: f64,
}

/// A whole run against llama.cpp alone.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WholeRun {
    /// The prompt as given.
    pub prompt: String,
    /// Seconds, and peak resident memory in KiB, of `run`.
    pub whole: (f64, f64),
    /// Of llama.cpp's tapped prefill.
    pub llama: (f64, f64),
    /// The median of the rounds' ratios of wall time.
    pub ratio: f64,
    /// Rounds measured.
    pub rounds: u16,
}

/// What judging takes; on file, what REPORT.md tells. Growth is by the same with half the tokens: of the whole, of a token,
/// and of an element that both sides captured.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerdictBench {
    /// Threads.
    pub threads: usize,
    /// Rounds; every figure is a median over them.
    pub rounds: u16,
    /// Model by model, by the number of tokens and the check.
    pub verdicts: Vec<VerdictRow>,
    /// Of the shortest prompt of each model, the layers alone, some and all of them.
    pub layers: Vec<LayersRow>,
}

/// What a verdict takes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerdictRow {
    /// Name of the model.
    pub model: String,
    /// Its layers.
    pub layers: usize,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// How the stages are checked.
    pub check: CheckMode,
    /// What evaluates.
    pub oracle: String,
    /// Seconds of llama.cpp's prefill with every stage tapped.
    pub reference: f64,
    /// Seconds of the CPU engine's.
    pub subject: f64,
    /// Seconds that judging both takes.
    pub judging: f64,
    /// Elements that both captured, and that are read for it.
    pub elements: usize,
}

impl VerdictRow {
    /// Nanoseconds for each element.
    fn of_element(&self) -> f64 {
        1e9 * self.judging / self.elements as f64
    }

    /// The same with half the tokens.
    fn half<'a>(&self, all: &'a [Self]) -> Option<&'a Self> {
        let same = |r: &&Self| (&r.model, r.check, &r.oracle) == (&self.model, self.check, &self.oracle);
        all.iter().filter(same).find(|r| 2 * r.tokens == self.tokens)
    }
}

/// What judging some layers of a model takes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LayersRow {
    /// Name of the model.
    pub model: String,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// How the stages are checked.
    pub check: CheckMode,
    /// What evaluates.
    pub oracle: String,
    /// Layers, the first of the model.
    pub layers: usize,
    /// Seconds that judging them takes on both sides.
    pub judging: f64,
}

impl Document for BenchReport {
    const KIND: &'static str = "bench";

    fn screen(&self, _: bool) -> Screen {
        match self {
            Self::Speed(speed) => of_speed(speed),
            Self::Cuda { now, before } => now.screen(before.as_ref()),
            Self::Run(run) => of_run(run),
            Self::Verdict(verdicts) => verdicts.screen(),
            Self::Soak { device, position } => {
                let headline = format!("memory stayed flat to position {position}, the end of the context");
                measured(device.clone(), headline, Vec::new())
            }
            Self::TappedPrefill { prompt, stages } => {
                measured(prompt.clone(), format!("{} tapped", counted(*stages, "stage")), Vec::new())
            }
        }
    }
}

fn measured(title: String, headline: String, sections: Vec<Section>) -> Screen {
    Screen {
        checks: vec![Check::new("bench", title.as_str(), Fate::Passed(headline.clone()))],
        word: "MEASURED",
        sections,
        ..Screen::new(title, Outcome::Match, headline)
    }
}

fn of_speed(speed: &Speed) -> Screen {
    let row = |r: &SpeedRow| {
        let what = format!("{} of {}", r.what, r.tokens);
        vec![what, format!("{:.1}", r.cpu), format!("{:.1}", r.llama), format!("{:.2}", r.ratio)]
    };
    let columns = ["", "cpu, tok/s", "llama.cpp, tok/s", "ratio"];
    let ratios: Vec<String> = speed.rows.iter().map(|r| format!("{} {:.2}", r.what, r.ratio)).collect();
    let how = format!("untapped, {}, {}", counted(speed.threads, "thread"), medians(speed.rounds.into()));
    measured(
        "the CPU engine against llama.cpp".to_owned(),
        format!("tokens per second, llama.cpp's being 1: {}", ratios.join(", ")),
        vec![
            Section::lines("", vec![("how", how)]),
            Section::table("Speed", Table::new(&columns, &[1, 2, 3], speed.rows.iter().map(row))),
        ],
    )
}

fn medians(rounds: usize) -> String {
    format!("medians of {}", counted(rounds, "round"))
}

fn of_run(run: &WholeRun) -> Screen {
    let row = |what: String, (seconds, kib): (f64, f64)| {
        vec![what, format!("{seconds:.2}"), format!("{:.2}", kib / 1024.0 / 1024.0)]
    };
    let whole = row(format!("run --prompt {} -n 0", run.prompt), run.whole);
    let rows = [whole, row("llama.cpp, tapped prefill alone".to_owned(), run.llama)];
    measured(
        format!("a whole run of {}", run.prompt),
        format!("it takes {:.2} times as long as llama.cpp's tapped prefill alone", run.ratio),
        vec![
            Section::lines("", vec![("how", medians(run.rounds.into()))]),
            Section::table("Time and memory", Table::new(&["", "seconds", "GiB, peak"], &[1, 2], rows.into_iter())),
        ],
    )
}

impl VerdictBench {
    /// What it tells.
    pub(super) fn screen(&self) -> Screen {
        let shown = |x: Option<f64>| x.map_or_else(|| NONE.to_owned(), |x| format!("{x:.2}"));
        let rows = |model: &str| {
            let own = self.verdicts.iter().filter(move |r| r.model == model);
            own.map(|r| {
                let half = r.half(&self.verdicts);
                let growth = half.map(|half| r.judging / half.judging);
                let mut cells = vec![r.tokens.to_string(), named(r.check), r.oracle.clone()];
                cells.extend([r.reference, r.subject, r.judging, r.judging / r.reference].map(|x| shown(Some(x))));
                cells.extend(
                    [growth, growth.map(|g| g / 2.0), half.map(|half| r.of_element() / half.of_element())].map(shown),
                );
                cells
            })
            .collect::<Vec<_>>()
        };
        let columns = [
            "tokens", "check", "oracle", "llama.cpp, tapped, s", "engine, s", "judging, s", "of llama.cpp", "growth",
            "a token", "an element",
        ];
        let by_layer = |model: &str| {
            let own = self.layers.iter().filter(move |r| r.model == model);
            own.map(|r| {
                let each = 1e3 * r.judging / r.layers as f64;
                let cells = [r.tokens.to_string(), named(r.check), r.oracle.clone(), r.layers.to_string()];
                cells.into_iter().chain([shown(Some(r.judging)), format!("{each:.1}")]).collect()
            })
            .collect::<Vec<_>>()
        };
        let of_layers = ["tokens", "check", "oracle", "layers", "judging, s", "ms a layer"];
        let mut models: Vec<&str> = self.verdicts.iter().map(|r| r.model.as_str()).collect();
        models.dedup();
        let probed = self.verdicts.iter().rev().filter(|r| r.check == CheckMode::Probe);
        let last = probed.filter_map(|r| Some((r, r.half(&self.verdicts)?))).next();
        let headline = match last {
            Some((r, half)) => {
                let growth = r.judging / half.judging;
                let (from, to) = (half.tokens, r.tokens);
                format!(
                    "from {from} to {to} tokens judging with probes grows {growth:.2} times, {:.2} times a token and {:.2} times \
                     an element that is read",
                    growth / 2.0,
                    r.of_element() / half.of_element()
                )
            }
            None => "no length twice another was probed, so that no growth is told".to_owned(),
        };
        let how =
            format!("both sides on the CPU, {}, {}", counted(self.threads, "thread"), medians(self.rounds.into()));
        let mut sections = vec![Section::lines("", vec![("how", how)])];
        for model in models {
            let (verdicts, layers) = (rows(model).into_iter(), by_layer(model).into_iter());
            sections.push(Section::table(model, Table::new(&columns, &[0, 3, 4, 5, 6, 7, 8, 9], verdicts)));
            let title = format!("{model}, its layers alone");
            sections.push(Section::table(&title, Table::new(&of_layers, &[0, 3, 4, 5], layers)));
        }
        measured("what a verdict takes".to_owned(), headline, sections)
    }
}

/// How the check is called on the command line.
fn named(check: CheckMode) -> String {
    check.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
