//! `qdiff bench --measure cuda`: the CUDA engine on its own card, by both paths
//! and with and without taps.

use super::median;
use crate::cli::args::BenchArgs;
use crate::cli::{say, setup};
use crate::llama::plain::Plain;
use crate::loaded::LoadedModel;
use crate::report::book::{Bench, BenchRow as Row, Kernel};
use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use qdiff_engine::cuda::{CudaEngine, Gemm, KvType, Options, Path as PathOf, bandwidth};
use qdiff_engine::model::StageId;
use qdiff_engine::tap::{NoTaps, TapSink};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Tokens of the context before the first timed decode step, which is also the
/// timed prefill, and decode steps.
const CONTEXT: usize = 512;
const DECODE: usize = 128;
/// Steps of a measurement with taps: they are slow.
const TAPPED: usize = 8;

/// Launches of a kernel in a row when it is timed.
const REPEATS: usize = 50;

fn kernels(engine: &mut CudaEngine) -> Result<Vec<Kernel>> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for (name, seconds) in engine.time_kernels(REPEATS)? {
        match kernels.iter_mut().find(|k| k.name == name) {
            Some(kernel) => {
                kernel.launches += 1;
                kernel.seconds += seconds;
            }
            None => kernels.push(Kernel { name, launches: 1, seconds }),
        }
    }
    Ok(kernels)
}

/// Wants every stage and keeps none.
struct Every;

impl TapSink for Every {
    fn wants(&self, _: StageId) -> bool {
        true
    }
    fn tap(&mut self, _: StageId, _: &[usize], _: &[f32]) {}
}

#[derive(Clone, Copy, PartialEq)]
enum Taps {
    Off,
    Device,
    Host,
}

/// An engine to be timed.
struct Entry {
    name: String,
    options: Options,
    taps: Taps,
}

fn entries(gemm: Gemm, kv: KvType) -> Vec<Entry> {
    let entry = |name: &str, path, taps: Taps| Entry {
        name: name.to_owned(),
        options: Options {
            step: CONTEXT,
            context: CONTEXT + DECODE,
            path,
            gemm,
            kv,
            scores: taps != Taps::Off,
            keep_taps: taps == Taps::Device,
            last_logits: taps == Taps::Off,
        },
        taps,
    };
    vec![
        entry("cuda-fast", PathOf::Fast, Taps::Off),
        entry("cuda-fast, taps on the device", PathOf::Fast, Taps::Device),
        entry("cuda-fast, taps read back", PathOf::Fast, Taps::Host),
        entry("cuda", PathOf::Tapped, Taps::Off),
        entry("cuda, taps read back", PathOf::Tapped, Taps::Host),
    ]
}

/// Seconds per token of prefill and of decode.
fn time(engine: &mut CudaEngine, prompt: &[u32], taps: Taps) -> Result<(f64, f64)> {
    let step = |engine: &mut CudaEngine, tokens: &[u32]| match taps {
        Taps::Off => engine.step(tokens, &mut NoTaps),
        _ => engine.step(tokens, &mut Every),
    };
    let steps = if taps == Taps::Off { DECODE } else { TAPPED };
    engine.rewind(0);
    let start = Instant::now();
    step(engine, prompt)?;
    let prefill = start.elapsed().as_secs_f64() / prompt.len() as f64;
    let start = Instant::now();
    for &token in prompt.iter().cycle().take(steps) {
        step(engine, &[token])?;
    }
    Ok((prefill, start.elapsed().as_secs_f64() / steps as f64))
}

/// Reads an earlier bench.
///
/// # Errors
/// A file that is not there or is none.
pub(super) fn read(path: &Path) -> Result<Bench> {
    let shown = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{shown} is no file that `qdiff bench --measure cuda --json` wrote"))
}

/// Seconds per token of prefill and of decode, a pair a round.
type Times = Vec<(f64, f64)>;

/// Times everything, prints it, and gives it for a file. Every engine runs
/// between two runs of llama.cpp, round by round.
pub(super) fn measure(args: &BenchArgs, before: Option<&Bench>) -> Result<Bench> {
    let opened = setup::open(args.prompt.model.as_ref())?;
    let (_, tokens) = setup::tokens(&opened, &args.prompt)?;
    let prompt: Vec<u32> = tokens.iter().copied().cycle().take(CONTEXT).collect();
    let rounds = usize::from(args.rounds);
    let mut bench = Bench {
        device: String::new(),
        bandwidth: bandwidth()?,
        model: opened.model.graph().config.name.clone(),
        format: opened.main_format(),
        weight_bytes: 0,
        rounds,
        rows: Vec::new(),
        kernels: Vec::new(),
    };
    let mut llama = match args.alone {
        true => None,
        false => {
            let model = Arc::new(crate::llama::Model::load_cuda(&opened.path)?);
            let mut plain = Plain::new(&model, CONTEXT + DECODE, CONTEXT)?;
            time_llama(&mut plain, &prompt)?;
            Some(plain)
        }
    };
    let mut theirs = Times::new();
    for entry in entries(args.prompt.gemm, KvType::F32) {
        let ours = one(&opened, &prompt, &entry, rounds, &mut bench, || {
            if let (Some(plain), Taps::Off) = (&mut llama, entry.taps) {
                theirs.push(time_llama(plain, &prompt)?);
            }
            Ok(())
        })
        .with_context(|| format!("timing {}", entry.name))?;
        bench.add(&entry.name, &ours);
    }
    if !theirs.is_empty() {
        bench.add("llama.cpp (cuda)", &theirs);
        bench.compare("llama.cpp (cuda)");
    }
    say(&render(&bench))?;
    if let Some(before) = before {
        say(&changes(&bench, before))?;
    }
    Ok(bench)
}

fn time_llama(plain: &mut Plain, prompt: &[u32]) -> Result<(f64, f64)> {
    plain.clear();
    let start = Instant::now();
    plain.step(prompt)?;
    let prefill = start.elapsed().as_secs_f64() / prompt.len() as f64;
    let start = Instant::now();
    for &token in prompt.iter().cycle().take(DECODE) {
        plain.step(&[token])?;
    }
    Ok((prefill, start.elapsed().as_secs_f64() / DECODE as f64))
}

fn one(
    opened: &LoadedModel,
    prompt: &[u32],
    entry: &Entry,
    rounds: usize,
    bench: &mut Bench,
    mut between: impl FnMut() -> Result<()>,
) -> Result<Times> {
    let mut engine = CudaEngine::new(&opened.model, entry.options)?;
    bench.device = engine.device().to_owned();
    bench.weight_bytes = engine.weight_bytes();
    // Once unmeasured: modules load and the graph is captured at first use.
    time(&mut engine, prompt, entry.taps)?;
    let mut times = Times::new();
    // What brings every tap to the host is slow and varies little.
    let rounds = if entry.taps == Taps::Host { 1 } else { rounds };
    for _ in 0..rounds {
        times.push(time(&mut engine, prompt, entry.taps)?);
        between()?;
    }
    if entry.taps == Taps::Off && entry.options.path == PathOf::Fast {
        bench.kernels = kernels(&mut engine)?;
    }
    Ok(times)
}

impl Bench {
    fn add(&mut self, who: &str, times: &Times) {
        let of = |pick: fn(&(f64, f64)) -> f64| 1.0 / median(times.iter().map(pick).collect());
        for (what, per_second) in [("prefill", of(|t| t.0)), ("decode", of(|t| t.1))] {
            let share = self.weight_bytes as f64 * per_second / self.bandwidth;
            self.rows.push(Row {
                what: what.to_owned(),
                who: who.to_owned(),
                tokens_per_second: per_second,
                of_bandwidth: (what == "decode").then_some(share),
                ratio: None,
            });
        }
    }

    fn compare(&mut self, who: &str) {
        let theirs: Vec<Row> = self.rows.iter().filter(|r| r.who == who).cloned().collect();
        for row in self.rows.iter_mut().filter(|r| r.who != who) {
            let other = theirs.iter().find(|t| t.what == row.what);
            row.ratio = other.map(|t| row.tokens_per_second / t.tokens_per_second);
        }
    }
}

/// The change of every figure that both have.
fn changes(now: &Bench, before: &Bench) -> String {
    let mut out = format!("\nagainst the baseline ({}, {} {})\n", before.device, before.model, before.format);
    for row in &now.rows {
        let same = |r: &&Row| r.what == row.what && r.who == row.who;
        let Some(old) = before.rows.iter().find(same) else {
            continue;
        };
        let change = 100.0 * (row.tokens_per_second / old.tokens_per_second - 1.0);
        out += &format!(
            " {:<8} {:<30} {:>8.0} -> {:>8.0} tok/s  {change:+.1} %\n",
            row.what, row.who, old.tokens_per_second, row.tokens_per_second
        );
    }
    out
}

fn render(bench: &Bench) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["", "", "tok/s", "of bandwidth", "of llama.cpp"]);
    let share = |x: Option<f64>| x.map_or(String::new(), |x| format!("{:.1} %", 100.0 * x));
    let ratio = |x: Option<f64>| x.map_or(String::new(), |x| format!("{x:.2}"));
    for row in &bench.rows {
        table.add_row([
            row.what.clone(),
            row.who.clone(),
            format!("{:.0}", row.tokens_per_second),
            share(row.of_bandwidth),
            ratio(row.ratio),
        ]);
    }
    for column in 2..5 {
        if let Some(c) = table.column_mut(column) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut inside = Table::new();
    inside.load_style(presets::NOTHING);
    inside.set_header(["kernel", "launches", "µs each", "µs a step"]);
    for k in &bench.kernels {
        inside.add_row([
            k.name.clone(),
            k.launches.to_string(),
            format!("{:.2}", 1e6 * k.seconds / k.launches as f64),
            format!("{:.1}", 1e6 * k.seconds),
        ]);
    }
    format!(
        "{}, a copy moves {:.0} GB/s; {} {}: {:.1} MB of weights a token\n\
         decode of {DECODE} ({TAPPED} with taps) after {CONTEXT}, prefill of {CONTEXT}; medians of {} rounds\n\n{table}\n\n{inside}\n",
        bench.device,
        bench.bandwidth / 1e9,
        bench.model,
        bench.format,
        bench.weight_bytes as f64 / 1e6,
        bench.rounds
    )
}
