//! Is the f64 evaluation itself right?
//!
//! llama.cpp runs a copy of the model with every weight dequantised to F32, so that nothing is quantised on the way;
//! then each of its stages must meet f64 to f32 rounding. Two implementations that share no code agree, or the stage is
//! named.

use super::Console;
use super::request::{ThreadsRequest, TmpRequest, TokensRequest};
use crate::capture::Store;
use crate::cleanup;
use crate::llama::copy::write_copy;
use crate::loaded::LoadedModel;
use crate::pair::{Pair, Recording, Settings};
use crate::progress::Progress;
use crate::report::{Doubt, OracleReport, OracleStage, Suspect};
use crate::runners::{Faults, LLAMA, Tokens};
use crate::verdict::{StageResult, Verdict, residuals};
use anyhow::{Context as _, Result};
use clap::Args;
use qdiff_engine::quant::GgmlType;
use qdiff_engine::quant::KvType;
use rayon::prelude::*;
use std::collections::HashSet;

/// What llama.cpp is to run on F32 weights.
#[derive(Clone, Debug, Args)]
#[command(
    mut_arg("model", |a| a.help(super::request::GGUF)),
    mut_arg("prompt", |a| a.help(super::request::TEXT)),
    mut_arg("decode", |a| a.help("Decode steps after the prompt; llama.cpp chooses their tokens")),
    mut_arg("tmp", |a| a.help("Folder for temporary files, such as the copy of the model in F32 [default: the system's]"))
)]
pub struct VerifyRequest {
    #[command(flatten)]
    pub tokens: TokensRequest,
    #[command(flatten)]
    pub threads: ThreadsRequest,
    #[command(flatten)]
    pub tmp: TmpRequest,
}

/// Holds llama.cpp, on weights dequantised to F32, against f64.
///
/// # Errors
/// If the copy cannot be written, or llama.cpp cannot run it.
pub fn verify_oracle(request: &VerifyRequest, console: Console<'_>) -> Result<OracleReport> {
    let threads = request.threads.apply()?;
    let opened = request.tokens.prompt.model.open()?;
    let prompt = request.tokens.ready(&opened)?;
    let decode = request.tokens.decode;
    let tokens = Tokens::whole(&prompt.tokens, decode);
    let settings = Settings { threads, store: Store::usual(request.tmp.tmp.as_deref()), ..Settings::default() };
    let stages = on_f32(&opened, tokens, settings, console.progress)?;
    Ok(OracleReport { tokens: prompt.tokens.len(), prompt: prompt.name, decode, stages })
}

/// Where only the reference misses f64: what F32 weights say of it.
pub(super) fn doubt(pair: &Pair<'_>, verdict: &Verdict, reference: &Recording, tokens: &[u32]) -> Option<Doubt> {
    let suspects: Vec<_> = verdict.disputed().map(|s| s.id.name).collect();
    if verdict.diverged() || suspects.is_empty() {
        return None;
    }
    let departs = pair.oracle.graph.config.llama_departs.clone();
    if let Some(departs) = departs.or_else(|| no_number(verdict)) {
        return Some(Doubt { suspect: Suspect::Reference, reason: format!("the reference is wrong here: {departs}") });
    }
    let (suspect, reason) = match failing(pair, tokens, &reference.fed) {
        Ok(failing) if suspects.iter().any(|s| failing.contains(s)) => {
            (Suspect::Oracle, "llama.cpp misses f64 with F32 weights too, so qdiff itself is in doubt".to_owned())
        }
        Ok(_) => {
            let third = "llama.cpp with F32 weights agrees with f64 on these tokens";
            let ran = reference.manifest.name.starts_with(LLAMA.name);
            let reason = if ran {
                third.to_owned()
            } else {
                format!("{third}; make the reference the subject to see its cause")
            };
            (Suspect::Reference, reason)
        }
        Err(e) => (Suspect::Unknown, format!("which of the two is wrong could not be tested: {e:#}")),
    };
    Some(Doubt { suspect, reason })
}

/// That the reference gives NaN or infinity of finite operands where f64 gives a number, which no rounding does, and misses f64
/// nowhere but behind that.
fn no_number(verdict: &Verdict) -> Option<String> {
    let lost = |stage: &StageResult| {
        let local = stage.reference.as_ref()?;
        Some((local.non_finite?, local.poisoned_input))
    };
    let all = verdict.disputed().map(lost).collect::<Option<Vec<_>>>()?;
    let (first, _) = all.into_iter().find(|(first, poisoned)| !poisoned && first.want.is_finite())?;
    Some(format!("of finite operands it gives {}, where f64 gives {}", first.got, first.want as f32))
}

/// Names of the stages where llama.cpp misses f64 even with F32 weights.
fn failing(pair: &Pair<'_>, prompt: &[u32], fed: &[u32]) -> Result<HashSet<&'static str>> {
    let tokens = Tokens { forced: Some(fed), ..Tokens::whole(prompt, fed.len()) };
    let settings = Settings { kv: KvType::F32, ..pair.settings.clone() };
    let stages = on_f32(pair.opened, tokens, settings, pair.progress)?;
    Ok(stages.into_iter().filter(|s| !s.local.ok()).map(|s| s.stage.name).collect())
}

/// The residuals of llama.cpp's stages on a copy of the model in F32.
fn on_f32(
    opened: &LoadedModel, tokens: Tokens<'_>, settings: Settings, progress: Progress<'_>,
) -> Result<Vec<OracleStage>> {
    let folder = settings.store.folder.clone();
    let copy =
        tempfile::Builder::new().prefix("qdiff-f32-").suffix(".gguf").tempfile_in(&folder).with_context(|| {
            format!("cannot write the dequantised copy to {}: name a folder with --tmp", folder.display())
        })?;
    let _cleanup = cleanup::guard(copy.path());
    write_copy(&opened.ggml()?, GgmlType::F32, copy.path()).with_context(|| {
        format!("writing the dequantised copy to {} (--tmp names another folder)", folder.display())
    })?;
    let plain = LoadedModel::new(copy.path())?;
    let pair = Pair::new(&plain, settings, progress)?;
    let llama = pair.run(&LLAMA, tokens, Faults::default())?;
    let stages = pair.oracle.graph.nodes.par_iter().filter_map(|node| {
        let local = residuals(node, &pair.oracle, &[llama.side()], &pair.filter, &pair.policy).pop()?;
        Some(OracleStage { stage: node.id, local: local? })
    });
    let stages = stages.collect();
    pair.settings.store.trouble()?;
    Ok(stages)
}
