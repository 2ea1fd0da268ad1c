//! `qdiff bench`: ratios against llama.cpp, both sides in one run.

mod cuda;
mod soak;

use super::args::{BenchArgs, Measure};
use super::setup;
use super::{exit, say};
use crate::capture::{Filter, Store, Want};
use crate::llama::context::TappedContext;
use crate::loaded::LoadedModel;
use crate::report::bench::BenchReport;
use crate::report::{Told as _, file};
use crate::room::Room;
use anyhow::{Context as _, Result};
use qdiff_engine::cpu::CpuEngine;
use qdiff_engine::tap::NoTaps;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Prompt length and decode steps of the speed measurement, in tokens.
const PREFILL: usize = 64;
const DECODE: usize = 16;

pub(super) fn run(args: &BenchArgs) -> Result<u8> {
    let rounds = usize::from(args.rounds);
    match args.measure {
        Measure::Speed => speed(args, rounds)?,
        Measure::Run => whole_run(args, rounds)?,
        Measure::TappedPrefill => tapped_prefill(args)?,
        Measure::Soak => soak::run(args)?,
        Measure::Cuda => {
            if let Some(path) = &args.json {
                file::check(path, "--json")?;
            }
            let before = args.baseline.as_deref().map(cuda::read).transpose()?;
            let bench = cuda::measure(args, before.as_ref())?;
            if let Some(path) = &args.json {
                file::write(path, BenchReport::Cuda { now: bench, before }.json()?.as_bytes())?;
            }
        }
    }
    Ok(exit::MATCH)
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

fn speed(args: &BenchArgs, rounds: usize) -> Result<()> {
    let threads = setup::threads(args.prompt.threads)?;
    let opened = setup::open(args.prompt.model.as_ref())?;
    let (_, tokens) = setup::tokens(&opened, &args.prompt)?;
    let prompt: Vec<u32> = tokens.iter().copied().cycle().take(PREFILL).collect();
    let (mut pre, mut dec) = (Vec::new(), Vec::new());
    let (mut ours, mut theirs) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for _ in 0..rounds {
        let a = cpu(&opened, &prompt);
        let b = llama(&opened, &prompt, threads)?;
        pre.push(b.0 / a.0);
        dec.push(b.1 / a.1);
        ours.0.push(a.0);
        ours.1.push(a.1);
        theirs.0.push(b.0);
        theirs.1.push(b.1);
    }
    let line = |what: &str, n: usize, a: Vec<f64>, b: Vec<f64>, ratio: Vec<f64>| {
        format!(
            "{what:<22} cpu {:>7.1} tok/s   llama.cpp {:>7.1} tok/s   ratio {:.2}\n",
            n as f64 / median(a),
            n as f64 / median(b),
            median(ratio)
        )
    };
    say(&format!("untapped, {threads} threads, medians of {rounds} rounds\n"))?;
    say(&line(&format!("prefill of {PREFILL}"), PREFILL, ours.0, theirs.0, pre))?;
    say(&line(&format!("decode of {DECODE}"), DECODE, ours.1, theirs.1, dec))
}

/// Seconds of prefill and decode.
fn cpu(opened: &LoadedModel, prompt: &[u32]) -> (f64, f64) {
    let mut engine = CpuEngine::new(opened.model.graph().clone(), &opened.model);
    let start = Instant::now();
    engine.step(prompt, &mut NoTaps);
    let prefill = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for i in 0..DECODE {
        engine.step(&prompt[i..=i], &mut NoTaps);
    }
    (prefill, start.elapsed().as_secs_f64())
}

fn llama(opened: &LoadedModel, prompt: &[u32], threads: usize) -> Result<(f64, f64)> {
    let graph = opened.model.graph();
    let room = Room { step: PREFILL, context: PREFILL + DECODE, threads, ..Room::default() };
    let mut session = TappedContext::new(&opened.llama, graph, room)?;
    let none = Want::nothing();
    let start = Instant::now();
    session.step(prompt, &none)?;
    let prefill = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for i in 0..DECODE {
        session.step(&prompt[i..=i], &none)?;
    }
    Ok((prefill, start.elapsed().as_secs_f64()))
}

/// What `run` is measured against: llama.cpp loads and does the fully tapped
/// prefill, and nothing else happens.
fn tapped_prefill(args: &BenchArgs) -> Result<()> {
    let threads = setup::threads(args.prompt.threads)?;
    let opened = setup::open(args.prompt.model.as_ref())?;
    let (name, tokens) = setup::tokens(&opened, &args.prompt)?;
    let graph = opened.model.graph();
    let room = Room { step: tokens.len(), context: tokens.len(), threads, ..Room::default() };
    let mut session = TappedContext::new(&opened.llama, graph, room)?;
    let want = Want::new(graph, &Filter::default(), &|_| true, &Store::usual(None));
    let step = session.step(&tokens, &want)?;
    say(&format!("{name}: {} stages tapped\n", step.stages.len()))
}

fn whole_run(args: &BenchArgs, rounds: usize) -> Result<()> {
    let model = setup::model_path(args.prompt.model.as_ref())?;
    let program = std::env::current_exe().context("cannot find the qdiff program itself")?;
    let folder = tempfile::tempdir()?;
    let _cleanup = crate::cleanup::guard(folder.path());
    let json = folder.path().join("report.json");
    let common = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).arg("--model").arg(&model).arg("--prompt").arg(&args.prompt.prompt).args(["-n", "0"]);
        if let Some(n) = args.prompt.length {
            command.arg("--length").arg(n.to_string());
        }
        command
    };
    let (mut ratio, mut a, mut b) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let theirs = measure(common(&["bench", "--measure", "tapped-prefill"]))?;
        let mut command = common(&["run"]);
        command.arg("--json").arg(&json);
        let ours = measure(command)?;
        ratio.push(ours.0 / theirs.0);
        a.push(ours);
        b.push(theirs);
    }
    let of = |x: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64| median(x.iter().map(pick).collect());
    let gib = 1024.0 * 1024.0;
    say(&format!(
        "run --prompt {} -n 0           {:>6.2} s   {:>5.2} GiB peak\nllama.cpp, tapped prefill alone {:>6.2} s   {:>5.2} GiB peak\nratio of wall times             {:>6.2}   (medians of {rounds} rounds)\n",
        args.prompt.prompt,
        of(&a, |x| x.0),
        of(&a, |x| x.1) / gib,
        of(&b, |x| x.0),
        of(&b, |x| x.1) / gib,
        median(ratio)
    ))
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
