//! Two sides generate freely; where their texts part is judged.

use super::faults::InjectedFaults;
use super::request::{CaptureRequest, FaultRequest, TokensRequest};
use super::{Console, run, sides, values, verify};
use crate::generate::{self as texts, Generation, Plan};
use crate::loaded::{LoadedModel, sha256};
use crate::mutations::FaultSite;
use crate::nonce::{self, Changes};
use crate::pair::Pair;
use crate::prompts::{self, Ready};
use crate::report::Outcome;
use crate::report::generation::{self, Cause, GenerationReport, TeacherForced};
use crate::runners::{Faults, RunnerKind, Source};
use crate::tokens::{self, TokensCheck};
use crate::weights::WeightCheck;
use anyhow::{Result, bail};
use clap::Args;
use qdiff_engine::sampler::Settings;

/// What to generate from, and how tokens are drawn.
#[derive(Clone, Debug, Args)]
pub struct GenerateRequest {
    /// Model and tokens
    #[command(flatten)]
    pub tokens: TokensRequest,
    /// Ask for a haiku about a number that no recording can know, and see that
    /// every stage changes with it; NUMBER repeats a run
    #[arg(long, value_name = "NUMBER", num_args = 0..=1, help_heading = "What to run")]
    pub nonce: Option<Option<u32>>,
    /// Steps and memory
    #[command(flatten)]
    pub capture: CaptureRequest,
    /// The runner under suspicion, with the engine's own samplers
    #[arg(
        long,
        value_name = "RUNNER",
        default_value = "auto",
        env = "QDIFF_SUBJECT",
        value_parser = values::live(),
        help_heading = "Sides"
    )]
    pub subject: Source,
    /// The runner it is held against; llama.cpp draws with its samplers
    #[arg(
        long,
        value_name = "RUNNER",
        default_value = "llama",
        env = "QDIFF_REFERENCE",
        value_parser = values::live(),
        help_heading = "Sides"
    )]
    pub reference: Source,
    /// Faults
    #[command(flatten)]
    pub faults: FaultRequest,
    /// How tokens are drawn
    #[command(flatten)]
    pub sampling: SamplingRequest,
}

/// How tokens are drawn, by llama.cpp's names and defaults.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "How tokens are drawn")]
pub struct SamplingRequest {
    /// Temperature; 0 takes the most probable token
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_parser = not_negative, env = "QDIFF_TEMP")]
    pub temp: f32,
    /// Keep the K most probable; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, env = "QDIFF_TOP_K")]
    pub top_k: usize,
    /// Keep the most probable that sum up to P; 1 for all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true, value_parser = share, env = "QDIFF_TOP_P")]
    pub top_p: f32,
    /// Keep those at least P times as probable as the first; 0 for all
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true, value_parser = share, env = "QDIFF_MIN_P")]
    pub min_p: f32,
    /// Make tokens of the last --repeat-last-n less likely by this factor; 1 for off
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true, value_parser = positive, env = "QDIFF_REPEAT_PENALTY")]
    pub repeat_penalty: f32,
    /// Taken off a token's logit for each time it occurred
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = finite, env = "QDIFF_FREQUENCY_PENALTY")]
    pub frequency_penalty: f32,
    /// Taken off a token's logit once if it occurred
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = finite, env = "QDIFF_PRESENCE_PENALTY")]
    pub presence_penalty: f32,
    /// How many of the last tokens the penalties see; 0 for none
    #[arg(long, value_name = "N", default_value_t = 64, env = "QDIFF_REPEAT_LAST_N")]
    pub repeat_last_n: u16,
    /// Seed of the draw
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(..i64::from(u32::MAX)), env = "QDIFF_SEED")]
    pub seed: u32,
}

impl SamplingRequest {
    /// As the samplers take it.
    pub fn settings(&self) -> Settings {
        Settings {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_last_n: usize::from(self.repeat_last_n),
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed,
        }
    }
}

fn number(text: &str, fits: fn(f32) -> bool, what: &str) -> Result<f32, String> {
    let number: Option<f32> = text.parse().ok().filter(|n: &f32| n.is_finite() && fits(*n));
    number.ok_or_else(|| format!("expected {what}"))
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, |n| n >= 0.0, "a number from 0 on")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |n| (0.0..=1.0).contains(&n), "a number from 0 to 1")
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, |n| n > 0.0 && (1.0 / n).is_finite(), "a number above 0")
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, |_| true, "a number")
}

/// Generates on both sides, and says where the texts part and why. Every pair
/// of tokens is told as soon as it is there.
///
/// # Errors
/// Whatever keeps a side from running.
pub fn generate(request: &GenerateRequest, console: Console<'_>) -> Result<GenerationReport> {
    let given = (&request.subject, &request.reference);
    let (subject, reference, injections) = sides::both_live(given, &request.faults, console)?;
    if request.tokens.decode == 0 {
        bail!("-n 0 generates nothing; give the number of tokens");
    }
    let settings = request.capture.settings()?;
    let opened = request.tokens.prompt.model.open()?;
    let pair = Pair::new(&opened, settings, console.progress)?;
    let number = request.nonce.map(|n| n.unwrap_or_else(nonce::fresh));
    let ready = match number {
        Some(n) => nonce_prompt(&opened, &request.tokens, n)?,
        None => request.tokens.ready(&opened)?,
    };
    let injected = InjectedFaults::new(&opened, &injections, &[FaultSite::Tokenizer, FaultSite::Samplers])?;
    let faults = &injected.stages;
    let settings = request.sampling.settings();
    let plan = Plan {
        prompt: &ready.tokens,
        ubatch: request.capture.ubatch,
        most: request.tokens.decode,
        settings: &settings,
        spoiled: &injected.samplers,
    };
    let check = tokens::check(&opened, &ready, injected.tokenizer)?;

    (console.say)(&generation::columns(reference, subject))?;
    let mut index = 0;
    let piece = |token: Option<u32>| token.map_or_else(String::new, |t| texts::shown(&opened.llama, t));
    let spoken = texts::generate(&pair, plan, subject, reference, faults.clone(), |theirs, ours| {
        let row = generation::row(index, &piece(theirs), &piece(ours), theirs == ours);
        index += 1;
        (console.say)(&row)
    })?;

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
    if changes.as_ref().is_some_and(Changes::stale) || check.as_ref().is_some_and(TokensCheck::diverged) {
        outcome = Outcome::Diverged;
    }
    // Below the table of tokens.
    (console.say)("\n")?;
    Ok(GenerationReport {
        outcome,
        model: run::describe(&opened, sha256(opened.bytes())),
        prompt: ready.name,
        prompt_text: ready.text,
        prompt_tokens: ready.tokens,
        sampling: settings.into(),
        nonce: number,
        tokens: check,
        injected: faults.words.iter().cloned().chain(injected.beside()).collect(),
        generation: spoken,
        cause,
        forced,
        changes,
    })
}

/// Both sides on the same tokens: which stage made the fork, if any.
fn explain(
    pair: &Pair<'_>,
    plan: Plan<'_>,
    spoken: &Generation,
    at: usize,
    (subject, reference): (&RunnerKind, &RunnerKind),
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
