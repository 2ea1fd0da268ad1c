//! A model, contexts with taps, tokens, samplers, and ggml's own view of a GGUF file.

pub mod context;
pub mod copy;
pub mod gguf;
pub mod sampler;

use crate::arithmetic::LinearRule;
use crate::room::Room;
use anyhow::{Context as _, Result};
use context::{Plays, Runs};
use qdiff_engine::model::Graph;
use qdiff_engine::quant::GgmlType;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// llama.cpp, as a program has it that was built with it.
pub trait Library: Send + Sync {
    /// As [`cuda_backend`].
    ///
    /// # Errors
    /// As there.
    fn cuda_backend(&self) -> Result<()>;

    /// As [`dot_types`].
    fn dot_types(&self) -> Vec<LinearRule>;

    /// Loads a model.
    ///
    /// # Errors
    /// As [`Model::load`].
    fn load(&self, path: &Path, what: Load) -> Result<Box<dyn Loaded>>;

    /// The index of a file, which is number `part` of a model.
    ///
    /// # Errors
    /// As [`gguf::Index::read`].
    fn index(&self, index: &mut gguf::Index, part: usize, path: &Path) -> Result<()>;

    /// As [`gguf::to_float`].
    fn to_float(&self, ty: u32, bytes: &[u8], out: &mut [f32]);

    /// As [`copy::write_copy`].
    ///
    /// # Errors
    /// As there.
    fn write_copy(&self, weights: &gguf::GgmlWeights<'_>, ty: GgmlType, target: &Path) -> Result<usize>;

    /// A chain of llama.cpp's samplers, for a vocabulary of `tokens`.
    fn sampler(&self, chain: &[qdiff_engine::sampler::Step], tokens: usize) -> Box<dyn sampler::Samples>;
}

/// A model that llama.cpp has loaded.
pub trait Loaded: Send + Sync {
    /// As [`Model::metadata`].
    fn metadata(&self, key: &str) -> Option<String>;

    /// As [`Model::n_tokens`].
    fn n_tokens(&self) -> usize;

    /// As [`Model::tokenize`].
    ///
    /// # Errors
    /// As there.
    fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<u32>>;

    /// As [`Model::piece_bytes`].
    fn piece_bytes(&self, token: u32, special: bool) -> Option<Vec<u8>>;

    /// As [`Model::ends_generation`].
    fn ends_generation(&self, token: u32) -> bool;

    /// A context with taps, which keeps `owner`: the model that this is part of.
    ///
    /// # Errors
    /// As [`context::TappedContext::new`].
    fn tapped(&self, owner: Arc<Model>, graph: &Graph, room: Room) -> Result<Box<dyn Runs>>;

    /// A context without, which keeps `owner`: the model that this is part of.
    ///
    /// # Errors
    /// As [`context::Plain::new`].
    fn plain(&self, owner: Arc<Model>, n_ctx: usize, n_step: usize) -> Result<Box<dyn Plays>>;
}

static LIBRARY: OnceLock<&'static dyn Library> = OnceLock::new();

/// Gives this program its llama.cpp. A second call changes nothing.
pub fn install(library: &'static dyn Library) {
    LIBRARY.get_or_init(|| library);
}

/// This program's llama.cpp.
fn library() -> Result<&'static dyn Library> {
    LIBRARY.get().copied().context(
        "this qdiff was built without llama.cpp; build it with its default features (cargo build --release -p qdiff)",
    )
}

/// Whether this program has llama.cpp.
///
/// # Errors
/// If not: what to do.
pub fn built_in() -> Result<()> {
    library().map(drop)
}

/// What llama.cpp's CPU turns activations into, per weight format: asked of the very library that runs.
pub fn dot_types() -> Vec<LinearRule> {
    LIBRARY.get().map_or_else(Vec::new, |library| library.dot_types())
}

/// Loads ggml's CUDA backend once, from the library that `QDIFF_GGML_CUDA`
/// names: the ordinary build of llama.cpp has none.
///
/// # Errors
/// As [`built_in`]; if none is named, or ggml cannot load it.
pub fn cuda_backend() -> Result<()> {
    library()?.cuda_backend()
}

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

/// A loaded model.
pub struct Model {
    loaded: Box<dyn Loaded>,
    /// Whether its layers are on a GPU.
    pub on_gpu: bool,
}

impl Model {
    /// Loads `path`.
    ///
    /// # Errors
    /// As [`built_in`]; if llama.cpp refuses the file, or there is no CUDA backend and it takes one.
    pub fn load(path: &Path, what: Load) -> Result<Self> {
        Ok(Self { loaded: library()?.load(path, what)?, on_gpu: what == Load::Cuda })
    }

    /// A metadata value as llama.cpp prints it.
    pub fn metadata(&self, key: &str) -> Option<String> {
        self.loaded.metadata(key)
    }

    /// Number of tokens, padding included.
    pub fn n_tokens(&self) -> usize {
        self.loaded.n_tokens()
    }

    /// Splits text that may be none into tokens; control tokens in it are recognised only if `parse_special`.
    ///
    /// # Errors
    /// If llama.cpp refuses the text.
    pub fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<u32>> {
        self.loaded.tokenize(text, parse_special)
    }

    /// The text of one token, special tokens spelled out.
    pub fn piece(&self, token: u32) -> String {
        match self.piece_bytes(token, true) {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            None => format!("<{token}>"),
        }
    }

    /// The bytes that a token prints, those of control tokens only if `special`; `None` beyond the vocabulary.
    pub fn piece_bytes(&self, token: u32, special: bool) -> Option<Vec<u8>> {
        self.loaded.piece_bytes(token, special)
    }

    /// Whether the token ends a generation.
    pub fn ends_generation(&self, token: u32) -> bool {
        self.loaded.ends_generation(token)
    }
}
