//! `qdiff-lab bench --measure soak`: decode steps to the end of the context.

use super::BenchRequest;
use crate::report::bench::BenchReport;
use anyhow::{Context as _, Result, ensure};
use qdiff::tasks::Console;
use qdiff_engine::cuda::{CudaEngine, Options, Path, free_memory};
use qdiff_engine::tap::NoTaps;
use std::time::Instant;

/// Tokens of the first step, and between two looks at memory.
const FIRST: usize = 512;
const STRIDE: usize = 4096;
/// Growth that is none, in bytes: the system's own noise.
const NOISE: u64 = 16 << 20;

/// Memory in use: this process's on the host, and what the device has free.
fn memory() -> Result<(u64, u64)> {
    let statm = std::fs::read_to_string("/proc/self/statm").context("reading /proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).and_then(|p| p.parse().ok()).context("reading /proc/self/statm")?;
    Ok((4096 * pages, free_memory()?))
}

/// Runs to the end of the context, each step on the token the one before chose.
pub(super) fn run(request: &BenchRequest, console: Console<'_>) -> Result<BenchReport> {
    let opened = request.prompt.model.open()?;
    let config = &opened.model.graph().config;
    let prompt = request.cycled(&opened, FIRST)?;
    let mut engine = CudaEngine::new(
        &opened.model,
        Options {
            step: FIRST,
            context: config.context,
            path: Path::Fast,
            gemm: request.gemm.gemm,
            last_logits: true,
            ..Options::default()
        },
    )?;
    engine.step(&prompt, &mut NoTaps)?;
    engine.step(&prompt[..1], &mut NoTaps)?;
    let first = memory()?;
    let mut at = Instant::now();
    while engine.position() < config.context {
        let token = engine.next_token().context("the fast path chooses a token")?;
        ensure!(
            (token as usize) < config.n_vocab,
            "at position {} the engine chose {token}, which is no token: its logits are not numbers",
            engine.position()
        );
        engine.step(&[token], &mut NoTaps)?;
        if engine.position() % STRIDE == 0 {
            let (host, free) = memory()?;
            let rate = STRIDE as f64 / at.elapsed().as_secs_f64();
            at = Instant::now();
            (console.say)(&format!(
                "position {:>6}  host {:>6} MiB  device free {:>7} MiB  {rate:>6.0} tok/s\n",
                engine.position(),
                host >> 20,
                free >> 20
            ))?;
            ensure!(
                host <= first.0 + NOISE && free + NOISE >= first.1,
                "memory grew: host {} to {} MiB, device free {} to {} MiB (what other programs on the device take counts in: run \
                 this alone)",
                first.0 >> 20,
                host >> 20,
                first.1 >> 20,
                free >> 20
            );
        }
    }
    Ok(BenchReport::Soak { device: engine.device().to_owned(), position: engine.position() })
}
