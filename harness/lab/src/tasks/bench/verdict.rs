//! What judging takes: by tokens, layers, models, by how the stages are checked and where, beside what both runs take.

use super::{BenchRequest, median};
use crate::report::bench::{Gpu, LayersRow, VerdictBench, VerdictRow};
use anyhow::{Result, ensure};
use clap::ValueEnum as _;
use qdiff::capture::{Capture, Filter};
use qdiff::loaded::LoadedModel;
use qdiff::machine::Machine;
use qdiff::memory::Size;
use qdiff::pair::{Pair, Settings, Tokens};
use qdiff::products::{self, OracleChoice, PAYS};
use qdiff::progress::{Progress, silent};
use qdiff::runners::{CPU, Faults, LLAMA};
use qdiff::verdict::{CheckMode, judge, products_of};
use std::time::Instant;

/// Tokens above which everything computed takes minutes on a CPU.
const FULL: usize = 512;

/// A way to judge, and the seconds that it took round by round, of all layers and of some.
struct Way {
    check: CheckMode,
    oracle: OracleChoice,
    judging: Vec<f64>,
    of_layers: Vec<Vec<f64>>,
}

impl Way {
    /// Whether a GPU evaluates linear layers.
    fn on_device(&self) -> bool {
        matches!(self.oracle, OracleChoice::Cuda | OracleChoice::Both)
    }

    fn takes_minutes(&self, tokens: usize) -> bool {
        self.check == CheckMode::Full && self.oracle != OracleChoice::Cuda && tokens > FULL
    }
}

pub(super) fn measure(request: &BenchRequest, progress: Progress<'_>) -> Result<VerdictBench> {
    let threads = request.threads.apply()?;
    ensure!(!request.lengths.contains(&0), "--lengths: a prompt has at least one token");
    request.oracle.iter().try_for_each(|oracle| products::ready(*oracle))?;
    let mut bench = VerdictBench {
        threads,
        rounds: request.rounds,
        machine: Some(Machine::this()),
        gpu: None,
        verdicts: Vec::new(),
        layers: Vec::new(),
    };
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
    let taken = Tokens::whole(&prompt, 0);
    // As a run keeps them.
    pair.make_room(taken, &[&|_| true, &|_| true])?;
    let parts: Vec<usize> = [layers / 4, layers / 2, layers].into_iter().filter(|l| first && *l > 0).collect();
    let way = |oracle, check| Way { check, oracle, judging: Vec::new(), of_layers: vec![Vec::new(); parts.len()] };
    let mut ways: Vec<Way> =
        request.oracle.iter().flat_map(|oracle| request.check.iter().map(|check| way(*oracle, *check))).collect();
    ways.retain(|way| !way.takes_minutes(tokens));
    let (mut reference, mut subject, mut elements, mut products) = (Vec::new(), Vec::new(), 0, 0);
    let mut open = false;
    for _ in 0..request.rounds {
        let theirs = pair.run(&LLAMA, taken, Faults::default())?;
        let ours = pair.run(&CPU, taken, Faults::default())?;
        let sides = [ours.side(), theirs.side()];
        reference.push(theirs.seconds);
        subject.push(ours.seconds);
        elements = sides.iter().map(|side| held(side.capture)).sum();
        products = products_of(&pair.oracle, &sides);
        for way in &mut ways {
            (pair.policy.mode, pair.policy.oracle) = (way.check, way.oracle);
            let on_device = way.on_device();
            let judged = |filter: &Filter| -> Result<(f64, Option<String>)> {
                let start = Instant::now();
                let verdict = judge(&pair.oracle, sides[0], Some(sides[1]), filter, &pair.policy, &silent)?;
                let seconds = start.elapsed().as_secs_f64();
                ensure!(!verdict.diverged() && verdict.coverage.complete(), "the verdict that is timed is no match");
                let by = verdict.evaluators;
                ensure!(
                    !on_device || by.on_device > 0 && by.on_cpu == 0,
                    "the verdict that is timed was not evaluated on the GPU alone: {}",
                    by.because.into_iter().next().unwrap_or_default()
                );
                Ok((seconds, by.devices.into_iter().next()))
            };
            // The first verdict there opens it, and counts for none that is timed.
            if on_device && !std::mem::replace(&mut open, true) {
                let (first, device) = judged(&pair.filter)?;
                if bench.gpu.is_none() {
                    let opening = (first - judged(&pair.filter)?.0).max(0.0);
                    bench.gpu = Some(Gpu { device: device.unwrap_or_default(), opening, pays: PAYS });
                }
            }
            way.judging.push(judged(&pair.filter)?.0);
            for (part, seconds) in parts.iter().zip(&mut way.of_layers) {
                let only = format!("0-{}", part - 1);
                seconds.push(judged(&Filter::new(opened.model.graph(), &[], Some(&only), None)?)?.0);
            }
        }
    }
    let (reference, subject) = (median(reference), median(subject));
    for Way { check, oracle, judging, of_layers } in ways {
        let (model, judging) = (model.clone(), median(judging));
        let oracle = oracle.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        bench.layers.extend(parts.iter().zip(of_layers).map(|(part, seconds)| LayersRow {
            model: model.clone(),
            tokens,
            check,
            oracle: oracle.clone(),
            layers: *part,
            judging: median(seconds),
        }));
        let row = VerdictRow { model, layers, tokens, check, oracle, reference, subject, judging, elements, products };
        bench.verdicts.push(row);
    }
    Ok(())
}

/// Elements that a capture holds.
fn held(capture: &Capture) -> usize {
    let stages = capture.steps.iter().flat_map(|step| step.stages.values());
    stages.map(|stored| stored.shape().iter().product::<usize>()).sum()
}
