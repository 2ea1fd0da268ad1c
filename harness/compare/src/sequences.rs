//! A run of several sequences, in passes that have rows of more than one: each sequence becomes a recording of its own, as
//! if it had run alone. What a sequence is after it took tokens back is one more.

use crate::capture::{Capture, Fed, Plan, Step, Want};
use crate::memory::Extent;
use crate::pair::{Pair, Recording};
use crate::room::Room;
use crate::runners::{Faults, Runner, RunnerKind, Start};
use anyhow::{Result, bail, ensure};
use qdiff_engine::model::{Graph, Node};
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

/// Runs the passes of `plan` over `tokens`, and hands over each step when it is done.
///
/// # Errors
/// As [`Runner::rows`] and `each`; captured tensors that could not be kept.
pub fn passes(
    pair: &Pair<'_>, runner: &mut dyn Runner, plan: &Plan, tokens: &[u32], mut each: impl FnMut(Step) -> Result<()>,
) -> Result<()> {
    let store = &pair.settings.store;
    ensure!(plan.tokens() == tokens.len(), "a plan of {} tokens for {} tokens", plan.tokens(), tokens.len());
    let fed = plan.fed(tokens);
    let extents = extents(&fed);
    pair.check_memory(&extents)?;
    pair.limit(&extents);
    let taps = |node: &Node| runner.taps(node);
    let want = Want::new(&pair.oracle.graph, &pair.filter, &taps, store);
    let what = format!("running {}", runner.manifest().name);
    let mut numbered = plan.steps(tokens).into_iter();
    for (i, Fed { backs, prefixes, rows }) in fed.iter().enumerate() {
        (pair.progress)(&what, i, fed.len());
        for &(sequence, to) in backs {
            runner.take_back(sequence, to)?;
        }
        for &(from, to, length) in prefixes {
            runner.share(from, to, length)?;
        }
        for mut step in runner.rows(rows, &want)? {
            if let Some(numbered) = numbered.next() {
                (step.index, step.sequence) = (numbered.index, numbered.sequence);
            }
            each(step)?;
        }
        store.trouble()?;
    }
    (pair.progress)(&what, fed.len(), fed.len());
    Ok(())
}

/// The same. Gives a recording of each run of a sequence; one that begins with a prefix of another holds the steps of that prefix too.
///
/// # Errors
/// As [`passes`].
pub fn record(pair: &Pair<'_>, runner: &mut dyn Runner, plan: &Plan, tokens: &[u32]) -> Result<Vec<Recording>> {
    let (start, mut capture) = (Instant::now(), Capture::new(pair.settings.store.clone()));
    passes(pair, runner, plan, tokens, |step| {
        capture.steps.push(step);
        Ok(())
    })?;
    let (manifest, seconds) = (runner.manifest().clone(), start.elapsed().as_secs_f64());
    Ok(split(&pair.oracle.graph, Recording { capture, manifest, fed: Vec::new(), chose: None, seconds }, plan))
}

/// A recording of each run of a sequence, of a recording that holds all steps of `plan`.
pub fn split(graph: &Graph, recording: Recording, plan: &Plan) -> Vec<Recording> {
    let Recording { mut capture, manifest, seconds, .. } = recording;
    let (steps, store) = (std::mem::take(&mut capture.steps), capture.store.clone());
    let seconds = seconds / plan.runs().max(1) as f64;
    let recording = |steps: Vec<Step>| {
        let (elements, unmatched) = (capture.elements.clone(), capture.unmatched.clone());
        let capture = Capture { steps, elements, unmatched, cut: capture.cut, ..capture.sibling() };
        Recording { capture, manifest: manifest.clone(), fed: Vec::new(), chose: None, seconds }
    };
    plan.dealt(steps, |step, tokens| step.copied(graph, tokens, &store)).into_iter().map(recording).collect()
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
