//! `qdiff record`.

use super::args::RecordArgs;
use super::session::{self, Bar};
use super::{exit, run, say};
use crate::capture::{Filter, npz};
use crate::mutations::Injection;
use crate::oracle::Oracle;
use crate::pair::{Pair, Recording, Tokens};
use crate::session::sha256;
use crate::verdict::Policy;
use anyhow::Result;

pub(super) fn run(args: &RecordArgs) -> Result<u8> {
    let injections = args
        .inject
        .iter()
        .map(|t| Injection::parse(t))
        .collect::<Result<Vec<_>>>()?;
    if !injections.is_empty() {
        args.runner.check_faults()?;
    }
    let (runner, _) = args.runner.resolve(!injections.is_empty())?;
    npz::check_target(&args.out)?;
    let threads = session::threads(args.prompt.threads)?;
    let opened = session::open(args.prompt.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    let filter = Filter::new(&oracle.graph, &args.stages, args.layers.as_deref(), None)?;
    let (_, tokens) = session::tokens(&opened, &args.prompt)?;
    let faults = run::faults(&opened, &injections)?;
    let bar = Bar::new();
    let pair = Pair {
        opened: &opened,
        oracle: &oracle,
        filter: &filter,
        policy: &Policy::default(),
        threads,
        progress: &|what, done, total| bar.show(what, done, total),
    };
    let what = Tokens {
        prompt: &tokens,
        decode: args.prompt.decode,
        forced: None,
    };
    let Recording {
        capture,
        manifest: of,
        fed,
    } = pair.run(&runner, what, faults)?;
    let manifest = npz::Manifest {
        schema_version: npz::SCHEMA_VERSION,
        engine: of.name,
        model_sha256: Some(sha256(opened.bytes())),
        tokens,
        decoded: fed,
        arithmetic: Some(of.arithmetic),
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
