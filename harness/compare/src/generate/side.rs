//! One side of a generation: a runner, and what draws from its logits.

use super::Plan;
use super::repetition::{self, Loop};
use crate::capture::Want;
use crate::llama::sampler::LlamaSampler;
use crate::runners::Runner;
use anyhow::{Context as _, Result};
use qdiff_engine::sampler::{Drawn, SampleError, Sampler};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// Whoever draws tokens.
pub enum SideSampler {
    /// The engine's own samplers.
    Ours(Box<Sampler>),
    /// llama.cpp's.
    Theirs(LlamaSampler),
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// The model ended it.
    EndOfGeneration,
    /// It has the requested number of tokens.
    Length,
    /// A logit is NaN, and nothing can be drawn.
    NotANumber,
}

/// What one side said.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GeneratedText {
    /// The runner.
    pub name: String,
    /// Tokens generated; the one that ended the text is the last.
    pub tokens: Vec<u32>,
    /// Their text, without special tokens.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
    /// The repetition it ends in.
    pub repetition: Option<Loop>,
    /// Prompt tokens per second.
    pub prefill_speed: f64,
    /// Generated tokens per second, the first left out; `None` if it is the only one.
    pub decode_speed: Option<f64>,
}

/// A side at work.
pub struct GenerationSide<'a> {
    runner: Box<dyn Runner + 'a>,
    draw: SideSampler,
    want: Arc<Want>,
    plan: Plan<'a>,
    feed: Vec<u32>,
    tokens: Vec<u32>,
    stop: Option<Stop>,
    prefill: f64,
    decode: f64,
}

impl<'a> GenerationSide<'a> {
    /// Speaks after the prompt of `plan`. `want` asks for the logits.
    pub fn new(runner: Box<dyn Runner + 'a>, mut draw: SideSampler, want: Arc<Want>, plan: Plan<'a>) -> Self {
        plan.prompt.iter().for_each(|token| match &mut draw {
            SideSampler::Ours(s) => s.accept(*token),
            SideSampler::Theirs(s) => s.accept(*token),
        });
        Self {
            runner,
            draw,
            want,
            plan,
            feed: plan.prompt.to_vec(),
            tokens: Vec::new(),
            stop: (plan.most == 0).then_some(Stop::Length),
            prefill: 0.0,
            decode: 0.0,
        }
    }

    /// The next token and the logits `[V]` it was drawn from; `None` once the text has ended, be it that a logit is
    /// NaN. `ends` are the tokens that end a text.
    ///
    /// # Errors
    /// As [`Runner::step`]; and fewer logits than tokens.
    pub fn next(&mut self, ends: impl Fn(u32) -> bool) -> Result<Option<(u32, Vec<f32>)>> {
        if self.stop.is_some() {
            return Ok(None);
        }
        let start = Instant::now();
        let name = &self.runner.manifest().name;
        let problem = format!("{name}, token {} of the text", self.tokens.len());
        let mut choice = None;
        for part in self.feed.chunks(self.plan.ubatch.max(1)) {
            choice = self.runner.step(part, &self.want)?.choice;
        }
        self.want.store.trouble()?;
        let logits = choice.with_context(|| format!("{problem}: no logits to draw from"))?.get().data.clone();
        let drawn = match &mut self.draw {
            SideSampler::Ours(s) => s.sample(&logits),
            SideSampler::Theirs(s) => Ok(s.sample(&logits)),
        };
        let seconds = start.elapsed().as_secs_f64();
        if self.tokens.is_empty() {
            self.prefill = seconds;
        } else {
            self.decode += seconds;
        }
        if let Err(SampleError::NotANumber(_)) = drawn {
            self.stop = Some(Stop::NotANumber);
            return Ok(None);
        }
        let token = drawn.context(problem)?;
        self.tokens.push(token);
        self.feed = vec![token];
        if ends(token) {
            self.stop = Some(Stop::EndOfGeneration);
        } else if self.tokens.len() == self.plan.most {
            self.stop = Some(Stop::Length);
        }
        Ok(Some((token, logits)))
    }

    /// Where the last draw fell; llama.cpp does not tell.
    pub fn drawn(&self) -> Option<Drawn> {
        if let SideSampler::Ours(s) = &self.draw { s.drawn() } else { None }
    }

    /// The generated text; `text` makes text of tokens.
    pub fn finish(self, text: impl Fn(&[u32]) -> String) -> GeneratedText {
        let steps = self.tokens.len().saturating_sub(1);
        GeneratedText {
            name: self.runner.manifest().name.clone(),
            text: text(&self.tokens),
            stop: self.stop.unwrap_or(Stop::Length),
            repetition: repetition::find(&self.tokens),
            prefill_speed: self.plan.prompt.len() as f64 / self.prefill.max(f64::MIN_POSITIVE),
            decode_speed: (steps > 0).then(|| steps as f64 / self.decode.max(f64::MIN_POSITIVE)),
            tokens: self.tokens,
        }
    }
}
