//! What llama.cpp does for qdiff, as the crate that calls it says.

use super::index::Index;
use crate::arithmetic::LinearRule;
use crate::capture::{Step, Want};
use crate::room::Room;
use anyhow::{Context as _, Result};
use qdiff_engine::cpu::Row;
use qdiff_engine::model::{Graph, Node, WeightSource};
use qdiff_engine::quant::GgmlType;
use qdiff_engine::sampler::Step as Sampling;
use std::any::Any;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// What keeps a loaded model.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// What is loaded of a model, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// All of it for the CPU, weights mapped and not repacked.
    Cpu,
    /// All of it, every layer on the GPU through ggml's CUDA backend.
    Cuda,
    /// Only the vocabulary: for tokens, without weights.
    Vocabulary,
}

/// llama.cpp, as a program has it that was built with it.
pub trait Library: Send + Sync {
    /// As [`cuda_backend`](super::cuda_backend).
    ///
    /// # Errors
    /// As there.
    fn cuda_backend(&self) -> Result<()>;

    /// As [`variant`](super::variant).
    fn variant(&self) -> &'static str;

    /// As [`dot_types`](super::dot_types).
    fn dot_types(&self) -> Vec<LinearRule>;

    /// Loads a model.
    ///
    /// # Errors
    /// As [`Model::load`](super::Model::load).
    fn load(&self, path: &Path, what: Load) -> Result<Box<dyn Loaded>>;

    /// The index of a file, which is number `part` of a model.
    ///
    /// # Errors
    /// As [`gguf::read`](super::gguf::read).
    fn index(&self, index: &mut Index, part: usize, path: &Path) -> Result<()>;

    /// As [`gguf::to_float`](super::gguf::to_float).
    fn to_float(&self, ty: u32, bytes: &[u8], out: &mut [f32]);

    /// As [`copy::write_copy`](super::copy::write_copy), of the values of `weights`, the first file of the model and its index.
    ///
    /// # Errors
    /// As there.
    fn write_copy(&self, weights: &dyn WeightSource, of: (&Path, &Index), ty: GgmlType, target: &Path)
    -> Result<usize>;

    /// A chain of llama.cpp's samplers, for a vocabulary of `tokens`.
    fn sampler(&self, chain: &[Sampling], tokens: usize) -> Box<dyn Samples>;
}

/// A model that llama.cpp has loaded.
pub trait Loaded: Send + Sync {
    /// As [`Model::metadata`](super::Model::metadata).
    fn metadata(&self, key: &str) -> Option<String>;

    /// As [`Model::n_tokens`](super::Model::n_tokens).
    fn n_tokens(&self) -> usize;

    /// As [`Model::tokenize`](super::Model::tokenize).
    ///
    /// # Errors
    /// As there.
    fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<u32>>;

    /// As [`Model::piece_bytes`](super::Model::piece_bytes).
    fn piece_bytes(&self, token: u32, special: bool) -> Option<Vec<u8>>;

    /// As [`Model::ends_generation`](super::Model::ends_generation).
    fn ends_generation(&self, token: u32) -> bool;

    /// A context with taps, which keeps `owner`, in which this is.
    ///
    /// # Errors
    /// As [`context::TappedContext::new`](super::context::TappedContext::new).
    fn tapped(&self, owner: Owner, graph: &Graph, room: Room) -> Result<Box<dyn Runs>>;

    /// A context without, which keeps `owner`, in which this is.
    ///
    /// # Errors
    /// As [`context::Plain::new`](super::context::Plain::new).
    fn plain(&self, owner: Owner, n_ctx: usize, n_step: usize, sequences: usize) -> Result<Box<dyn Plays>>;
}

/// What a context with taps does.
pub trait Runs {
    /// As [`TappedContext::taps`](super::context::TappedContext::taps).
    fn taps(&self, node: &Node) -> bool;

    /// As [`TappedContext::adapt`](super::context::TappedContext::adapt).
    ///
    /// # Errors
    /// As there.
    fn adapt(&mut self, files: &[&Path], numbers: Vec<usize>) -> Result<()>;

    /// As [`TappedContext::share`](super::context::TappedContext::share).
    ///
    /// # Errors
    /// As there.
    fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<()>;

    /// As [`TappedContext::take_back`](super::context::TappedContext::take_back).
    ///
    /// # Errors
    /// As there.
    fn take_back(&mut self, sequence: u32, to: usize) -> Result<()>;

    /// As [`TappedContext::shift`](super::context::TappedContext::shift).
    ///
    /// # Errors
    /// As there.
    fn shift(&mut self, sequence: u32, from: usize, tokens: usize) -> Result<()>;

    /// As [`TappedContext::step`](super::context::TappedContext::step).
    ///
    /// # Errors
    /// As there.
    fn step(&mut self, tokens: &[u32], want: &Arc<Want>) -> Result<Step>;

    /// As [`TappedContext::rows`](super::context::TappedContext::rows).
    ///
    /// # Errors
    /// As there.
    fn rows(&mut self, rows: &[Row], want: &Arc<Want>) -> Result<Vec<Step>>;
}

/// What a context without taps does.
pub trait Plays {
    /// As [`Plain::clear`](super::context::Plain::clear).
    fn clear(&mut self);

    /// As [`Plain::step`](super::context::Plain::step).
    ///
    /// # Errors
    /// As there.
    fn step(&mut self, tokens: &[u32]) -> Result<()>;

    /// As [`Plain::rows`](super::context::Plain::rows).
    ///
    /// # Errors
    /// As there.
    fn rows(&mut self, rows: &[Row]) -> Result<()>;
}

/// What a chain of llama.cpp's samplers does.
pub trait Samples {
    /// As [`LlamaSampler::last_of_equals`](super::sampler::LlamaSampler::last_of_equals).
    fn last_of_equals(&mut self);

    /// As [`LlamaSampler::accept`](super::sampler::LlamaSampler::accept).
    fn accept(&mut self, token: u32);

    /// As [`LlamaSampler::sample`](super::sampler::LlamaSampler::sample).
    fn sample(&mut self, logits: &[f32]) -> u32;
}

pub(super) static LIBRARY: OnceLock<&'static dyn Library> = OnceLock::new();

/// Gives this program its llama.cpp. A second call changes nothing.
pub fn install(library: &'static dyn Library) {
    LIBRARY.get_or_init(|| library);
}

/// This program's llama.cpp.
pub(super) fn library() -> Result<&'static dyn Library> {
    LIBRARY.get().copied().context(
        "this qdiff was built without llama.cpp; build it with its default features (cargo build --release -p qdiff)",
    )
}
