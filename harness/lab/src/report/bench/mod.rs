//! What `qdiff-lab bench` tells: time and memory, against llama.cpp in the same run.

mod cuda;
mod verdict;

pub use verdict::{Gpu, LayersRow, VerdictBench, VerdictRow};

use qdiff::number::counted;
use qdiff::report::Outcome;
use qdiff::report::{Check, Document, Fate, Screen, Section, Table};
use schemars::JsonSchema;
use serde::Serialize;

pub use cuda::{Bench, BenchRow, CardState, DecodeStep, Kernel, StageBytes, TapRow, usual_depth};

/// What was measured.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "one of them a process")]
pub enum BenchReport {
    /// The CPU engine.
    Speed(Speed),
    /// The CUDA engine on its card, with an earlier measurement to print beside it.
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
