//! What `qdiff bench` tells: time and memory, against llama.cpp in the same run.

mod verdict;

pub use verdict::{Gpu, LayersRow, VerdictBench, VerdictRow};

use super::Outcome;
use super::screen::{Check, Document, Fate, Screen, Section, Table};
use super::stages::NONE;
use crate::number::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// What was measured of the CUDA engine; on file, what REPORT.md tells.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bench {
    /// Name of the card.
    pub device: String,
    /// Bytes per second that a copy within the card moves, read and written.
    pub bandwidth: f64,
    /// Name of the model.
    pub model: String,
    /// Its most frequent weight format.
    pub format: String,
    /// Bytes of weights that a decode step reads.
    pub weight_bytes: usize,
    /// Rounds; every figure is a median over them.
    pub rounds: usize,
    /// The figures.
    pub rows: Vec<BenchRow>,
    /// The kernels of a decode step of the fast path.
    pub kernels: Vec<Kernel>,
    /// Tokens of context before the first decode step that is timed.
    #[serde(default = "usual_depth")]
    pub depth: usize,
    /// Where the time of a decode step of the fast path goes.
    #[serde(default)]
    pub step: Option<DecodeStep>,
}

/// Tokens of context before the first timed decode step, where nothing is said of it.
pub const fn usual_depth() -> usize {
    512
}

/// A decode step of the fast path, in seconds.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DecodeStep {
    /// On the card, by events around the captured graph: shortest, median, and what 95 of 100 stay below.
    pub device: [f64; 3],
    /// The mean of as many in a row, the host not waiting between them.
    pub in_a_row: f64,
    /// As a caller has it, who waits for the token of each: the median.
    pub waited_for: f64,
    /// Layers of the model.
    pub layers: usize,
}

/// A kernel of a decode step, over all its launches.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Launches in a step.
    pub launches: usize,
    /// Seconds they take in a step, each timed in a row with itself.
    pub seconds: f64,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BenchRow {
    /// `decode` or `prefill`.
    pub what: String,
    /// Who, and how: `cuda-fast`, `cuda, taps read back`, `llama.cpp`.
    pub who: String,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// Of the bytes per second that the card copies, those of the weights of a decode step; for prefill nothing.
    pub of_bandwidth: Option<f64>,
    /// Against llama.cpp on the same card in the same run.
    pub ratio: Option<f64>,
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

impl Bench {
    /// What it tells, beside an earlier one.
    pub(super) fn screen(&self, before: Option<&Self>) -> Screen {
        let none = || NONE.to_owned();
        let row = |r: &BenchRow| {
            let mut cells = vec![
                r.what.clone(),
                r.who.clone(),
                format!("{:.1}", r.tokens_per_second),
                r.of_bandwidth.map_or_else(none, |x| format!("{:.1} %", 100.0 * x)),
                r.ratio.map_or_else(none, |x| format!("{x:.2}")),
            ];
            cells.extend(before.map(|b| {
                let old = b.rows.iter().find(|old| old.what == r.what && old.who == r.who);
                let change = old.map(|old| 100.0 * (r.tokens_per_second / old.tokens_per_second - 1.0));
                change.map_or_else(none, |x| format!("{x:+.1} %"))
            }));
            cells
        };
        let columns = ["what", "who", "tok/s", "of bandwidth", "of llama.cpp", "against the baseline"];
        let columns = &columns[..if before.is_some() { 6 } else { 5 }];
        let kernels = self.kernels.iter().map(|k| {
            let each = 1e6 * k.seconds / k.launches as f64;
            vec![k.name.clone(), k.launches.to_string(), format!("{each:.2}"), format!("{:.1}", 1e6 * k.seconds)]
        });
        let how = format!("{}; decode after {} tokens", medians(self.rounds), self.depth);
        let mut lines = vec![("model", format!("{} {}", self.model, self.format)), ("how", how)];
        lines.extend(before.map(|b| ("baseline", format!("{}, {} {}", b.device, b.model, b.format))));
        measured(
            format!("the CUDA engine on {}", self.device),
            format!(
                "a decode step reads {:.1} MB of weights; a copy on the card moves {:.0} GB/s",
                self.weight_bytes as f64 / 1e6,
                self.bandwidth / 1e9
            ),
            vec![
                Section::lines("", lines),
                Section::table("Speed", Table::new(columns, &[2, 3, 4, 5], self.rows.iter().map(row))),
                Section::lines(
                    "A decode step of cuda-fast",
                    self.step.as_ref().map_or_else(Vec::new, |s| self.of_step(s)),
                ),
                Section::table(
                    "Kernels of a decode step",
                    Table::new(&["kernel", "launches", "µs each", "µs a step"], &[1, 2, 3], kernels),
                ),
            ],
        )
    }

    /// Where the time of a decode step goes.
    fn of_step(&self, step: &DecodeStep) -> Vec<(&'static str, String)> {
        let us = |seconds: f64| format!("{:.1} µs", 1e6 * seconds);
        let [least, median, most] = step.device;
        let floor = self.weight_bytes as f64 / self.bandwidth;
        vec![
            ("device", format!("{} (least {}, 95 of 100 below {})", us(median), us(least), us(most))),
            (
                "in a row",
                format!("{} a step, {:.2} TB/s of weights", us(step.in_a_row), {
                    self.weight_bytes as f64 / step.in_a_row / 1e12
                }),
            ),
            (
                "waited for",
                format!("{}: the host takes {} of it", us(step.waited_for), us((step.waited_for - median).max(0.0))),
            ),
            ("floor", format!("{}: the weights at the bandwidth of a copy", us(floor))),
            ("a layer", format!("{} above the floor", us((median - floor) / step.layers as f64))),
        ]
    }
}
