//! `qdiff bench --measure cuda`: the CUDA engine on its own card, by both paths and with and without taps.

use super::{BenchRequest, median};
use crate::input;
use crate::llama::context::Plain;
use crate::llama::{Load, Model};
use crate::loaded::LoadedModel;
use crate::report::bench::{Bench, BenchRow as Row, DecodeStep, Kernel, usual_depth};
use anyhow::{Context as _, Result};
use qdiff_engine::cuda::{CudaEngine, Gemm, KvType, Options, Path as PathOf, bandwidth};
use qdiff_engine::model::StageId;
use qdiff_engine::ops::Tensor;
use qdiff_engine::tap::{NoTaps, TapSink};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Tokens of the timed prefill, and of a step at most.
const PREFILL: usize = 512;
/// Decode steps timed.
const DECODE: usize = 128;
/// Steps of a measurement with taps: they are slow.
const TAPPED: usize = 8;

/// Replays of a decode step timed on the card.
const REPLAYS: usize = 100;
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
    fn tap(&mut self, _: StageId, _: Tensor<f32>) {}
}

#[derive(Clone, Copy, PartialEq)]
enum Taps {
    Off,
    Device,
    Host,
}

/// An engine to be timed.
struct Entry {
    name: &'static str,
    options: Options,
    taps: Taps,
}

fn entries(gemm: Gemm, kv: KvType, depth: usize) -> Vec<Entry> {
    let entry = |name, path, taps: Taps| Entry {
        name,
        options: Options {
            step: PREFILL,
            context: depth + DECODE,
            path,
            gemm,
            kv,
            taps: taps != Taps::Off,
            keep_taps: taps == Taps::Device,
            last_logits: taps == Taps::Off,
        },
        taps,
    };
    let mut all = vec![
        entry("cuda-fast", PathOf::Fast, Taps::Off),
        entry("cuda-fast, taps on the device", PathOf::Fast, Taps::Device),
        entry("cuda-fast, taps read back", PathOf::Fast, Taps::Host),
        entry("cuda", PathOf::Tapped, Taps::Off),
        entry("cuda, taps read back", PathOf::Tapped, Taps::Host),
    ];
    // Taps of a long context are gigabytes.
    all.truncate(if depth > usual_depth() { 1 } else { all.len() });
    all
}

/// Seconds per token of prefill, and of each decode step.
struct Timed {
    prefill: f64,
    steps: Vec<f64>,
}

/// Times the first tokens of the context in one step, brings the others, and times decode steps after them.
fn timed(context: &[u32], steps: usize, mut step: impl FnMut(&[u32]) -> Result<()>) -> Result<Timed> {
    let mut prefill = 0.0;
    for (i, tokens) in context.chunks(PREFILL).enumerate() {
        let start = Instant::now();
        step(tokens)?;
        if i == 0 {
            prefill = start.elapsed().as_secs_f64() / tokens.len() as f64;
        }
    }
    let decode = |&token: &u32| {
        let start = Instant::now();
        step(&[token])?;
        Ok(start.elapsed().as_secs_f64())
    };
    let steps = context.iter().cycle().take(steps).map(decode).collect::<Result<_>>()?;
    Ok(Timed { prefill, steps })
}

fn time(engine: &mut CudaEngine, context: &[u32], taps: Taps) -> Result<Timed> {
    engine.rewind(0);
    timed(context, if taps == Taps::Off { DECODE } else { TAPPED }, |tokens| match taps {
        Taps::Off => Ok(engine.step(tokens, &mut NoTaps)?),
        Taps::Device | Taps::Host => Ok(engine.step(tokens, &mut Every)?),
    })
}

fn time_llama(plain: &mut Plain, context: &[u32]) -> Result<Timed> {
    plain.clear();
    timed(context, DECODE, |tokens| plain.step(tokens))
}

/// A measurement a round.
type Times = Vec<Timed>;

/// Which of a hundred, sorted.
fn percentile(mut all: Vec<f64>, which: usize) -> f64 {
    all.sort_by(f64::total_cmp);
    all[(all.len() * which / 100).min(all.len() - 1)]
}

/// Where the time of a decode step goes, after the context that `engine` has seen.
fn step(engine: &mut CudaEngine, times: &Times, layers: usize) -> Result<Option<DecodeStep>> {
    Ok(engine.time_steps(REPLAYS)?.map(|(device, in_a_row)| DecodeStep {
        device: [0, 50, 95].map(|which| percentile(device.clone(), which)),
        in_a_row,
        waited_for: median(times.iter().flat_map(|t| t.steps.clone()).collect()),
        layers,
    }))
}

/// Reads an earlier measurement.
pub(super) fn read(path: &Path) -> Result<Bench> {
    let shown = path.display();
    let bytes = input::bytes(path, input::REPORT).with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{shown} is no file that `qdiff bench --measure cuda --json` wrote"))
}

/// Times everything. Every engine runs between two runs of llama.cpp, round by round.
pub(super) fn measure(request: &BenchRequest) -> Result<Bench> {
    let opened = request.prompt.model.open()?;
    let depth = request.depth.max(1);
    let prompt = request.cycled(&opened, depth)?;
    let rounds = usize::from(request.rounds);
    let mut bench = Bench {
        device: String::new(),
        bandwidth: bandwidth()?,
        model: opened.model.graph().config.name.clone(),
        format: opened.main_format(),
        weight_bytes: 0,
        rounds,
        rows: Vec::new(),
        kernels: Vec::new(),
        depth,
        step: None,
    };
    let mut llama = match request.alone {
        true => None,
        false => {
            let model = Arc::new(Model::load(&opened.path, Load::Cuda)?);
            let mut plain = Plain::new(&model, depth + DECODE, PREFILL)?;
            time_llama(&mut plain, &prompt)?;
            Some(plain)
        }
    };
    let mut theirs = Times::new();
    // A long cache is kept in f16, as llama.cpp keeps any.
    let kv = if depth > usual_depth() { KvType::F16 } else { KvType::F32 };
    for entry in entries(request.gemm.gemm, kv, depth) {
        let ours = one(&opened, &prompt, &entry, rounds, &mut bench, || {
            if let (Some(plain), Taps::Off) = (&mut llama, entry.taps) {
                theirs.push(time_llama(plain, &prompt)?);
            }
            Ok(())
        })
        .with_context(|| format!("timing {}", entry.name))?;
        bench.add(entry.name, &ours);
    }
    if !theirs.is_empty() {
        bench.add("llama.cpp (cuda)", &theirs);
        // Its own two rows are the last.
        let (rows, theirs) = bench.rows.split_last_chunk_mut::<2>().context("llama.cpp was not timed")?;
        for row in rows {
            let other = theirs.iter().find(|t| t.what == row.what);
            row.ratio = other.map(|t| row.tokens_per_second / t.tokens_per_second);
        }
    }
    Ok(bench)
}

fn one(
    opened: &LoadedModel, prompt: &[u32], entry: &Entry, rounds: usize, bench: &mut Bench,
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
        bench.step = step(&mut engine, &times, opened.model.graph().config.n_layers)?;
        bench.kernels = kernels(&mut engine)?;
    }
    Ok(times)
}

impl Bench {
    fn add(&mut self, who: &str, times: &Times) {
        let prefill = median(times.iter().map(|t| t.prefill).collect());
        let decode = median(times.iter().flat_map(|t| t.steps.clone()).collect());
        for (what, per_second) in [("prefill", 1.0 / prefill), ("decode", 1.0 / decode)] {
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
}
