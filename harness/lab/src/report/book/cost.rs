//! What a whole verdict takes beside llama.cpp's own tool for looking inside, and where the time goes.

use qdiff::machine::Machine;
use qdiff::report::markdown::{self, escape};
use qdiff::report::{Section, Table};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// What `scripts/verdict-cost` measured: medians over rounds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictCost {
    /// Always `cost`.
    pub kind: String,
    /// Version of this layout.
    pub schema_version: u32,
    /// Where.
    pub machine: Machine,
    /// Name of the model.
    pub model: String,
    /// The prompt of both tools.
    pub prompt: String,
    /// Rounds, the tools in turns.
    pub rounds: usize,
    /// `llama-eval-callback`.
    pub other: Taken,
    /// `qdiff run -n 0`.
    pub own: Taken,
    /// Seconds of each phase of the verdict.
    pub phases: Map<String, Value>,
    /// Seconds that judging took, by the name of the stage and summed over the layers, the longest first.
    pub stages: Map<String, Value>,
    /// Share of the processor time, by function, the largest first; empty where nothing could sample it.
    pub functions: Map<String, Value>,
    /// The same verdict of the prompt `long`.
    pub long: Long,
}

/// What a program took.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// Seconds from its start to its end.
    pub wall: f64,
    /// Seconds of all processors.
    pub processor: f64,
    /// Largest resident memory, in MiB.
    pub peak: f64,
}

/// What a verdict of a long prompt took.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Long {
    /// As [`Taken`] has it.
    pub wall: f64,
    /// As [`Taken`] has it.
    pub processor: f64,
    /// As [`Taken`] has it.
    pub peak: f64,
    /// Seconds of llama.cpp's prefill of it with every stage tapped.
    pub prefill: f64,
}

/// What verdicts cost.
pub(super) fn render(all: &[VerdictCost], out: &mut String) {
    for cost in all {
        let VerdictCost { own, other, long, .. } = cost;
        let _ = writeln!(
            out,
            "\n### A verdict beside `llama-eval-callback`\n\n\
             {}, {}: the prompt `{}` in turns, medians of {} rounds, by `scripts/verdict-cost`. The verdict takes {:.2} times the wall \
             time of `llama-eval-callback`, and {:.2} times that of its own tapped prefill. That of the prompt `long` takes {:.1} s, \
             {:.2} times its tapped prefill, and {:.0} MiB at its peak.",
            escape(&cost.model),
            escape(&cost.machine.to_string()),
            escape(&cost.prompt),
            cost.rounds,
            own.wall / other.wall,
            own.wall / seconds(&cost.phases, "reference"),
            long.wall,
            long.wall / long.prefill,
            long.peak
        );
        let row = |name: &str, taken: &Taken| {
            vec![
                name.to_owned(),
                format!("{:.2}", taken.wall),
                format!("{:.2}", taken.processor),
                format!("{:.0}", taken.peak),
            ]
        };
        let rows = [row("qdiff run -n 0", own), row("llama-eval-callback", other)];
        let columns = ["", "wall, s", "processors, s", "peak, MiB"];
        table("Time and memory", Table::new(&columns, &[1, 2, 3], rows.into_iter()), out);
        let told: f64 = cost.phases.values().filter_map(Value::as_f64).sum();
        let rest = [vec!["opening the model, reporting, ending".to_owned(), format!("{:.2}", own.wall - told)]];
        let phases = of(&cost.phases, |s| format!("{s:.2}")).chain(rest);
        table("By phase", Table::new(&["phase", "wall, s"], &[1], phases), out);
        let all: f64 = cost.stages.values().filter_map(Value::as_f64).sum();
        let stages = of(&cost.stages, |s| percent(s / all)).take(MOST);
        table("Judging by stage, all layers", Table::new(&["stage", "share"], &[1], stages), out);
        if !cost.functions.is_empty() {
            let functions = of(&cost.functions, percent).take(MOST);
            table("Processor time by function", Table::new(&["function", "share"], &[1], functions), out);
        }
    }
}

/// A share, in percent.
fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Rows of a table at most.
const MOST: usize = 16;

fn table(title: &str, table: Table, out: &mut String) {
    markdown::section(&Section::table(title, table), 4, out);
}

fn of(all: &Map<String, Value>, shown: impl Fn(f64) -> String) -> impl Iterator<Item = Vec<String>> {
    all.iter().map(move |(name, value)| vec![name.clone(), shown(value.as_f64().unwrap_or(f64::NAN))])
}

fn seconds(all: &Map<String, Value>, name: &str) -> f64 {
    all.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN)
}
