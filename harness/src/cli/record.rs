//! `qdiff record`.

use super::args::RecordArgs;
use super::planted::{self, Planted};
use super::setup::{self, Bar};
use super::{exit, say};
use crate::capture::{Filter, npz};
use crate::loaded::{LoadedModel, sha256};
use crate::oracle::Oracle;
use crate::pair::{Pair, Tokens};
use crate::verdict::Policy;
use anyhow::{Result, bail};
use std::path::Path;

pub(super) fn run(args: &RecordArgs) -> Result<u8> {
    let injections = planted::read(&args.inject)?;
    let rewriting = planted::rewriting(&injections, &args.runner)?;
    let (runner, _) = args.runner.resolve(rewriting)?;
    npz::check_target(&args.out)?;
    let threads = setup::threads(args.prompt.threads)?;
    let opened = setup::open(args.prompt.model.as_ref())?;
    let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama)?;
    let filter = Filter::new(&oracle.graph, &args.stages, args.layers.as_deref(), args.positions.as_deref())?;
    let like = match &args.like {
        Some(folder) => like(&opened, folder)?,
        None => Like {
            tokens: setup::tokens(&opened, &args.prompt)?.1,
            ubatch: args.capture.ubatch,
            decode: args.prompt.decode,
            forced: None,
        },
    };
    let tokens = like.tokens;
    filter.check(&oracle.graph, tokens.len() + like.decode)?;
    let faults = Planted::new(&opened, &injections, &[])?.stages;
    let bar = Bar::new();
    let store = args.capture.memory.store();
    let pair = Pair {
        opened: &opened,
        oracle: &oracle,
        filter: &filter,
        policy: &Policy::default(),
        budget: crate::diagnose::BUDGET,
        store: &store,
        threads,
        gemm: args.prompt.gemm,
        kv: args.capture.kv_type,
        progress: &|what, done, total| bar.show(what, done, total),
    };
    let what = Tokens { prompt: &tokens, ubatch: like.ubatch, decode: like.decode, forced: like.forced.as_deref() };
    let mut writer = npz::Writer::create(&args.out, args.compress)?;
    let mut runner = pair.runner(&runner, what, faults)?;
    let fed = pair.steps(runner.as_mut(), what, |step| writer.step(&step))?;
    let of = runner.manifest();
    let steps = what.steps();
    let manifest = npz::Manifest {
        schema_version: npz::SCHEMA_VERSION,
        engine: of.name.clone(),
        model_sha256: Some(sha256(opened.bytes())),
        ubatch: (what.longest() < tokens.len()).then_some(what.ubatch),
        positions: filter.kept(tokens.len() + fed.len()),
        tokens: tokens.clone(),
        decoded: fed,
        arithmetic: Some(of.arithmetic.clone()),
    };
    let arrays = writer.finish(&manifest)?;
    say(&format!("recorded {arrays} arrays of {steps} steps of {} in {}\n", manifest.engine, setup::show(&args.out)))?;
    Ok(exit::MATCH)
}

/// What is run.
struct Like {
    tokens: Vec<u32>,
    ubatch: usize,
    decode: usize,
    forced: Option<Vec<u32>>,
}

/// The tokens of the capture in `folder`, in its steps.
fn like(opened: &LoadedModel, folder: &Path) -> Result<Like> {
    let manifest = npz::manifest(folder)?;
    let sha256 = sha256(opened.bytes());
    if let Some(other) = manifest.model_sha256.filter(|h| *h != sha256) {
        bail!(
            "{} was recorded on another model (sha256 {other}, this one has {sha256}); name that model with -m",
            setup::show(folder)
        );
    }
    opened.check(&[manifest.tokens.as_slice(), &manifest.decoded].concat(), 0)?;
    Ok(Like {
        ubatch: manifest.ubatch.unwrap_or(manifest.tokens.len()),
        tokens: manifest.tokens,
        decode: manifest.decoded.len(),
        forced: Some(manifest.decoded),
    })
}
