//! What judging takes: by tokens, layers, models and by how the stages are checked, beside what both runs take.

use super::{BenchRequest, median};
use crate::capture::{Capture, Filter};
use crate::loaded::LoadedModel;
use crate::memory::Size;
use crate::pair::{Pair, Settings, Tokens};
use crate::progress::{Progress, silent};
use crate::report::bench::{LayersRow, VerdictBench, VerdictRow};
use crate::runners::{CPU, Faults, LLAMA};
use crate::verdict::{CheckMode, judge};
use anyhow::{Result, ensure};
use std::time::Instant;

/// Tokens above which everything computed takes minutes.
const FULL: usize = 512;

/// What evaluates: the CPU alone can.
const ORACLE: &str = "cpu";

pub(super) fn measure(request: &BenchRequest, progress: Progress<'_>) -> Result<VerdictBench> {
    let threads = request.threads.apply()?;
    ensure!(!request.lengths.contains(&0), "--lengths: a prompt has at least one token");
    let mut bench = VerdictBench { threads, rounds: request.rounds, verdicts: Vec::new(), layers: Vec::new() };
    let first = request.prompt.model.path()?.to_path_buf();
    let models: Vec<_> = std::iter::once(&first).chain(&request.also).collect();
    let all = models.len() * request.lengths.len();
    for (number, path) in models.into_iter().enumerate() {
        let opened = LoadedModel::new(path)?;
        for (done, &length) in request.lengths.iter().enumerate() {
            progress("measuring verdicts", number * request.lengths.len() + done, all);
            of_length(request, &opened, (length, threads), done == 0, &mut bench)?;
        }
    }
    progress("measuring verdicts", all, all);
    Ok(bench)
}

/// Measures a prompt of so many tokens; for the first also what fewer layers take.
fn of_length(
    request: &BenchRequest, opened: &LoadedModel, (tokens, threads): (usize, usize), first: bool,
    bench: &mut VerdictBench,
) -> Result<()> {
    let prompt = request.cycled(opened, tokens)?;
    let config = &opened.model.graph().config;
    let (model, layers) = (config.name.clone(), config.n_layers);
    let settings = Settings { threads, memory: Some(Size::usual()), ..Settings::default() };
    let mut pair = Pair::new(opened, settings, &silent)?;
    let taken = Tokens { prompt: &prompt, ubatch: tokens, decode: 0, forced: None };
    // As a run keeps them.
    pair.make_room(taken, &[&|_| true, &|_| true])?;
    let checks: Vec<CheckMode> =
        request.check.iter().copied().filter(|check| *check != CheckMode::Full || tokens <= FULL).collect();
    let parts: Vec<usize> = [layers / 4, layers / 2, layers].into_iter().filter(|l| first && *l > 0).collect();
    let (mut reference, mut subject, mut elements) = (Vec::new(), Vec::new(), 0);
    let (mut judging, mut of_layers) =
        (vec![Vec::new(); checks.len()], vec![vec![Vec::new(); parts.len()]; checks.len()]);
    for _ in 0..request.rounds {
        let theirs = pair.run(&LLAMA, taken, Faults::default())?;
        let ours = pair.run(&CPU, taken, Faults::default())?;
        reference.push(theirs.seconds);
        subject.push(ours.seconds);
        elements = [&theirs, &ours].iter().map(|side| held(side.side().capture)).sum();
        for (check, (seconds, of_layers)) in checks.iter().zip(judging.iter_mut().zip(&mut of_layers)) {
            pair.policy.mode = *check;
            let judged = |filter: &Filter| -> Result<f64> {
                let start = Instant::now();
                let verdict = judge(&pair.oracle, ours.side(), Some(theirs.side()), filter, &pair.policy, &silent)?;
                let seconds = start.elapsed().as_secs_f64();
                ensure!(!verdict.diverged() && verdict.coverage.complete(), "the verdict that is timed is no match");
                Ok(seconds)
            };
            seconds.push(judged(&pair.filter)?);
            for (part, seconds) in parts.iter().zip(of_layers) {
                let only = format!("0-{}", part - 1);
                seconds.push(judged(&Filter::new(opened.model.graph(), &[], Some(&only), None)?)?);
            }
        }
    }
    let (reference, subject, oracle) = (median(reference), median(subject), ORACLE.to_owned());
    for ((check, judging), of_layers) in checks.into_iter().zip(judging).zip(of_layers) {
        let (model, oracle) = (model.clone(), oracle.clone());
        bench.layers.extend(parts.iter().zip(of_layers).map(|(part, seconds)| LayersRow {
            model: model.clone(),
            tokens,
            check,
            oracle: oracle.clone(),
            layers: *part,
            judging: median(seconds),
        }));
        let judging = median(judging);
        bench.verdicts.push(VerdictRow { model, layers, tokens, check, oracle, reference, subject, judging, elements });
    }
    Ok(())
}

/// Elements that a capture holds.
fn held(capture: &Capture) -> usize {
    let stages = capture.steps.iter().flat_map(|step| step.stages.values());
    stages.map(|stored| stored.shape().iter().product::<usize>()).sum()
}
