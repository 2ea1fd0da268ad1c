//! Two sides generate freely; where their texts part is judged.

use super::faults::InjectedFaults;
use super::request::{CaptureRequest, TokensRequest};
use super::sides::LiveSidesRequest;
use super::{Console, repeat, run, values, verify};
use crate::ends::Ends;
use crate::generate::{self as texts, Generation, Plan, Stop};
use crate::loaded::LoadedModel;
use crate::mutations::FaultSite;
use crate::nonce::{self, Changes};
use crate::pair::Pair;
use crate::prompts::{self, Ready};
use crate::report::Outcome;
use crate::report::generation::{Cause, GenerationReport, TeacherForced};
use crate::runners::{Faults, RunnerKind};
use crate::sampling::Sampling;
use crate::tokens::{self, TokensCheck};
use crate::weights::WeightCheck;
use anyhow::{Result, bail};
use clap::Args;

/// What the subject is, in the short help and in the long one.
const SUBJECT: &str = "The engine under suspicion; qdiff's samplers draw from its logits";

/// What is being done, as progress tells it.
const GENERATING: &str = "generating";

/// What to generate from, and how tokens are drawn.
#[derive(Clone, Debug, Args)]
#[command(
    mut_arg("model", |a| a.help(super::request::GGUF)),
    mut_arg("subject", |a| a.help(SUBJECT).long_help(SUBJECT).value_parser(values::STEPPED_SUBJECT)),
    mut_arg("prompt", |a| a.help(super::request::TEXT)),
    mut_arg("decode", |a| a.help("Tokens to generate")),
    mut_arg("kv_type", |a| a.help("Type of the KV cache on both sides, or two as in q8_0/q4_1 for keys and values; llama.cpp has no f8 types [default: f32]")),
    mut_arg("reference", |a| a.help("The engine to compare with; llama.cpp's samplers draw from its logits"))
)]
pub struct GenerateRequest {
    #[command(flatten)]
    pub tokens: TokensRequest,
    /// Ask for a haiku about a number that no recording can know, and require that every stage changes with it; NUMBER
    /// repeats a run
    #[arg(long, value_name = "NUMBER", num_args = 0..=1, help_heading = "What to run")]
    pub nonce: Option<Option<u32>>,
    #[command(flatten)]
    pub capture: CaptureRequest,
    #[command(flatten)]
    pub sides: LiveSidesRequest,
    #[command(flatten)]
    pub sampling: Sampling,
}

/// Generates on both sides, and says where the texts part and why.
///
/// # Errors
/// Whatever keeps a side from running.
pub fn generate(request: &GenerateRequest, console: Console<'_>) -> Result<GenerationReport> {
    let (subject, reference, injections) = request.sides.kinds(console)?;
    if request.tokens.decode == 0 {
        bail!("-n 0 generates nothing; give the number of tokens");
    }
    let settings = request.capture.settings()?;
    let opened = request.tokens.prompt.model.open()?;
    let mut pair = Pair::new(&opened, settings, console.progress)?;
    let number = request.nonce.map(|n| n.unwrap_or_else(nonce::fresh));
    let ready = match number {
        Some(n) => nonce_prompt(&opened, &request.tokens, n)?,
        None => request.tokens.ready(&opened)?,
    };
    let injected = InjectedFaults::new(
        (opened.model.graph(), pair.settings.kv),
        &injections,
        &[FaultSite::Tokenizer, FaultSite::Samplers, FaultSite::Ends],
    )?;
    let faults = &injected.stages;
    let ends = Ends::of_engine(&opened, injected.ends)?;
    let plan = Plan {
        prompt: &ready.tokens,
        ubatch: request.capture.ubatch,
        most: request.tokens.decode,
        sampling: &request.sampling,
        spoiled: &injected.samplers,
        ends: &ends.tokens,
    };
    let check = tokens::check(&opened, &ready, injected.tokenizer)?;

    let llama = opened.llama()?;
    (console.begin)();
    let mut rows = Vec::new();
    let piece = |token: Option<u32>| token.map_or_else(String::new, |t| texts::shown(llama, t));
    let spoken = texts::generate(&pair, plan, subject, reference, faults.clone(), |theirs, ours| {
        rows.push([piece(theirs), piece(ours)]);
        (console.progress)(GENERATING, rows.len(), plan.most);
        Ok(())
    })?;
    // A text may have ended before.
    (console.progress)(GENERATING, plan.most, plan.most);

    let changes = match number {
        Some(n) => {
            let other = nonce_prompt(&opened, &request.tokens, nonce::another(n))?;
            Some(nonce::check(&pair, [&ready.tokens, &other.tokens], plan.ubatch, subject, reference, faults)?)
        }
        None => None,
    };
    let (mut outcome, cause, forced) = match (&spoken.sampler_differs, spoken.parts_at()) {
        (Some(other), _) => (Outcome::Diverged, Some(Cause::Sampler(other.clone())), None),
        (None, None) => (Outcome::Match, None, None),
        (None, Some(at)) => {
            let (outcome, cause, forced) = explain(&pair, plan, &spoken, at, (subject, reference), faults.clone())?;
            (outcome, Some(cause), Some(forced))
        }
    };
    let said = &spoken.subject.tokens;
    let end = ends.check(&opened, said, spoken.subject.stop == Stop::EndOfGeneration);
    let stale = changes.as_ref().is_some_and(Changes::stale);
    if stale || end.diverged() || check.as_ref().is_some_and(TokensCheck::diverged) {
        outcome = Outcome::Diverged;
    }
    let fed = &said[..said.len().saturating_sub(1)];
    let tokens = plan.tokens(fed.len(), Some(fed));
    let inert = injected.inert_on(&mut pair, subject, tokens)?;
    // Another number, or drawn tokens, `qdiff run` does not feed.
    let same_tokens = number.is_none() && request.sampling.temp <= 0.0;
    let command = match cause {
        Some(Cause::Divergence { .. }) if same_tokens => {
            let run = repeat::of_live(&request.tokens, &request.sides, request.capture.clone());
            repeat::command(&run, &request.tokens.prompt.prompt)
        }
        _ => String::new(),
    };
    Ok(GenerationReport {
        outcome,
        model: run::describe(&opened, opened.sha256()),
        prompt: ready.name,
        prompt_text: ready.text,
        prompt_tokens: ready.tokens,
        sampling: request.sampling,
        nonce: number,
        tokens: check,
        injected: faults.words.iter().cloned().chain(injected.beside()).collect(),
        inert,
        end,
        generation: spoken,
        cause,
        forced,
        changes,
        command,
        rows,
    })
}

/// Both sides on the same tokens: which stage made the fork, if any.
fn explain(
    pair: &Pair<'_>, plan: Plan<'_>, spoken: &Generation, at: usize, (subject, reference): (&RunnerKind, &RunnerKind),
    faults: Faults,
) -> Result<(Outcome, Cause, TeacherForced)> {
    let (diagnosis, recording) = texts::judge_fork(pair, plan, spoken, at, subject, reference, faults)?;
    let doubt = verify::doubt(pair, &diagnosis.verdict, &recording, plan.prompt);
    let outcome = Outcome::of(&WeightCheck::default(), None, &diagnosis.verdict, doubt.as_ref());
    let cause = Cause::of(&diagnosis, outcome, doubt);
    Ok((outcome, cause, TeacherForced::of(&diagnosis.verdict, at)))
}

fn nonce_prompt(opened: &LoadedModel, request: &TokensRequest, number: u32) -> Result<Ready> {
    let name = format!("haiku about {number:08}");
    let ready = prompts::ready(opened, &name, nonce::prompt(number), request.prompt.style())?;
    opened.check(&ready.tokens, request.decode)?;
    Ok(ready)
}
