//! What verdicts of a large model took: written by `scripts/large-model`.

use qdiff::number::counted;
use qdiff::report::NONE;
use qdiff::report::markdown::{self, escape};
use qdiff::report::{Section, Table};
use qdiff::shown::shown;
use serde::Deserialize;
use std::fmt::Write as _;

/// A large model, judged in several ways on one machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeModel {
    /// Always `large-model`.
    pub kind: String,
    /// Version of this layout.
    pub schema_version: u32,
    /// Where it ran.
    pub machine: LargeMachine,
    /// Bytes of the model's files.
    pub bytes: u64,
    /// Further options of `qdiff run`.
    pub options: String,
    /// Each way, in the order of the runs.
    pub runs: Vec<LargeRun>,
}

/// A machine with its GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeMachine {
    /// Its processor.
    pub cpu: String,
    /// Its cores.
    pub cores: usize,
    /// Its first GPU.
    pub gpu: Option<String>,
}

/// One run, in bytes and seconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeRun {
    /// Name of the subject.
    pub subject: String,
    /// Name of the reference.
    pub reference: String,
    /// `--oracle`.
    pub oracle: String,
    /// GPUs that evaluated linear layers.
    pub devices: Vec<String>,
    /// Whether runs before had left hash, weights and compiled kernels.
    pub cached: bool,
    /// The outcome.
    pub outcome: String,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Decode steps after it.
    pub decoded: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Rows of stages asked for.
    pub asked: usize,
    /// Of them those that were judged.
    pub judged: usize,
    /// Of them those that probes judged.
    pub probed: usize,
    /// Seconds from start to end.
    pub wall: f64,
    /// Those in no phase of the report.
    pub loading: f64,
    /// Those of the phases.
    pub seconds: LargeSeconds,
    /// Seconds of all processors together.
    pub busy: f64,
    /// The most memory that the process took without mapped files.
    pub peak: u64,
    /// What `--memory` allowed.
    pub allowed: u64,
    /// Captured stages on disk.
    pub on_disk: u64,
    /// The most that was taken on the GPU; absent where nothing told it.
    pub device_peak: Option<u64>,
}

/// Seconds of the phases of a run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeSeconds {
    /// Weights against ggml's.
    pub weights: f64,
    /// llama.cpp's run.
    pub reference: f64,
    /// The engine's; on a GPU those beyond llama.cpp's on the CPU, beside which it runs.
    pub subject: f64,
    /// Judging.
    pub judging: f64,
}

const COLUMNS: [&str; 13] = [
    "engine", "reference", "oracle", "cache", "verdict", "wall, s", "llama.cpp, s", "of wall", "engine, s",
    "judging, s", "cores busy", "GiB", "GiB, GPU",
];

/// A table for each model and machine; nothing where none was measured.
pub(super) fn render(all: &[LargeModel], out: &mut String) {
    for LargeModel { machine, bytes, options, runs, .. } in all {
        let Some(first) = runs.first() else { continue };
        let gib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 30));
        let gpu = machine.gpu.as_ref().map_or_else(String::new, |gpu| format!(", {}", shown(gpu)));
        let options =
            if options.is_empty() { String::new() } else { format!(" `{}`", shown(options).replace('`', "'")) };
        let _ = writeln!(
            out,
            "\n### A model of {} GiB and {}\n\n\
             `scripts/large-model`{options}: {} and {}, on {}, {}{gpu}. Of {} rows of stages {} were judged, {} of them by \
             probes; a full cache holds what an earlier run found of the file, and compiled kernels; an engine on the GPU runs \
             while llama.cpp does on the CPU, and its seconds are those beyond that; memory is without mapped files, of {} GiB \
             allowed, with {} GiB of captured stages on disk (the first run).",
            gib(*bytes),
            counted(first.layers, "layer"),
            counted(first.tokens, "token"),
            counted(first.decoded, "decode step"),
            escape(&machine.cpu),
            counted(machine.cores, "core"),
            first.asked,
            first.judged,
            first.probed,
            gib(first.allowed),
            gib(first.on_disk),
        );
        let cells = |run: &LargeRun| {
            let LargeSeconds { reference, subject, judging, .. } = run.seconds;
            let percent = |x: f64| format!("{:.0} %", 100.0 * x);
            let devices = if run.devices.is_empty() { String::new() } else { format!(" ({})", run.devices.join(", ")) };
            vec![
                run.subject.clone(),
                run.reference.clone(),
                format!("{}{devices}", run.oracle),
                if run.cached { "full" } else { "empty" }.to_owned(),
                run.outcome.clone(),
                format!("{:.1}", run.wall),
                format!("{reference:.1}"),
                percent(reference / run.wall),
                format!("{subject:.1}"),
                format!("{judging:.1}"),
                percent(run.busy / run.wall / machine.cores as f64),
                gib(run.peak),
                run.device_peak.map_or_else(|| NONE.to_owned(), gib),
            ]
        };
        let table = Table::new(&COLUMNS, &[5, 6, 7, 8, 9, 10, 11, 12], runs.iter().map(cells));
        markdown::section(&Section::table("", table), 4, out);
    }
}
