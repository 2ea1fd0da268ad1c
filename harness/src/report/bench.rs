//! What `qdiff bench` tells: time and memory, against llama.cpp in the same run.

use super::book::{Bench, BenchRow};
use super::screen::{Check, Document, Fate, Line, Screen, Section, Table};
use super::stages::NONE;
use super::{Kind, Outcome};
use crate::number::counted;
use schemars::JsonSchema;
use serde::Serialize;

/// What was measured.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "one of them a process")]
pub enum BenchReport {
    /// The CPU engine.
    Speed(Speed),
    /// The CUDA engine on its card, with an earlier measurement of it to be told
    /// beside.
    Cuda {
        /// The figures.
        #[serde(flatten)]
        now: Bench,
        /// Earlier ones.
        #[serde(skip)]
        before: Option<Bench>,
    },
    /// Memory that stayed flat.
    Soak(Soaked),
    /// A whole run.
    Run(WholeRun),
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

/// Decode steps to the end of the context.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Soaked {
    /// The card.
    pub device: String,
    /// The last position.
    pub position: usize,
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
    const KIND: Kind = Kind::Bench;

    fn screen(&self, _: bool) -> Screen {
        let (title, headline, sections) = match self {
            Self::Speed(speed) => of_speed(speed),
            Self::Cuda { now, before } => of_cuda(now, before.as_ref()),
            Self::Run(run) => of_run(run),
            Self::Soak(Soaked { device, position }) => (
                device.clone(),
                format!("memory stayed flat to position {position}, the end of the context"),
                Vec::new(),
            ),
            Self::TappedPrefill { prompt, stages } => {
                (prompt.clone(), format!("{} tapped", counted(*stages, "stage")), Vec::new())
            }
        };
        Screen {
            checks: vec![Check::new("bench", title.as_str(), Fate::Passed(headline.clone()))],
            word: "MEASURED",
            sections,
            ..Screen::new(title, Outcome::Match, headline)
        }
    }
}

type Told = (String, String, Vec<Section>);

fn of_speed(speed: &Speed) -> Told {
    let row = |r: &SpeedRow| {
        let what = format!("{} of {}", r.what, r.tokens);
        vec![what, format!("{:.1}", r.cpu), format!("{:.1}", r.llama), format!("{:.2}", r.ratio)]
    };
    let columns = ["", "cpu, tok/s", "llama.cpp, tok/s", "ratio"];
    let ratios: Vec<String> = speed.rows.iter().map(|r| format!("{} {:.2}", r.what, r.ratio)).collect();
    (
        "the CPU engine against llama.cpp".to_owned(),
        format!("tokens per second, llama.cpp's being 1: {}", ratios.join(", ")),
        vec![
            Section::lines("", vec![("how", how(speed.threads, speed.rounds))]),
            Section::table("Speed", Table::new(&columns, &[1, 2, 3], speed.rows.iter().map(row))),
        ],
    )
}

fn how(threads: usize, rounds: u16) -> String {
    format!("untapped, {}, medians of {}", counted(threads, "thread"), counted(usize::from(rounds), "round"))
}

fn of_run(run: &WholeRun) -> Told {
    let row = |what: String, (seconds, kib): (f64, f64)| {
        vec![what, format!("{seconds:.2}"), format!("{:.2}", kib / 1024.0 / 1024.0)]
    };
    let whole = row(format!("run --prompt {} -n 0", run.prompt), run.whole);
    let rows = [whole, row("llama.cpp, tapped prefill alone".to_owned(), run.llama)];
    (
        format!("a whole run of {}", run.prompt),
        format!("it takes {:.2} times as long as llama.cpp's tapped prefill alone", run.ratio),
        vec![
            Section::lines("", vec![("how", format!("medians of {}", counted(usize::from(run.rounds), "round")))]),
            Section::table("Time and memory", Table::new(&["", "seconds", "GiB, peak"], &[1, 2], rows.into_iter())),
        ],
    )
}

fn of_cuda(bench: &Bench, before: Option<&Bench>) -> Told {
    let none = || NONE.to_owned();
    let row = |r: &BenchRow| {
        let change = before.and_then(|b| b.rows.iter().find(|old| old.what == r.what && old.who == r.who));
        let change = change.map(|old| 100.0 * (r.tokens_per_second / old.tokens_per_second - 1.0));
        vec![
            r.what.clone(),
            r.who.clone(),
            format!("{:.0}", r.tokens_per_second),
            r.of_bandwidth.map_or_else(none, |x| format!("{:.1} %", 100.0 * x)),
            r.ratio.map_or_else(none, |x| format!("{x:.2}")),
            change.map_or_else(none, |x| format!("{x:+.1} %")),
        ]
    };
    let columns = ["what", "who", "tok/s", "of bandwidth", "of llama.cpp", "against the baseline"];
    let kernels = bench.kernels.iter().map(|k| {
        let each = 1e6 * k.seconds / k.launches as f64;
        vec![k.name.clone(), k.launches.to_string(), format!("{each:.2}"), format!("{:.1}", 1e6 * k.seconds)]
    });
    let mut lines: Vec<Line> = vec![
        ("model", format!("{} {}", bench.model, bench.format)),
        ("how", format!("medians of {}", counted(bench.rounds, "round"))),
    ];
    lines.extend(before.map(|b| ("baseline", format!("{}, {} {}", b.device, b.model, b.format))));
    (
        format!("the CUDA engine on {}", bench.device),
        format!(
            "a decode step reads {:.1} MB of weights; a copy on the card moves {:.0} GB/s",
            bench.weight_bytes as f64 / 1e6,
            bench.bandwidth / 1e9
        ),
        vec![
            Section::lines("", lines),
            Section::table("Speed", Table::new(&columns, &[2, 3, 4, 5], bench.rows.iter().map(row))),
            Section::table(
                "Kernels of a decode step",
                Table::new(&["kernel", "launches", "µs each", "µs a step"], &[1, 2, 3], kernels),
            ),
        ],
    )
}
