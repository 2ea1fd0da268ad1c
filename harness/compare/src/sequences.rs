//! A run of several sequences, in passes that have rows of more than one: each sequence becomes a recording of its own, as
//! if it had run alone. What a sequence is after it took tokens back is one more.

use crate::capture::{Capture, Fed, Names, Plan, RowsSaid, Shift, Step, Want, container};
use crate::memory::Extent;
use crate::number::counted;
use crate::pair::{Pair, Recording};
use crate::room::Room;
use crate::runners::{Faults, Runner, RunnerKind};
use anyhow::{Context as _, Result, bail, ensure};
use qdiff_engine::model::{Graph, Node};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

/// Room for a plan.
fn room(pair: &Pair<'_>, plan: &Plan) -> Room {
    // llama.cpp runs the tokens of a prefix again, in a sequence of their own, where layers are recurrent.
    let again = usize::from(pair.oracle.graph.is_recurrent());
    Room {
        step: plan.longest(),
        context: plan.tokens() * (1 + again),
        more: plan.sequences().saturating_sub(1) + again,
        split: pair.settings.split_kv.then(|| plan.deepest()),
        shifts: plan.shifts(),
        ..pair.room_of(plan.longest(), plan.tokens())
    }
}

/// Makes a runner with room for `plan`.
///
/// # Errors
/// As [`RunnerKind::start`].
pub fn runner<'a>(pair: &Pair<'a>, kind: &RunnerKind, plan: &Plan, faults: Faults) -> Result<Box<dyn Runner + 'a>> {
    let graph = &pair.oracle.graph;
    if let Some(state) = graph.nodes.iter().find(|node| plan.shifts() && node.op.anatomy().looks_back()) {
        bail!(
            "{} goes on from a state after all tokens before, which cannot forget tokens in the middle of a sequence, as llama.cpp's \
             cannot; leave shifts such as -4:2 out of --sequences",
            state.id
        );
    }
    pair.started(kind, room(pair, plan), faults)
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
    runner.goes_back_to(gone_back_to(&fed));
    for (i, Fed { backs, shifts, prefixes, rows }) in fed.iter().enumerate() {
        (pair.progress)(&what, i, fed.len());
        for &(sequence, to) in backs {
            runner.take_back(sequence, to)?;
        }
        for &(sequence, shift) in shifts {
            runner.shift(sequence, shift)?;
        }
        for &(from, to, length) in prefixes {
            runner.share(from, to, length)?;
        }
        for mut step in runner.rows(rows, &want)? {
            if let Some(numbered) = numbered.next() {
                (step.index, step.run, step.whose) = (numbered.index, numbered.run, numbered.whose);
                (step.shift, step.shifts) = (numbered.shift, numbered.shifts);
            }
            each(step)?;
        }
        store.trouble()?;
    }
    (pair.progress)(&what, fed.len(), fed.len());
    Ok(())
}

/// What passes go back to: a sequence, and so many of its tokens.
fn gone_back_to(fed: &[Fed]) -> BTreeSet<(u32, usize)> {
    let mut these: BTreeSet<(u32, usize)> = BTreeSet::new();
    for Fed { backs, prefixes, .. } in fed.iter().rev() {
        for &(from, to, length) in prefixes {
            let within: Vec<usize> = these.range((to, 0)..(to, length)).map(|(_, tokens)| *tokens).collect();
            these.extend(within.into_iter().chain([length]).map(|tokens| (from, tokens)));
        }
        these.extend(backs);
    }
    these
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

/// The same of any runner: where it writes its own dump, arrays in it have these `names`. Gives what a dump says of its rows too.
///
/// # Errors
/// As [`record`]; a dump of another run.
pub fn recorded(
    pair: &Pair<'_>, runner: &mut dyn Runner, plan: &Plan, tokens: &[u32], names: &Names,
) -> Result<(Vec<Recording>, Vec<RowsSaid>)> {
    let start = Instant::now();
    let what = format!("running {}", runner.manifest().name);
    (pair.progress)(&what, 0, 1);
    let Some(folder) = runner.dump_plan(plan, tokens)? else {
        return Ok((record(pair, runner, plan, tokens)?, Vec::new()));
    };
    (pair.progress)(&what, 1, 1);
    let mut dumped = dumped(pair, &folder, plan, tokens, names)?;
    dumped.seconds = start.elapsed().as_secs_f64();
    let said = std::mem::take(&mut dumped.capture.rows);
    let mut runs = split(&pair.oracle.graph, dumped, plan);
    for step in runs.iter_mut().flat_map(|run| &mut run.capture.steps) {
        step.slots = step.in_pass.and_then(|pass| {
            let all = said.get(pass.number)?.slots.as_ref()?;
            let own = all.get(pass.before..pass.before + step.tokens.len())?;
            own.iter().map(|slot| usize::try_from(*slot).ok()).collect()
        });
    }
    Ok((runs, said))
}

/// Reads the dump of an engine that had to run `plan` over `tokens`.
fn dumped(pair: &Pair<'_>, folder: &Path, plan: &Plan, tokens: &[u32], names: &Names) -> Result<Recording> {
    const DUMP: &str = "the engine's dump";
    let manifest = container::any_manifest(folder).context(DUMP)?;
    if manifest.model_sha256.is_some() {
        manifest.check_model(folder, &pair.opened.sha256())?;
    }
    let ran = manifest.sequences.as_ref().with_context(|| {
        format!(
            "{DUMP} names no sequences; with QDIFF_SEQUENCES, Tap::sequences or the `sequences` of Capture.step it says whose \
             the rows of a step are"
        )
    })?;
    ensure!(manifest.tokens.len() == ran.tokens(), "{DUMP} has another number of tokens than its passes");
    let (asked, ran) = (plan.fed(tokens), ran.fed(&manifest.tokens));
    if let Some(at) = (0..asked.len().max(ran.len())).find(|&at| asked.get(at) != ran.get(at)) {
        bail!(
            "the engine ran another pass {at} than it should run: {}, in the place of {}",
            words(ran.get(at)),
            words(asked.get(at))
        );
    }
    pair.read(folder, &manifest, names, "run by its command")
}

/// A pass in words.
fn words(fed: Option<&Fed>) -> String {
    let Some(Fed { backs, prefixes, rows, shifts }) = fed else { return "none".to_owned() };
    let backs =
        backs.iter().map(|(sequence, to)| format!("sequence {sequence} taken back to {}", counted(*to, "token")));
    let shifts = shifts.iter().map(|(sequence, Shift { tokens, from })| {
        format!("{} of sequence {sequence} removed from position {from} on", counted(*tokens, "token"))
    });
    let of = |prefix: &(u32, u32, usize)| format!("sequence {} with {} tokens of {}", prefix.1, prefix.2, prefix.0);
    let rows = rows.chunk_by(|a, b| a.sequence == b.sequence).map(|own| {
        let (row, tokens) = (own[0], counted(own.len(), "token"));
        format!("{tokens} of sequence {} from position {}", row.sequence, row.position)
    });
    backs.chain(shifts).chain(prefixes.iter().map(of)).chain(rows).collect::<Vec<_>>().join(", ")
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
