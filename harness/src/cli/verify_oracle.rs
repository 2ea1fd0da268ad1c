//! `qdiff verify-oracle`: is the f64 evaluation itself right?
//!
//! llama.cpp runs a copy of the model with every weight dequantised to F32,
//! so that nothing is quantised on the way; then each of its stages must meet
//! f64 to f32 rounding. Two implementations that share no code agree, or the
//! stage is named.

use super::args::OracleArgs;
use super::output::Output;
use super::setup;
use crate::capture::{Capture, Filter, Store, Want};
use crate::cleanup;
use crate::llama;
use crate::llama::gguf::{CopyType, write_copy};
use crate::loaded::LoadedModel;
use crate::oracle::Oracle;
use crate::report::{OracleReport, OracleStage};
use crate::room::Room;
use crate::runners::{self, Runner as _, Tokens, llama::Llama};
use crate::verdict::{Local, Policy, Side, residuals};
use anyhow::{Context as _, Result};
use qdiff_engine::model::{Model, StageId};
use rayon::prelude::*;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn run(args: &OracleArgs) -> Result<u8> {
    let output = Output::new(&args.output, 1)?;
    let threads = setup::threads(args.prompt.threads)?;
    let opened = setup::open(args.prompt.model.as_ref())?;
    let (name, tokens) = setup::tokens(&opened, &args.prompt)?;
    let results = verify(&opened, &tokens, args.prompt.decode, None, threads, args.tmp.as_deref())?;
    let stages = results.into_iter().map(|(stage, local)| OracleStage { stage, local }).collect();
    output.tell(&OracleReport { prompt: name, tokens: tokens.len(), decode: args.prompt.decode, stages })
}

/// Names of the stages where llama.cpp misses f64 even with F32 weights.
pub(super) fn failing(
    opened: &LoadedModel,
    tokens: &[u32],
    fed: &[u32],
    threads: usize,
) -> Result<HashSet<&'static str>> {
    let tmp = std::env::var_os("QDIFF_TMP").map(PathBuf::from);
    let results = verify(opened, tokens, fed.len(), Some(fed), threads, tmp.as_deref())?;
    Ok(results.into_iter().filter(|(_, l)| !l.ok()).map(|(id, _)| id.name).collect())
}

fn verify(
    opened: &LoadedModel,
    tokens: &[u32],
    decode: usize,
    forced: Option<&[u32]>,
    threads: usize,
    tmp: Option<&Path>,
) -> Result<Vec<(StageId, Local)>> {
    let folder = tmp.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let copy =
        tempfile::Builder::new().prefix("qdiff-f32-").suffix(".gguf").tempfile_in(&folder).with_context(|| {
            format!("cannot write the dequantised copy to {}: name a folder with --tmp", folder.display())
        })?;
    let _cleanup = cleanup::guard(copy.path());
    let source = Oracle::new(&opened.path, opened.model.gguf().bytes(), &opened.llama)?;
    write_copy(&opened.path, &source.weights, CopyType::F32, copy.path()).with_context(|| {
        format!("writing the dequantised copy to {} (--tmp names another folder)", folder.display())
    })?;
    let path: PathBuf = copy.path().to_path_buf();
    let model = Model::open(&path)?;
    let theirs = Arc::new(llama::Model::load(&path)?);
    let oracle = Oracle::new(&path, model.gguf().bytes(), &theirs)?;
    let filter = Filter::default();
    let store = Store::usual(tmp);
    let want = Want::new(&oracle.graph, &filter, &|_| true, &store);
    let room = Room { step: tokens.len(), context: tokens.len() + decode, threads, ..Room::default() };
    let mut runner = Llama::new(&theirs, &oracle.graph, room)?;
    let mut capture = Capture::new(store.clone());
    let what = Tokens { prompt: tokens, ubatch: tokens.len(), decode, forced };
    runners::run(&mut runner, what, &want, |step| {
        capture.steps.push(step);
        Ok(())
    })?;
    let side = Side { capture: &capture, arithmetic: &runner.manifest().arithmetic };
    let policy = Policy::default();
    let results = oracle.graph.nodes.par_iter().filter_map(|node| {
        let local = residuals(node, &oracle, &[side], &filter, &policy).pop()?;
        Some((node.id, local?))
    });
    let results = results.collect();
    store.trouble()?;
    Ok(results)
}
