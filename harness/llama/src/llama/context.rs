//! Contexts of llama.cpp: with taps, and, for measuring speed, as its users have it.

use super::Model;
use super::library::{Plays, Runs};
use crate::capture::{Step, Want};
use crate::room::Room;
use anyhow::Result;
use qdiff_engine::cpu::Row;
use qdiff_engine::model::{Graph, Node};
use qdiff_engine::quant::KvType;
use std::path::Path;
use std::sync::Arc;

/// A context with taps.
pub struct TappedContext(Box<dyn Runs>);

impl TappedContext {
    /// A context with `room`, a step in one ubatch, all its rows as outputs. Every stage of `graph` is tappable, but for those
    /// within flash attention, which is on where values are cached in blocks alone.
    ///
    /// # Errors
    /// If llama.cpp cannot make the context; types of a KV cache that it does not have.
    pub fn new(model: &Arc<Model>, graph: &Graph, room: Room) -> Result<Self> {
        model.loaded.tapped(model.clone(), graph, room).map(Self)
    }

    /// Whether it can hand out the stage `node`.
    pub fn taps(&self, node: &Node) -> bool {
        self.0.taps(node)
    }

    /// Adds the LoRA adapters in these files. `numbers` has the adapter of each sequence: 0 is none, 1 the first. Rows of sequences
    /// with other adapters run one adapter after the other: llama.cpp adds the same ones to all rows of a batch.
    ///
    /// # Errors
    /// If llama.cpp refuses a file.
    pub fn adapt(&mut self, files: &[&Path], numbers: Vec<usize>) -> Result<()> {
        self.0.adapt(files, numbers)
    }

    /// Lets sequence `to`, which is empty, begin with the first `tokens` tokens of sequence `from`, in the same cells.
    ///
    /// # Errors
    /// If `to` is not empty, or `from` has fewer tokens.
    pub fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<()> {
        self.0.share(from, to, tokens)
    }

    /// Takes a sequence back to its first `to` tokens. Cells that no sequence has any more are free.
    ///
    /// # Errors
    /// If the sequence has fewer tokens, or llama.cpp fails.
    pub fn take_back(&mut self, sequence: u32, to: usize) -> Result<()> {
        self.0.take_back(sequence, to)
    }

    /// Removes `tokens` tokens of a sequence from position `from` on, and lowers the positions of those behind them by as many.
    /// llama.cpp rotates their cached keys again when it next runs (K-shift).
    ///
    /// # Errors
    /// If the sequence has no tokens there, or none behind them; a model or a cache of which llama.cpp rotates no keys again.
    pub fn shift(&mut self, sequence: u32, from: usize, tokens: usize) -> Result<()> {
        self.0.shift(sequence, from, tokens)
    }

    /// Runs `tokens` at the next positions, in one ubatch, and gives the wanted stages.
    ///
    /// # Errors
    /// If llama.cpp fails, a stage has another shape than the graph says, or
    /// a wanted stage never appeared: llama.cpp's names drift.
    pub fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step> {
        self.0.step(tokens, want)
    }

    /// Runs rows of any sequences in one ubatch, and gives the wanted stages, a step for each sequence.
    ///
    /// # Errors
    /// As [`Self::step`]; if a sequence does not go on where it ended.
    pub fn rows(&mut self, rows: &[Row], want: &Arc<Want>) -> Result<Vec<Step>> {
        self.0.rows(rows, want)
    }
}

/// Whether llama.cpp reads the caches with flash attention, which it demands for values in blocks. For all else it is off, so
/// that scores and weights can be tapped.
pub fn flash(kv: KvType) -> bool {
    kv.values.block_size() > 1
}

/// A context as llama.cpp's users have it: no taps, flash attention, KV cache in f16.
pub struct Plain(Box<dyn Plays>);

impl Plain {
    /// A context for `n_ctx` tokens, at most `n_step` of them in a step.
    ///
    /// # Errors
    /// If llama.cpp cannot make it.
    pub fn new(model: &Arc<Model>, n_ctx: usize, n_step: usize) -> Result<Self> {
        Self::of_sequences(model, n_ctx, n_step, 1)
    }

    /// The same for so many sequences of `n_ctx` tokens each, each with a cache of its own.
    ///
    /// # Errors
    /// If llama.cpp cannot make it.
    pub fn of_sequences(model: &Arc<Model>, n_ctx: usize, n_step: usize, sequences: usize) -> Result<Self> {
        model.loaded.plain(model.clone(), n_ctx, n_step, sequences).map(Self)
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Runs `tokens` at the next positions, for the logits of the last, and waits for them.
    ///
    /// # Errors
    /// If llama.cpp fails.
    pub fn step(&mut self, tokens: &[u32]) -> Result<()> {
        self.0.step(tokens)
    }

    /// Runs rows of its sequences, for the logits of the last of each sequence, and waits for them.
    ///
    /// # Errors
    /// If llama.cpp fails.
    pub fn rows(&mut self, rows: &[Row]) -> Result<()> {
        self.0.rows(rows)
    }
}
