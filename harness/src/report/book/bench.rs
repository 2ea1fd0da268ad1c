//! `qdiff bench --measure cuda`: what it measured.

use super::super::markdown::{self, escape};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt::Write as _;

/// A bench on file.
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
    /// Of the bytes per second that the card copies, those of the weights of a
    /// decode step; for prefill nothing.
    pub of_bandwidth: Option<f64>,
    /// Against llama.cpp on the same card in the same run.
    pub ratio: Option<f64>,
}

impl Bench {
    pub(super) fn render(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "\n### {} {} on {}\n\n\
             `qdiff bench --measure cuda`, medians of {} rounds. A copy within the card moves {:.2} TB/s; a decode\n\
             step reads {:.1} MB of weights.\n",
            escape(&self.model),
            escape(&self.format),
            escape(&self.device),
            self.rounds,
            self.bandwidth / 1e12,
            self.weight_bytes as f64 / 1e6
        );
        let head = ["what", "who", "tokens/s", "of the bandwidth", "of llama.cpp"];
        let row = |r: &BenchRow| -> Vec<Cow<'_, str>> {
            let none = || "-".to_owned();
            vec![
                escape(&r.what).into(),
                escape(&r.who).into(),
                format!("{:.1}", r.tokens_per_second).into(),
                r.of_bandwidth.map_or_else(none, |b| format!("{:.0} %", 100.0 * b)).into(),
                r.ratio.map_or_else(none, |x| format!("{x:.2}")).into(),
            ]
        };
        markdown::table(&head, &[2, 3, 4], self.rows.iter().map(row), out);
        if self.kernels.is_empty() {
            return;
        }
        out.push_str("\nThe kernels of a decode step of the fast path:\n\n");
        let row = |k: &Kernel| -> Vec<Cow<'_, str>> {
            vec![escape(&k.name).into(), k.launches.to_string().into(), format!("{:.1}", k.seconds * 1e6).into()]
        };
        let head = ["kernel", "launches", "µs a step"];
        markdown::table(&head, &[1, 2], self.kernels.iter().map(row), out);
    }
}
