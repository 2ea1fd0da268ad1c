//! The stages of one runner, written to disk.

use super::faults::InjectedFaults;
use super::request::{
    AdaptersRequest, CaptureRequest, FaultRequest, FilterRequest, PassesRequest, RanksRequest, SequencesRequest,
    TokensRequest,
};
use super::sides::{self, Input};
use super::{Console, values};
use crate::arithmetic::Declared;
use crate::capture::manifest::{self, Sampler};
use crate::capture::npz;
use crate::capture::{Passes, Plan, container};
use crate::formats::Formats;
use crate::pair::Pair;
use crate::runners::{LLAMA, Source};
use crate::sequences;
use crate::shard::Shard;
use crate::verdict::read_for;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The options that judge nothing here, and have one side.
const RECORDED: &str = "What is recorded";

/// What to record.
#[derive(Clone, Debug, Args)]
#[command(
    mut_arg("prompt", |a| a.help(super::request::TEXT)),
    mut_arg("decode", |a| a.help("Decode steps after the prompt; the engine chooses their tokens")),
    mut_arg("ubatch", |a| a.help("Largest number of tokens of the prompt in one pass; 1 is token by token")),
    mut_arg("kv_type", |a| a.help("Type of the KV cache, or two as in q8_0/q4_1 for keys and values; llama.cpp has no f8 types [default: f32]")),
    mut_arg("inject", |a| a.help(
        "Inject a fault: NAME[:PARAM=VALUE,…][@L07, @L07.q_rope or @p3000..]; repeatable (see `qdiff mutations`)"
    )),
    mut_arg("stages", |a| a.help_heading(RECORDED)),
    mut_arg("layers", |a| a.help_heading(RECORDED)),
    mut_arg("positions", |a| a.help_heading(RECORDED))
)]
pub struct RecordRequest {
    #[command(flatten)]
    pub tokens: TokensRequest,
    #[command(flatten)]
    pub passes: PassesRequest,
    #[command(flatten)]
    pub sequences: SequencesRequest,
    #[command(flatten)]
    pub adapters: AdaptersRequest,
    #[command(flatten)]
    pub ranks: RanksRequest,
    /// Take the tokens of this capture, those of its decode steps too, instead of a prompt
    #[arg(long, value_name = "DIR", help_heading = "What to run")]
    pub like: Option<PathBuf>,
    #[command(flatten)]
    pub capture: CaptureRequest,
    /// What to record
    #[arg(long, value_name = "ENGINE", default_value = "cpu", env = "QDIFF_RUNNER", value_parser = values::LIVE,
          help_heading = "Sides")]
    pub runner: Source,
    #[command(flatten)]
    pub faults: FaultRequest,
    #[command(flatten)]
    pub filter: FilterRequest,
    /// Folder to write; it must not exist
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    pub out: PathBuf,
    /// Write N parts for `qdiff judge --shard`; each part holds some of the layers and all that is needed to judge them
    #[arg(long, value_name = "N", help_heading = "Output", value_parser = values::at_least_one)]
    pub shards: Option<usize>,
    /// Deflate the arrays: a little smaller, and slower
    #[arg(long, help_heading = "Output")]
    pub compress: bool,
}

/// What was recorded.
pub struct Recorded {
    /// Arrays written.
    pub arrays: usize,
    /// Steps run.
    pub steps: usize,
    /// What ran.
    pub engine: String,
    /// Injected faults that change no stage by more than rounding may on these tokens.
    pub inert: Vec<String>,
}

/// Runs one runner, and writes every step as soon as it is done.
///
/// # Errors
/// A folder that cannot be written, or anything that keeps the runner from running.
pub fn record(request: &RecordRequest, console: Console<'_>) -> Result<Recorded> {
    let (kind, injections) = sides::subject(&request.runner, &request.faults, console)?;
    npz::check_target(&request.out)?;
    let of_sequences = &request.sequences;
    let settings =
        of_sequences.settings(request.capture.settings()?, of_sequences.sequences.as_ref(), *kind == LLAMA)?;
    let opened = request.tokens.prompt.model.open()?;
    let opened = request.adapters.added(opened, of_sequences.sequences.as_ref())?;
    let mut pair = Pair::new(&opened, settings, console.progress)?;
    if let Some(ranks) = &request.ranks.ranks {
        ensure!(request.sequences.sequences.is_none(), "--ranks runs one sequence; leave --ranks or --sequences out");
        kind.check_ranks()?;
        pair = pair.placed(ranks).context("--ranks")?;
    }
    pair.filter = request.filter.filter(&pair.oracle.graph)?;
    let sha256 = opened.sha256();
    let input = match &request.like {
        None if request.sequences.sequences.is_some() => {
            kind.check_sequences()?;
            if of_sequences.sequences.as_ref().is_some_and(Plan::shifts) {
                kind.check_shifts()?;
            }
            ensure!(
                injections.is_empty(),
                "--inject changes a run of one sequence: leave --inject out, or --sequences"
            );
            let ready = request.tokens.prompt.ready(&opened, 0)?;
            let tokens = ready.tokens.len();
            Input::new(ready, 0, tokens)
        }
        Some(folder) => {
            let manifest = container::manifest(folder)?;
            manifest.check_model(folder, &sha256)?;
            Input::recorded(folder, &manifest)
        }
        None => {
            let ready = request.tokens.ready(&opened)?;
            Input::new(ready, request.tokens.decode, request.capture.ubatch).fed(&request.passes)?
        }
    };
    input.check(&pair)?;
    let faults = InjectedFaults::new((&pair.engine_graph()?, pair.settings.kv), &injections, &[])?;
    let what = input.tokens(None);
    (console.begin)();
    let plan = request.sequences.plan(what.prompt.len())?.cloned();
    let (inert, mut runner) = match &plan {
        Some(plan) => (Vec::new(), sequences::runner(&pair, kind, plan, faults.stages)?),
        None => (faults.inert_on(&mut pair, kind, what)?, pair.runner(kind, what, faults.stages)?),
    };
    let graph = &pair.oracle.graph;
    let parts = Shard::all(request.shards.unwrap_or(0)).map(|shard| {
        let own = shard.stages(graph).context("--shards")?;
        let all = pair.filter.capture_set(graph, &|node| runner.taps(node));
        let recorded = |i: usize| all.contains(&graph.nodes[i].id);
        let part = (0..graph.nodes.len()).filter(|&i| recorded(i) && own.contains(&graph.nodes[i].id));
        let needed = part.flat_map(|i| read_for(graph, i, &recorded, &recorded));
        Ok(needed.map(|i| graph.nodes[i].id).collect())
    });
    let mut writer = npz::Writer::create(&request.out, request.compress, parts.collect::<Result<_>>()?)?;
    let (fed, steps) = match &plan {
        Some(plan) => {
            sequences::passes(&pair, runner.as_mut(), plan, what.prompt, |step| writer.step(&step))?;
            (Vec::new(), plan.steps(what.prompt).len())
        }
        None => (pair.steps(runner.as_mut(), what, |step| writer.step(&step))?, what.steps()),
    };
    let of = runner.manifest();
    let engine = of.name.clone();
    let manifest = manifest::Manifest {
        schema_version: match plan.is_some() || graph.placement.is_some() {
            true => manifest::SCHEMA_VERSION,
            false => manifest::OF_ONE_SEQUENCE,
        },
        ranks: graph.placement.clone(),
        rank: None,
        engine: engine.clone(),
        model_sha256: Some(sha256),
        ubatch: if let Passes::Of(most) = what.passes { Some(most).filter(|n| *n < what.prompt.len()) } else { None },
        passes: if let Passes::Lengths(_) = what.passes { what.lengths() } else { Vec::new() },
        sequences: plan,
        positions: pair.filter.kept(what.prompt.len() + fed.len()),
        tokens: what.prompt.to_vec(),
        decoded: fed,
        arithmetic: Some(Declared::Explicit(of.arithmetic.clone())),
        storage: Some(Formats::default()),
        sampler: Some(if request.like.is_some() { Sampler::Told } else { Sampler::Greedy }),
        end: None,
        orders: Vec::new(),
        elements: BTreeMap::new(),
        dump: None,
        cut: None,
        open_end: false,
    };
    Ok(Recorded { arrays: writer.finish(&manifest)?, steps, engine, inert })
}
