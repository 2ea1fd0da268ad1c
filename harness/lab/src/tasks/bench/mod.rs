//! Time and memory against llama.cpp, both sides in one run.

mod cuda;
mod llama_bench;
mod soak;
mod verdict;

use crate::report::bench::{BenchReport, Speed, SpeedRow, WholeRun, usual_depth};
use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use qdiff::capture::{Filter, Store, Want};
use qdiff::llama::context::TappedContext;
use qdiff::loaded::LoadedModel;
use qdiff::products::OracleChoice;
use qdiff::room::Room;
use qdiff::tasks::{Console, GemmRequest, PromptRequest, ThreadsRequest, values};
use qdiff::verdict::CheckMode;
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::tap::NoTaps;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Prompt length and decode steps of the speed measurement, in tokens.
const PREFILL: usize = 64;
const STEPS: usize = 16;

/// What to measure.
#[derive(Clone, Debug, Args)]
pub struct BenchRequest {
    /// What to measure
    #[arg(long, value_enum, default_value_t = Measure::Speed)]
    pub measure: Measure,
    #[command(flatten)]
    pub prompt: PromptRequest,
    #[command(flatten)]
    pub threads: ThreadsRequest,
    #[command(flatten)]
    pub gemm: GemmRequest,
    /// Rounds; both sides run in each, and the medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..), help_heading = "How to run it")]
    pub rounds: u16,
    /// Tokens of context before the first decode step that is timed (`--measure cuda`)
    #[arg(long, value_name = "TOKENS", default_value_t = usual_depth(), env = "QDIFF_DEPTH", help_heading = "How to run it")]
    pub depth: usize,
    /// Leave llama.cpp out, and so the ratios (`--measure cuda`)
    #[arg(long, env = "QDIFF_ALONE", help_heading = "How to run it")]
    pub alone: bool,
    /// llama.cpp's own program to measure it, `llama-bench`, built with CUDA: the faster of it and of llama.cpp in this
    /// process is what counts (`--measure cuda`)
    #[arg(long, value_name = "PROGRAM", env = "QDIFF_LLAMA_BENCH", help_heading = "How to run it")]
    pub llama_bench: Option<PathBuf>,
    /// Stages that are tapped where some are (`--measure cuda`), such as 'L*.attn_*'; unless given, the residual stream
    /// after each layer and the logits
    #[arg(long, value_name = "GLOB", value_delimiter = ',', env = "QDIFF_TAPS", value_parser = values::STAGE,
          hide_possible_values = true, help_heading = "What to run")]
    pub taps: Vec<String>,
    /// Further models to measure (`--measure verdict`)
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "What to run")]
    pub also: Vec<PathBuf>,
    /// Tokens of the prompts (`--measure verdict`), each length twice the one before for the growth to be told
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [64, 128, 256, 512, 1024], help_heading = "What to run")]
    pub lengths: Vec<usize>,
    /// How the stages are checked (`--measure verdict`); of more than 512 tokens `full` is left out where the CPU computes it
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [CheckMode::Full, CheckMode::Probe], help_heading = "How to run it")]
    pub check: Vec<CheckMode>,
    /// Where linear layers are evaluated in f64 (`--measure verdict`)
    #[arg(long, value_name = "WHERE", value_enum, value_delimiter = ',', default_values_t = [OracleChoice::Cpu], help_heading = "How to run it")]
    pub oracle: Vec<OracleChoice>,
    /// Print the change against the figures of an earlier --json file (`--measure cuda`)
    #[arg(long, value_name = "FILE", env = "QDIFF_BASELINE", help_heading = "Output", display_order = 99)]
    pub baseline: Option<PathBuf>,
}

impl BenchRequest {
    /// The prompt's tokens, repeated or cut to `length`.
    fn cycled(&self, opened: &LoadedModel, length: usize) -> Result<Vec<u32>> {
        let ready = self.prompt.ready(opened, 0)?;
        Ok(ready.tokens.iter().copied().cycle().take(length).collect())
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Prefill and decode of the CPU engine, untapped, against llama.cpp
    Speed,
    /// Prefill and decode of the CUDA engine, with and without taps, against llama.cpp on the same card
    Cuda,
    /// Decode steps of the fused CUDA path to the end of the context: host and device memory must stay flat
    Soak,
    /// Wall time and peak memory of a whole `run -n 0` against llama.cpp loading and doing the tapped prefill alone
    Run,
    /// That tapped prefill alone: what `run` is measured against
    TappedPrefill,
    /// Judging the CPU engine, by tokens, layers, models, check and oracle, against llama.cpp's tapped prefill
    Verdict,
}

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
        Measure::Cuda => BenchReport::Cuda { now: cuda::measure(request)?, before },
    })
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    (x[(x.len() - 1) / 2] + x[x.len() / 2]) / 2.0
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
