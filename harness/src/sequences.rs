//! A run of several sequences, in passes that have rows of more than one: each sequence becomes a recording of its own, as
//! if it had run alone.

use crate::capture::{Capture, Fed, Passes, Plan, Step, Want};
use crate::memory::Extent;
use crate::pair::{Pair, Recording};
use crate::room::Room;
use crate::runners::{Faults, Runner, RunnerKind, Start};
use anyhow::{Result, bail, ensure};
use qdiff_engine::model::Node;
use std::time::Instant;

/// Room for a plan.
fn room(pair: &Pair<'_>, plan: &Plan) -> Room {
    Room {
        step: plan.longest(),
        context: plan.tokens(),
        more: plan.sequences().saturating_sub(1),
        ..pair.room_of(plan.longest(), plan.tokens())
    }
}

/// Makes a runner with room for `plan`.
///
/// # Errors
/// As [`RunnerKind::start`]; a command, which runs one sequence at a time.
pub fn runner<'a>(pair: &Pair<'a>, kind: &RunnerKind, plan: &Plan, faults: Faults) -> Result<Box<dyn Runner + 'a>> {
    match kind.start {
        Start::Own(create) => create(pair.opened, &pair.oracle.graph, room(pair, plan), faults),
        Start::Command(_) => bail!("the command {kind} runs one sequence at a time"),
    }
}

/// Runs the passes of `plan` over `tokens`. Gives a recording of each sequence; one that begins with a prefix of another holds
/// the steps of that prefix too.
///
/// # Errors
/// As [`Runner::rows`]; captured tensors that could not be kept; a prefix that ends within a pass of the other sequence.
pub fn record(pair: &Pair<'_>, runner: &mut dyn Runner, plan: &Plan, tokens: &[u32]) -> Result<Vec<Recording>> {
    let (start, store) = (Instant::now(), &pair.settings.store);
    ensure!(plan.tokens() == tokens.len(), "a plan of {} tokens for {} tokens", plan.tokens(), tokens.len());
    let fed = plan.fed(tokens);
    pair.limit(&extents(&fed));
    let taps = |node: &Node| runner.taps(node);
    let want = Want::new(&pair.oracle.graph, &pair.filter, &taps, store);
    let what = format!("running {}", runner.manifest().name);
    let mut captures: Vec<Capture> = (0..plan.sequences()).map(|_| Capture::new(store.clone())).collect();
    for (i, Fed { prefixes, rows }) in fed.iter().enumerate() {
        (pair.progress)(&what, i, fed.len());
        for &(from, to, length) in prefixes {
            runner.share(from, to, length)?;
            let prefix: Vec<Step> = captures[from as usize].steps.iter().map(|step| step.copied(store)).collect();
            captures[to as usize].steps = prefix;
        }
        for step in runner.rows(rows, &want)? {
            captures[step.sequence as usize].steps.push(step);
        }
        store.trouble()?;
    }
    (pair.progress)(&what, fed.len(), fed.len());
    let seconds = start.elapsed().as_secs_f64() / captures.len().max(1) as f64;
    let recording = |mut capture: Capture| {
        number(&mut capture.steps);
        Recording { capture, manifest: runner.manifest().clone(), fed: Vec::new(), chose: None, seconds }
    };
    Ok(captures.into_iter().map(recording).collect())
}

/// Numbers the steps of a sequence as those of a run of it alone. A part of its prefill chooses no token.
fn number(steps: &mut [Step]) {
    let lengths: Vec<usize> = steps.iter().map(|step| step.tokens.len()).collect();
    let passes = Passes::Lengths(&lengths).of_run(lengths.iter().sum(), 0);
    for (i, step) in steps.iter_mut().enumerate() {
        step.index = passes[i].index;
        if passes.get(i + 1).is_some_and(|next| next.index == 0) {
            step.choice = None;
        }
    }
}

/// What the passes are made of.
fn extents(fed: &[Fed]) -> Vec<Extent> {
    let mut keys = 0;
    let mut extent = |fed: &Fed| {
        keys += fed.rows.len();
        Extent { tokens: fed.rows.len(), keys }
    };
    fed.iter().map(&mut extent).collect()
}
