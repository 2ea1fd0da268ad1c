//! Time and memory against llama.cpp, both sides in one run.

mod batch;
mod cuda;
mod llama_bench;
mod request;
mod soak;
mod verdict;

pub use request::{BenchRequest, Measure};

use crate::report::bench::{BenchReport, Speed, SpeedRow, WholeRun};
use anyhow::{Context as _, Result, ensure};
use qdiff::capture::{Filter, Store, Want};
use qdiff::llama::context::TappedContext;
use qdiff::loaded::LoadedModel;
use qdiff::room::Room;
use qdiff::tasks::Console;
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::tap::NoTaps;
use request::median;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Prompt length and decode steps of the speed measurement, in tokens.
const PREFILL: usize = 64;
const STEPS: usize = 16;

/// Measures.
///
/// # Errors
/// Whatever keeps a side from running; of a soak, memory that grows.
pub fn bench(request: &BenchRequest, console: Console<'_>) -> Result<BenchReport> {
    let before = request.baseline.as_deref().map(cuda::read).transpose()?;
    Ok(match request.measure {
        Measure::Speed => BenchReport::Speed(speed(request)?),
        Measure::Run => BenchReport::Run(whole_run(request)?),
        Measure::TappedPrefill => tapped_prefill(request)?,
        Measure::Verdict => BenchReport::Verdict(verdict::measure(request, console.progress)?),
        Measure::Soak => soak::run(request, console)?,
        Measure::Batch => BenchReport::Cuda { now: batch::measure(request)?, before },
        Measure::Cuda => BenchReport::Cuda { now: cuda::measure(request)?, before },
    })
}

fn speed(request: &BenchRequest) -> Result<Speed> {
    let threads = request.threads.apply()?;
    let opened = request.prompt.model.open()?;
    let prompt = request.cycled(&opened, PREFILL)?;
    // Seconds per token of (prefill, decode), of the CPU engine and of llama.cpp.
    let mut rounds: Vec<((f64, f64), (f64, f64))> = Vec::new();
    for _ in 0..request.rounds {
        rounds.push((cpu(&opened, &prompt)?, llama(&opened, &prompt, threads)?));
    }
    let row = |what, tokens: usize, pick: fn(&(f64, f64)) -> f64| {
        let of = |f: &dyn Fn(f64, f64) -> f64| median(rounds.iter().map(|(a, b)| f(pick(a), pick(b))).collect());
        SpeedRow { what, tokens, cpu: 1.0 / of(&|a, _| a), llama: 1.0 / of(&|_, b| b), ratio: of(&|a, b| b / a) }
    };
    let rows = vec![row("prefill", PREFILL, |t| t.0), row("decode", STEPS, |t| t.1)];
    Ok(Speed { threads, rounds: request.rounds, rows })
}

/// Seconds per token: in a step of the whole prompt, and in `steps` single ones after it.
fn timed(prompt: &[u32], steps: usize, mut step: impl FnMut(&[u32]) -> Result<()>) -> Result<(f64, f64)> {
    let start = Instant::now();
    step(prompt)?;
    let prefill = start.elapsed().as_secs_f64() / prompt.len() as f64;
    let start = Instant::now();
    for &token in prompt.iter().cycle().take(steps) {
        step(&[token])?;
    }
    Ok((prefill, start.elapsed().as_secs_f64() / steps as f64))
}

fn cpu(opened: &LoadedModel, prompt: &[u32]) -> Result<(f64, f64)> {
    let mut engine = CpuEngine::new(opened.model.graph().clone(), &opened.model);
    timed(prompt, STEPS, |tokens| {
        engine.step(tokens, &mut NoTaps);
        Ok(())
    })
}

fn llama(opened: &LoadedModel, prompt: &[u32], threads: usize) -> Result<(f64, f64)> {
    let room = Room { step: PREFILL, context: PREFILL + STEPS, threads, ..Room::default() };
    let mut session = TappedContext::new(opened.llama()?, opened.model.graph(), room)?;
    let none = Want::nothing();
    timed(prompt, STEPS, |tokens| session.step(tokens, &none).map(drop))
}

/// What `run` is measured against: llama.cpp loads and does the fully tapped prefill, and nothing else happens.
fn tapped_prefill(request: &BenchRequest) -> Result<BenchReport> {
    let threads = request.threads.apply()?;
    let opened = request.prompt.model.open()?;
    let prompt = request.prompt.ready(&opened, 0)?;
    let graph = opened.model.graph();
    let room = Room { step: prompt.tokens.len(), context: prompt.tokens.len(), threads, ..Room::default() };
    let mut session = TappedContext::new(opened.llama()?, graph, room)?;
    let want = Want::new(graph, &Filter::default(), &|_| true, &Store::usual(None));
    let step = session.step(&prompt.tokens, &want)?;
    Ok(BenchReport::TappedPrefill { prompt: prompt.name, stages: step.stages.len() })
}

fn whole_run(request: &BenchRequest) -> Result<WholeRun> {
    let model = request.prompt.model.path()?;
    let lab = std::env::current_exe().context("cannot find the qdiff-lab program itself")?;
    let qdiff = lab.with_file_name("qdiff");
    ensure!(qdiff.is_file(), "{} is not there: build it with `cargo build --release -p qdiff`", qdiff.display());
    let folder = tempfile::tempdir()?;
    let _cleanup = qdiff::cleanup::guard(folder.path());
    let json = folder.path().join("report.json");
    let common = |program: &Path, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).arg("--model").arg(model).arg("--prompt").arg(&request.prompt.prompt);
        if let Some(n) = request.prompt.length {
            command.arg("--length").arg(n.to_string());
        }
        command
    };
    let (mut ratio, mut a, mut b) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..request.rounds {
        let theirs = measure(common(&lab, &["bench", "--measure", "tapped-prefill"]))?;
        let mut command = common(&qdiff, &["run", "-n", "0"]);
        command.arg("--json").arg(&json);
        let ours = measure(command)?;
        ratio.push(ours.0 / theirs.0);
        a.push(ours);
        b.push(theirs);
    }
    let of = |x: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64| median(x.iter().map(pick).collect());
    Ok(WholeRun {
        prompt: request.prompt.prompt.clone(),
        whole: (of(&a, |x| x.0), of(&a, |x| x.1)),
        llama: (of(&b, |x| x.0), of(&b, |x| x.1)),
        ratio: median(ratio),
        rounds: request.rounds,
    })
}

/// Wall seconds and peak resident KiB of a whole process.
fn measure(mut command: Command) -> Result<(f64, f64)> {
    let start = Instant::now();
    let child = command.stdout(Stdio::null()).spawn()?;
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: our own child's id, and memory for the result.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    let wall = start.elapsed().as_secs_f64();
    if waited < 0 || !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        anyhow::bail!("{:?} failed", command.get_args().collect::<Vec<_>>());
    }
    // SAFETY: wait4 succeeded and filled it.
    let usage = unsafe { usage.assume_init() };
    Ok((wall, usage.ru_maxrss as f64))
}
