//! What `qdiff-lab bench --measure cuda` tells.

use super::{measured, medians};
use qdiff::number::counted;
use qdiff::report::NONE;
use qdiff::report::{Screen, Section, Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

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
    /// Bytes per second that a copy from the card to pinned memory of the host moves.
    #[serde(default)]
    pub link: f64,
    /// Bytes of weights that a decode step reads.
    pub weight_bytes: usize,
    /// Rounds; every figure is a median over them.
    pub rounds: usize,
    /// The figures.
    pub rows: Vec<BenchRow>,
    /// The kernels of a decode step of the fast path.
    pub kernels: Vec<Kernel>,
    /// The kernels of its prefill, each launch alone.
    #[serde(default)]
    pub prefill_kernels: Vec<Kernel>,
    /// What the card was at.
    #[serde(default)]
    pub card: Vec<CardState>,
    /// What taps cost.
    #[serde(default)]
    pub taps: Vec<TapRow>,
    /// What every stage of the fast path brings to the host.
    #[serde(default)]
    pub stages: Vec<StageBytes>,
    /// Tokens of context before the first decode step that is timed.
    #[serde(default = "usual_depth")]
    pub depth: usize,
    /// Tokens of the timed prefill.
    #[serde(default = "usual_depth")]
    pub prefill: usize,
    /// Where the time of a decode step of the fast path goes.
    #[serde(default)]
    pub step: Option<DecodeStep>,
}

/// Default number of tokens of context before the first timed decode step.
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
    /// Bytes of the caches' rows that it reads.
    #[serde(default)]
    pub cache_bytes: usize,
    /// On the card, where its blocks say when they began and ended.
    #[serde(default)]
    pub stamped: Option<f64>,
}

/// A kernel of a decode step, over all its launches.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Launches in a step.
    pub launches: usize,
    /// Seconds they take in a step: inside it, or without a handover each timed alone.
    pub seconds: f64,
    /// How much of that lies between the end of the launch before and the first block that goes on.
    #[serde(default)]
    pub handover: Option<f64>,
    /// Bytes of weights and caches that they read.
    #[serde(default)]
    pub bytes: usize,
    /// Additions and multiplications of their products.
    #[serde(default)]
    pub operations: usize,
}

/// What the card is at.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CardState {
    /// Who runs on it.
    pub who: String,
    /// Clock of its multiprocessors in MHz.
    pub clock: u32,
    /// The highest.
    pub most: u32,
    /// Why it is no higher: bits, as `nvidia-smi` has them (`clocks_event_reasons.active`).
    pub slowed: u64,
    /// Power in W.
    pub watts: f64,
    /// Temperature in °C.
    pub degrees: f64,
}

/// What taps cost.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TapRow {
    /// `decode` or `prefill`.
    pub what: String,
    /// Who, and which taps.
    pub who: String,
    /// The share of the untapped speed that is lost, where the same work is done.
    pub slower: Option<f64>,
    /// Bytes that come to the host of a decode step, or of the prefill.
    pub bytes: u64,
    /// Of them per second.
    pub per_second: Option<f64>,
}

/// Bytes of a stage in all layers that come to the host.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageBytes {
    /// The stage.
    pub stage: String,
    /// Bytes of the prefill.
    pub prefill: u64,
    /// Bytes of a decode step.
    pub decode: u64,
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
    /// In the fastest measurement, and of 95 in 100 at least.
    #[serde(default)]
    pub spread: Option<[f64; 2]>,
    /// Bytes per second of a decode step's weights, as a share of the card's copying speed; absent for prefill.
    pub of_bandwidth: Option<f64>,
    /// The speed divided by that of the fastest llama.cpp on the same card in the same run, in this process or by llama-bench;
    /// absent for llama.cpp itself, and with taps.
    pub ratio: Option<f64>,
}

impl Bench {
    /// Sets the ratio of every engine without taps to the fastest llama.cpp of this measurement.
    pub(crate) fn hold_against_llama(&mut self) {
        let all: BTreeSet<String> = self.rows.iter().map(|row| row.what.clone()).collect();
        for what in &all {
            let theirs = self.rows.iter().filter(|row| row.what == *what && row.who.starts_with("llama"));
            let fastest = theirs.map(|row| row.tokens_per_second).reduce(f64::max);
            // llama.cpp brings the logits to the host.
            let other =
                |who: &str| who.starts_with("llama") || who.contains("taps") || who.contains("stay on the card");
            let ours = |row: &&mut BenchRow| row.what == *what && !other(&row.who);
            for row in self.rows.iter_mut().filter(ours) {
                row.ratio = fastest.map(|speed| row.tokens_per_second / speed);
            }
        }
    }

    /// What it tells, beside an earlier one.
    pub(in crate::report) fn screen(&self, before: Option<&Self>) -> Screen {
        let none = || NONE.to_owned();
        let row = |r: &BenchRow| {
            let mut cells = vec![
                r.what.clone(),
                r.who.clone(),
                format!("{:.1}", r.tokens_per_second),
                r.of_bandwidth.map_or_else(none, |x| format!("{:.1} %", 100.0 * x)),
                r.ratio.map_or_else(none, |x| format!("{x:.2}")),
            ];
            cells.extend(r.spread.map(|[most, least]| format!("{least:.1}, {most:.1}")));
            cells.extend(before.map(|b| {
                let old = b.rows.iter().find(|old| old.what == r.what && old.who == r.who);
                let change = old.map(|old| 100.0 * (r.tokens_per_second / old.tokens_per_second - 1.0));
                change.map_or_else(none, |x| format!("{x:+.1} %"))
            }));
            cells
        };
        let mut columns = vec!["what", "who", "tok/s", "of bandwidth", "of llama.cpp"];
        columns.extend(self.rows.iter().any(|r| r.spread.is_some()).then_some("95 of 100 above, best"));
        columns.extend(before.map(|_| "against the baseline"));
        let how = medians(self.rounds);
        let mut lines = vec![("how", how)];
        lines.extend(before.map(|b| ("baseline", format!("{}, {}", b.device, b.of()))));
        measured(
            format!("the CUDA engine on {}: {}", self.device, self.of()),
            format!(
                "a decode step reads {:.1} MB of weights; a copy on the card moves {:.0} GB/s",
                self.weight_bytes as f64 / 1e6,
                self.bandwidth / 1e9
            ),
            vec![
                Section::lines("", lines),
                Section::table(
                    "Speed",
                    Table::new(&columns, &(2..columns.len()).collect::<Vec<_>>(), self.rows.iter().map(row)),
                ),
                Section::lines(
                    "A decode step of cuda-fast",
                    self.step.as_ref().map_or_else(Vec::new, |s| self.of_step(s)),
                ),
                self.kernels("Kernels of a decode step", &self.kernels),
                Section::table(
                    "What taps cost",
                    Table::new(
                        &["what", "who", "slower", "MB to the host", "GB/s", "of the link"],
                        &[2, 3, 4, 5],
                        self.taps.iter().map(|t| self.of_taps(t)),
                    ),
                ),
                Section::table(
                    "What every stage brings to the host",
                    Table::new(
                        &["stage", "MB a prefill", "kB a decode step"],
                        &[1, 2],
                        self.stages.iter().map(|s| {
                            let (prefill, decode) = (s.prefill as f64 / 1e6, s.decode as f64 / 1e3);
                            vec![s.stage.clone(), format!("{prefill:.1}"), format!("{decode:.1}")]
                        }),
                    ),
                ),
                Section::table(
                    "The card",
                    Table::new(
                        &["who", "MHz", "at most", "slowed by (bits)", "W", "°C"],
                        &[1, 2, 3, 4, 5],
                        self.card.iter().map(|c| {
                            vec![
                                c.who.clone(),
                                c.clock.to_string(),
                                c.most.to_string(),
                                format!("{:#x}", c.slowed),
                                format!("{:.0}", c.watts),
                                format!("{:.0}", c.degrees),
                            ]
                        }),
                    ),
                ),
                self.kernels("Kernels of a prefill, each launch alone", &self.prefill_kernels),
            ],
        )
    }

    /// The model and the context. Generated models share a name, and differ in layers and bytes.
    fn of(&self) -> String {
        let generated = self.model.starts_with("synthetic");
        let bytes = if generated { format!(", {:.2} GB", self.weight_bytes as f64 / 1e9) } else { String::new() };
        let layers = self.step.as_ref().map_or_else(String::new, |s| format!(", {}", counted(s.layers, "layer")));
        let prefill =
            if self.prefill == usual_depth() { String::new() } else { format!(", prefill of {}", self.prefill) };
        format!("{} {}{layers}{bytes}, after {} tokens{prefill}", self.model, self.format, self.depth)
    }

    /// What some taps cost.
    fn of_taps(&self, row: &TapRow) -> Vec<String> {
        let shown = |x: Option<f64>, tell: &dyn Fn(f64) -> String| x.map_or_else(|| NONE.to_owned(), tell);
        vec![
            row.what.clone(),
            row.who.clone(),
            shown(row.slower, &|x| format!("{:.1} %", 100.0 * x)),
            shown(row.per_second.map(|_| row.bytes as f64), &|x| format!("{:.2}", x / 1e6)),
            shown(row.per_second, &|x| format!("{:.2}", x / 1e9)),
            shown(row.per_second, &|x| format!("{:.1} %", 100.0 * x / self.link)),
        ]
    }

    /// Where the time of a decode step goes.
    fn of_step(&self, step: &DecodeStep) -> Vec<(&'static str, String)> {
        let us = |seconds: f64| format!("{:.1} µs", 1e6 * seconds);
        let [least, median, most] = step.device;
        let bytes = (self.weight_bytes + step.cache_bytes) as f64;
        let floor = bytes / self.bandwidth;
        let what = if step.cache_bytes > 0 { "weights and caches" } else { "weights" };
        let mut lines = vec![
            ("device", format!("{} (least {}, 95 of 100 below {})", us(median), us(least), us(most))),
            ("in a row", format!("{} a step, {:.2} TB/s of {what}", us(step.in_a_row), bytes / step.in_a_row / 1e12)),
            (
                "waited for",
                format!("{}: the host takes {} of it", us(step.waited_for), us((step.waited_for - median).max(0.0))),
            ),
            ("floor", format!("{}: the {what} at the bandwidth of a copy", us(floor))),
            ("a layer", format!("{} above the floor", us((median - floor) / step.layers as f64))),
        ];
        lines.extend(step.stamped.map(|stamped| {
            let sum = self.kernels.iter().map(|k| k.seconds).sum();
            let what = format!("{}, of which the kernels below are {}", us(stamped), us(sum));
            ("stamped", format!("{what}: blocks say when they began, had waited, and ended"))
        }));
        lines
    }

    /// What kernels take, several launches of each, and how near they come to what the card can: those of a decode step in bytes,
    /// those of a prefill in operations.
    fn kernels(&self, title: &str, kernels: &[Kernel]) -> Section {
        let inside = kernels.iter().all(|k| k.handover.is_some());
        let of_work: fn(&Kernel) -> usize = if inside { |k| k.bytes } else { |k| k.operations };
        let worked = kernels.iter().any(|k| of_work(k) > 0);
        let of = |seconds: f64, launches: usize| format!("{:.2}", 1e6 * seconds / launches as f64);
        let rows = kernels.iter().map(|k| {
            let mut cells = vec![k.name.clone(), k.launches.to_string()];
            cells.extend(k.handover.filter(|_| inside).map(|handover| of(handover, k.launches)));
            cells.extend([of(k.seconds, k.launches), format!("{:.1}", 1e6 * k.seconds)]);
            let each = of_work(k) as f64 / k.launches as f64;
            let per_second = of_work(k) as f64 / k.seconds;
            cells.extend(
                worked
                    .then(|| match (of_work(k), inside) {
                        (0, _) => [NONE.to_owned(), NONE.to_owned()],
                        (_, true) => {
                            [format!("{:.2}", each / 1e6), format!("{:.1} %", 100.0 * per_second / self.bandwidth)]
                        }
                        (_, false) => [format!("{:.2}", each / 1e9), format!("{:.0}", per_second / 1e12)],
                    })
                    .into_iter()
                    .flatten(),
            );
            cells
        });
        let mut columns = vec!["kernel", "launches"];
        columns.extend(inside.then_some("µs handed over"));
        columns.extend(["µs each", "µs a step"]);
        columns.extend(
            worked
                .then_some(if inside { ["MB each", "of bandwidth"] } else { ["GFLOP each", "TFLOP/s"] })
                .into_iter()
                .flatten(),
        );
        Section::table(title, Table::new(&columns, &(1..columns.len()).collect::<Vec<_>>(), rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_of_today_and_of_before_are_told_with_a_cell_a_column_and_kernels_that_add_up() {
        let old = json!({
            "device": "card", "bandwidth": 4e12, "model": "m", "format": "F32", "weight_bytes": 4_000_000, "rounds": 1,
            "rows": [{ "what": "decode", "who": "x", "tokens_per_second": 2.0, "of_bandwidth": 0.5, "ratio": null }],
            "kernels": [{ "name": "k", "launches": 2, "seconds": 3e-6 }],
        });
        let mut new = old.clone();
        new["link"] = json!(50e9);
        new["rows"][0]["spread"] = json!([3.0, 1.0]);
        new["kernels"] = json!([
            { "name": "k", "launches": 2, "seconds": 3e-6, "handover": 1e-6, "bytes": 6_000_000, "operations": 9_000_000 },
            { "name": "l", "launches": 1, "seconds": 4e-6, "handover": 0.0 },
        ]);
        new["prefill_kernels"] = old["kernels"].clone();
        new["taps"] = json!([
            { "what": "decode", "who": "x", "slower": 0.05, "bytes": 5_000_000, "per_second": 10e9 },
            { "what": "prefill", "who": "x", "slower": null, "bytes": 0, "per_second": null },
        ]);
        new["stages"] = json!([{ "stage": "s", "prefill": 1_000_000, "decode": 1_000 }]);
        new["step"] = json!({
            "device": [5e-6, 6e-6, 7e-6], "in_a_row": 5e-6, "waited_for": 9e-6, "layers": 2, "stamped": 8e-6,
            "cache_bytes": 4_000_000,
        });
        let [old, new] = [old, new].map(|b| serde_json::from_value::<Bench>(b).expect("a measurement"));
        for screen in [old.screen(None), new.screen(None), new.screen(Some(&old))] {
            for table in screen.sections.iter().filter_map(|s| s.table.as_ref()) {
                assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{:?}", table.columns);
                assert!(table.numbers.iter().all(|&n| n < table.columns.len()), "{:?}", table.columns);
            }
        }
        let told = |what: &str| new.of_step(new.step.as_ref().expect("a step")).into_iter().find(|l| l.0 == what);
        assert!(told("stamped").is_some_and(|l| l.1.starts_with("8.0 µs, of which the kernels below are 7.0 µs")));
        // 8 MB at 4 TB/s.
        assert!(told("floor").is_some_and(|l| l.1 == "2.0 µs: the weights and caches at the bandwidth of a copy"));
        assert_eq!(new.of_taps(&new.taps[0])[2..], ["5.0 %", "5.00", "10.00", "20.0 %"]);
        // 6 MB in 3 µs, of 4 TB/s.
        let table = new.kernels("", &new.kernels).table.expect("a table");
        assert_eq!(
            table.rows.iter().map(|row| row[5..].to_vec()).collect::<Vec<_>>(),
            [["3.00", "50.0 %"], [NONE, NONE]]
        );
        assert_eq!(new.of_taps(&new.taps[1])[2..], [NONE; 4]);
    }
}
