//! `qdiff record`.

use super::args::{RecordArgs, RunnerKind};
use super::{exit, say, session};
use crate::capture::{Filter, npz};
use crate::mutations::Injection;
use crate::oracle::Oracle;
use crate::runners::{self, Runner, cpu::Cpu, cuda::Cuda, llama::Llama};
use anyhow::{Result, bail};

pub(super) fn run(args: &RecordArgs) -> Result<u8> {
    let injections = args
        .inject
        .iter()
        .map(|t| Injection::parse(t))
        .collect::<Result<Vec<_>>>()?;
    if !injections.is_empty() && args.runner != RunnerKind::Cpu {
        bail!("--inject rewrites the graph that the CPU engine interprets; use --runner cpu");
    }
    npz::check_target(&args.out)?;
    let threads = session::threads(args.prompt.threads)?;
    let opened = session::open(args.prompt.model.as_ref())?;
    let bytes = opened.model.gguf().bytes();
    let oracle = Oracle::new(&opened.path, bytes, &opened.llama)?;
    let filter = Filter::new(&oracle.graph, &args.stages, args.layers.as_deref(), None)?;
    let (_, tokens) = session::tokens(&opened, &args.prompt)?;
    let mut graph = opened.model.graph().clone();
    let injected = injections
        .iter()
        .map(|i| i.apply(&mut graph))
        .collect::<Result<Vec<_>>>()?;
    let n_ctx = tokens.len() + args.prompt.decode;
    let mut runner: Box<dyn Runner + '_> = match args.runner {
        RunnerKind::Cpu => Box::new(Cpu::new(&opened.model, graph, injected)),
        RunnerKind::Cuda => Box::new(Cuda::new(&opened.model, tokens.len(), n_ctx)?),
        RunnerKind::Llama => Box::new(Llama::new(&opened.llama, &oracle.graph, n_ctx, threads)?),
    };
    let wanted = filter.capture_set(&oracle.graph);
    let logits = oracle.graph.nodes[oracle.graph.nodes.len() - 1].id;
    let bar = session::progress("recording", args.prompt.decode + 1);
    let (capture, decoded) = runners::run(
        runner.as_mut(),
        &tokens,
        args.prompt.decode,
        None,
        &wanted,
        logits,
        |i| {
            bar.set_position(i as u64 + 1);
        },
    )?;
    bar.finish_and_clear();
    let of = runner.manifest();
    let manifest = npz::Manifest {
        schema_version: npz::SCHEMA_VERSION,
        engine: of.name.clone(),
        model_sha256: Some(session::sha256(bytes)),
        tokens,
        decoded,
        arithmetic: Some(of.arithmetic.clone()),
    };
    npz::write(&capture, &manifest, &args.out)?;
    let arrays: usize = capture.steps.iter().map(|s| s.stages.len()).sum();
    say(&format!(
        "recorded {arrays} arrays of {} steps of {} in {}\n",
        capture.steps.len(),
        manifest.engine,
        session::show(&args.out)
    ))?;
    Ok(exit::MATCH)
}
