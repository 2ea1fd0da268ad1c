//! A trainer and a rollout on the same tokens: both judged, and the gap of their logprobs held against what rounding may do.

use super::request::{RunnerRequest, TokensRequest};
use super::sides::{Side, WhyRequest, fed_again};
use super::{Console, run, values};
use crate::capture::manifest::Manifest;
use crate::capture::{Names, container};
use crate::diagnose::Diagnosis;
use crate::pair::{Pair, Recording, Settings, Tokens};
use crate::report::rl::{RlReport, RlSide};
use crate::rl::{Given, study};
use crate::runners::{EngineTrouble, Faults, Source};
use anyhow::{Result, bail, ensure};
use clap::Args;
use std::path::{Path, PathBuf};

/// Whose logprobs, of which tokens.
#[derive(Clone, Debug, Args)]
pub struct RlRequest {
    /// The trainer, which runs all tokens in one pass: an engine, a command or capture:DIR
    #[arg(id = "reference", value_name = "TRAINER", value_parser = values::SUBJECT)]
    pub trainer: Source,
    /// The rollout, which runs the prompt and decodes: an engine, a command or capture:DIR
    #[arg(id = "subject", value_name = "ROLLOUT", value_parser = values::SUBJECT)]
    pub rollout: Source,
    /// File of the logprobs that the rollout reports, in nats: a number for each token but the first, or for the last tokens alone. A
    /// capture may have them as arrays `STEP/logprobs`. Without either they are computed from the captured logits
    #[arg(long, value_name = "FILE", help_heading = "What is judged")]
    pub logprobs: Option<PathBuf>,
    /// The same for the trainer
    #[arg(long, value_name = "FILE", help_heading = "What is judged")]
    pub trainer_logprobs: Option<PathBuf>,
    #[command(flatten)]
    pub tokens: TokensRequest,
    #[command(flatten)]
    pub why: WhyRequest,
    #[command(flatten)]
    pub runner: RunnerRequest,
}

/// One side, as far as it is known without the model.
fn open(source: &Source) -> Result<Side> {
    match source {
        Source::Nobody => bail!("`none` gives no logprobs; name an engine, a command or a capture"),
        // A capture of one sequence.
        Source::Recorded(folder) => Ok(Side::Recorded(folder.clone(), container::manifest(folder)?)),
        Source::Auto | Source::Live(_) => Side::open(source),
    }
}

/// Reads a side, or runs it on these tokens.
fn record(side: &Side, pair: &Pair<'_>, tokens: Tokens<'_>) -> Result<Recording> {
    match side {
        Side::Recorded(folder, manifest) => {
            pair.read(folder, manifest, &Names::of(&pair.oracle.graph), &manifest.how())
        }
        Side::Live(kind) => pair.run(kind, tokens, Faults::default()).map_err(EngineTrouble::of),
        Side::Nobody => bail!("a side that does not run has no logprobs"),
    }
}

/// All tokens of a run.
fn all(manifest: &Manifest) -> Vec<u32> {
    [manifest.tokens.as_slice(), &manifest.decoded].concat()
}

/// Judges both sides, and compares their logprobs.
///
/// # Errors
/// Whatever keeps a side from running or being read; sides of different tokens.
pub fn rl(request: &RlRequest, console: Console<'_>) -> Result<RlReport> {
    let (trainer, rollout) = (open(&request.trainer)?, open(&request.rollout)?);
    let given = [&request.trainer_logprobs, &request.logprobs].map(|path| path.as_deref().map(Given::read).transpose());
    let [of_trainer, of_rollout] = given;
    let (of_trainer, of_rollout) = (of_trainer?, of_rollout?);
    let settings = Settings { budget: request.why.why_budget, ..request.runner.settings()? };
    let opened = request.tokens.prompt.model.open()?;
    let pair = Pair::new(&opened, settings, console.progress)?;
    let hash = opened.sha256();
    let recorded: Vec<(&Path, &Manifest)> = [&trainer, &rollout].into_iter().filter_map(Side::recorded).collect();
    for (folder, manifest) in &recorded {
        manifest.check_model(folder, &hash)?;
        opened.check(&all(manifest), 0)?;
    }
    if let [(a, x), (b, y)] = recorded.as_slice() {
        ensure!(
            all(x) == all(y),
            "{} and {} are captures of different tokens; record both on the same ones",
            a.display(),
            b.display()
        );
    }
    // The rollout first: the trainer runs what it decoded.
    let of_capture = recorded.first().map(|(_, manifest)| (manifest.tokens.clone(), manifest.decoded.clone()));
    let (prompt, forced) = match of_capture {
        Some((prompt, decoded)) => (prompt, Some(decoded)),
        None => (request.tokens.ready(&opened)?.tokens, None),
    };
    (console.begin)();
    let decode = forced.as_ref().map_or(request.tokens.decode, Vec::len);
    let rollout = match &rollout {
        Side::Live(kind) if kind.command().is_some_and(|command| !command.decodes()) => {
            let whole = [prompt.as_slice(), forced.as_deref().unwrap_or_default()].concat();
            record(&rollout, &pair, Tokens::whole(&whole, 0))?
        }
        Side::Live(_) => {
            // If nobody chose the tokens to decode, a command that must be given them gets those of the prompt again.
            let again = fed_again(&prompt, decode);
            let forced = forced.as_deref().or_else(|| rollout.waits().then_some(again.as_slice()));
            record(&rollout, &pair, Tokens { forced, ..Tokens::whole(&prompt, decode) })?
        }
        Side::Recorded(..) | Side::Nobody => record(&rollout, &pair, Tokens::whole(&prompt, 0))?,
    };
    let fed = |recording: &Recording| {
        recording.capture.steps.iter().flat_map(|step| step.tokens.iter().copied()).collect::<Vec<u32>>()
    };
    let ids = fed(&rollout);
    ensure!(ids.len() > 1, "the run has one token, which follows none: there is no logprob to compare");
    let trainer = record(&trainer, &pair, Tokens::whole(&ids, 0))?;
    ensure!(fed(&trainer) == ids, "the trainer ran other tokens than the rollout; give both the same");
    let study = study(&opened, &pair, [&trainer, &rollout], &ids, [of_trainer.as_ref(), of_rollout.as_ref()])?;
    let judged = |recording: &Recording| -> Result<Diagnosis> { pair.judge(recording, None) };
    let (of_trainer, of_rollout) = (judged(&trainer)?, judged(&rollout)?);
    pair.settings.store.trouble()?;
    let side = |recording: Recording, diagnosis| RlSide { manifest: recording.manifest, diagnosis };
    Ok(RlReport::new(run::describe(&opened, hash), ids, [side(trainer, of_trainer), side(rollout, of_rollout)], study))
}
