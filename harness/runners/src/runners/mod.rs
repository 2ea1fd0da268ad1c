//! Whatever can fill a capture: one trait, one file per runner.

pub mod command;
pub mod cpu;
pub mod cuda;
mod kind;
pub mod llama;
mod llama_cuda;
pub mod pairs;
mod process;
mod ranks;
mod source;

pub use command::{PLACEHOLDERS, RUN, SERVE};
pub use cpu::CPU;
pub use cuda::{CUDA, CUDA_FAST};
pub use kind::{CommandLine, Create, Faults, Reads, RunnerKind, Start};
pub use llama::{LLAMA, LLAMA_CUDA};
pub use ranks::{Origins, Ranks, Whole};
pub use source::{RUNNERS, Source};

use crate::arithmetic::Arithmetic;
use crate::capture::{Filter, Pass, Passes, Plan, Shift, Step, Store, Want};
use crate::memory::Extent;
use crate::metrics::argmax;
use anyhow::{Result, bail};
use qdiff_engine::cpu::Row;
use qdiff_engine::model::Node;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Identifies a runner in reports and manifests.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Short name, e.g. `cpu` or `llama.cpp (cpu)`.
    pub name: String,
    /// Declared arithmetic.
    pub arithmetic: Arithmetic,
    /// Faults injected, in words.
    pub injected: Vec<String>,
    /// The number format that a recording's arrays were rounded to, and how that is known; absent if they were not
    /// rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
    /// The stages of a recording with values outside the format that its arithmetic declares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unkept: Option<String>,
}

impl Manifest {
    /// Stands for a reference that is not there.
    pub fn nobody() -> Self {
        Self {
            name: "none".to_owned(),
            arithmetic: Arithmetic::default(),
            injected: Vec::new(),
            stored: None,
            unkept: None,
        }
    }
}

/// Trouble of building or running an engine, as another commit of it may have none.
#[derive(Debug)]
pub struct EngineTrouble(String);

impl EngineTrouble {
    /// What went wrong while an engine ran, or with what it dumped, as the engine's; but for a program that is not there.
    pub fn of(e: anyhow::Error) -> anyhow::Error {
        if e.is::<NoProgram>() { e } else { Self(format!("{e:#}")).into() }
    }
}

impl std::fmt::Display for EngineTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EngineTrouble {}

/// A command names a program that is not there, or is none.
#[derive(Debug)]
struct NoProgram(String);

impl std::fmt::Display for NoProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoProgram {}

/// Runs a model step by step with taps.
pub trait Runner {
    /// What it is.
    fn manifest(&self) -> &Manifest;

    /// Whether it can hand out the stage `node`. What it cannot is judged
    /// within the segment that ends in the next stage it can.
    fn taps(&self, _node: &Node) -> bool {
        true
    }

    /// Runs `tokens` at the next positions and gives the selected stages.
    ///
    /// # Errors
    /// Whatever keeps the step from finishing or a wanted stage from being seen.
    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step>;

    /// Tells what a run goes back to: a sequence, and so many of its tokens. A prefix or a draft ends there.
    fn goes_back_to(&mut self, _these: BTreeSet<(u32, usize)>) {}

    /// Runs rows of several sequences in one pass, each at the next position of its sequence. Gives the step of each sequence
    /// that has rows in it.
    ///
    /// # Errors
    /// As [`Self::step`]; a runner that runs one sequence at a time.
    fn rows(&mut self, _rows: &[Row], _want: &Arc<Want>) -> Result<Vec<Step>> {
        bail!("{} runs one sequence at a time", self.manifest().name)
    }

    /// Lets sequence `to`, which is empty, begin with the first `tokens` tokens of sequence `from`, in the same slots of the
    /// cache.
    ///
    /// # Errors
    /// If that cannot be, or the runner runs one sequence at a time.
    fn share(&mut self, _from: u32, _to: u32, _tokens: usize) -> Result<()> {
        bail!("{} runs one sequence at a time", self.manifest().name)
    }

    /// Takes a sequence back to its first `to` tokens, as an engine does with a rejected draft; to none where it ends.
    ///
    /// # Errors
    /// If that cannot be, or the runner runs one sequence at a time.
    fn take_back(&mut self, _sequence: u32, _to: usize) -> Result<()> {
        bail!("{} takes no tokens back", self.manifest().name)
    }

    /// Removes tokens from the middle of a sequence; those behind them have lower positions, and their cached keys are rotated again.
    ///
    /// # Errors
    /// If that cannot be, or the runner does not shift.
    fn shift(&mut self, _sequence: u32, _shift: Shift) -> Result<()> {
        bail!("{} removes no tokens from the middle of a sequence", self.manifest().name)
    }

    /// Runs the `tokens` that wait for no choice, where the engine writes its dump itself and takes one step after the
    /// other; [`Self::dump`] goes on from there.
    ///
    /// # Errors
    /// Whatever keeps the engine from running these tokens.
    fn begin(&mut self, _tokens: Tokens<'_>) -> Result<()> {
        Ok(())
    }

    /// Runs all of `tokens` where the engine writes its dump itself; gives the folder, which is there until this is dropped.
    /// `None` where it is driven step by step.
    ///
    /// # Errors
    /// Whatever keeps the engine from running these tokens.
    fn dump(&mut self, _tokens: Tokens<'_>, _store: &Arc<Store>) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    /// Runs the passes of `plan` over `tokens` where the engine writes its dump itself, as [`Self::dump`].
    ///
    /// # Errors
    /// Whatever keeps the engine from running these tokens.
    fn dump_plan(&mut self, _plan: &Plan, _tokens: &[u32]) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    /// Whether it makes its own choices when it decodes `tokens`.
    fn chooses(&self, _tokens: Tokens<'_>) -> bool {
        false
    }

    /// Changes something for the run of this number, counted from 1, that must change no bit of it: what else the
    /// machine does, or how launches overlap. Gives what was changed, if anything can be.
    ///
    /// # Errors
    /// Whatever keeps it from being changed.
    fn vary(&mut self, _run: usize) -> Result<Option<&'static str>> {
        Ok(None)
    }
}

/// A runner of which some stages alone are tapped, so that the rest runs as it
/// does with taps off, and is judged within segments.
pub struct TapFiltered<'a> {
    /// The runner.
    pub inner: Box<dyn Runner + 'a>,
    /// What is tapped of it.
    pub taps: &'a Filter,
}

impl Runner for TapFiltered<'_> {
    fn manifest(&self) -> &Manifest {
        self.inner.manifest()
    }

    fn taps(&self, node: &Node) -> bool {
        self.taps.stage(node.id) && self.inner.taps(node)
    }

    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        self.inner.step(tokens, want)
    }

    fn goes_back_to(&mut self, these: BTreeSet<(u32, usize)>) {
        self.inner.goes_back_to(these);
    }

    fn rows(&mut self, rows: &[Row], want: &Arc<Want>) -> Result<Vec<Step>> {
        self.inner.rows(rows, want)
    }

    fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<()> {
        self.inner.share(from, to, tokens)
    }

    fn take_back(&mut self, sequence: u32, to: usize) -> Result<()> {
        self.inner.take_back(sequence, to)
    }

    fn shift(&mut self, sequence: u32, shift: Shift) -> Result<()> {
        self.inner.shift(sequence, shift)
    }

    fn begin(&mut self, tokens: Tokens<'_>) -> Result<()> {
        self.inner.begin(tokens)
    }

    fn dump(&mut self, tokens: Tokens<'_>, store: &Arc<Store>) -> Result<Option<PathBuf>> {
        self.inner.dump(tokens, store)
    }

    fn chooses(&self, tokens: Tokens<'_>) -> bool {
        self.inner.chooses(tokens)
    }

    fn vary(&mut self, run: usize) -> Result<Option<&'static str>> {
        self.inner.vary(run)
    }
}

/// The tokens of a run.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// The passes in which the prompt is fed.
    pub passes: Passes<'a>,
    /// Decode steps after it.
    pub decode: usize,
    /// Tokens fed at these steps; where `None`, the runner's own greedy choices.
    pub forced: Option<&'a [u32]>,
}

impl<'a> Tokens<'a> {
    /// A prompt that is fed at once, and the runner's own choices after it.
    pub fn whole(prompt: &'a [u32], decode: usize) -> Self {
        Self { prompt, passes: Passes::Of(prompt.len()), decode, forced: None }
    }

    /// Steps of the run: passes over the prompt, and decode steps.
    pub fn steps(&self) -> usize {
        self.of_run().len()
    }

    /// What its steps are made of.
    pub fn extents(&self) -> Vec<Extent> {
        let mut keys = 0;
        let mut extent = |pass: Pass| {
            keys += pass.tokens;
            Extent { tokens: pass.tokens, keys }
        };
        self.of_run().into_iter().map(&mut extent).collect()
    }

    /// The number of tokens of each step.
    pub fn lengths(&self) -> Vec<usize> {
        self.of_run().into_iter().map(|pass| pass.tokens).collect()
    }

    /// Tokens of its longest step.
    pub fn longest(&self) -> usize {
        self.lengths().into_iter().max().unwrap_or(0)
    }

    /// The tokens of each pass over the prompt.
    pub fn fed(&self) -> impl Iterator<Item = &'a [u32]> {
        let passes = self.passes.of_run(self.prompt.len(), 0);
        let mut rest = self.prompt;
        passes.into_iter().map(move |pass| {
            let (tokens, after) = rest.split_at(pass.tokens);
            rest = after;
            tokens
        })
    }

    /// All passes of the run.
    fn of_run(&self) -> Vec<Pass> {
        self.passes.of_run(self.prompt.len(), self.decode)
    }

    /// The number of each step.
    pub fn indices(&self) -> impl Iterator<Item = usize> {
        self.of_run().into_iter().map(|pass| pass.index)
    }
}

/// Gives the tokens of decode steps, where they are forced; asked once the prompt has run.
pub type Forced<'a> = &'a dyn Fn() -> Result<Option<&'a [u32]>>;

/// Runs the prompt and then the decode steps, and hands each step over when it is done. Where no tokens are `forced`, the
/// next is the runner's own greedy choice (lowest id among equals). Gives the token fed at each decode step.
///
/// # Errors
/// As [`Runner::step`], `forced` and `each`; captured tensors that could not be kept.
pub fn run(
    runner: &mut dyn Runner, tokens: Tokens<'_>, forced: Forced<'_>, want: &Arc<Want>,
    mut each: impl FnMut(Step) -> Result<()>,
) -> Result<Vec<u32>> {
    let mut fed: Vec<u32> = Vec::with_capacity(tokens.decode);
    let mut indices = tokens.indices().peekable();
    let mut next = None;
    for pass in tokens.fed() {
        let mut step = runner.step(pass, want)?;
        want.store.trouble()?;
        step.index = indices.next().unwrap_or_default();
        next = choice(&step);
        // Another part of the prefill follows: this one chooses nothing.
        if indices.peek() == Some(&0) {
            step.choice = None;
        }
        each(step)?;
    }
    let forced = if tokens.decode > 0 { forced()? } else { None };
    for (i, index) in indices.enumerate() {
        let token = match forced {
            Some(forced) => forced[i],
            None => next.ok_or_else(|| anyhow::anyhow!("{} gave no logits to choose from", runner.manifest().name))?,
        };
        fed.push(token);
        let mut step = runner.step(&[token], want)?;
        want.store.trouble()?;
        step.index = index;
        next = choice(&step);
        each(step)?;
    }
    Ok(fed)
}

/// The token that the logits after a step choose.
fn choice(step: &Step) -> Option<u32> {
    let logits = step.choice.as_ref()?.get();
    Some(argmax(&logits.data) as u32)
}
