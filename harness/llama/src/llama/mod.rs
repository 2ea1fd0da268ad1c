//! A model, contexts with taps, tokens, samplers, and ggml's own view of a GGUF file.

pub mod context;
pub mod copy;
pub mod gguf;
mod index;
mod library;
pub mod sampler;

pub use index::Entry;
pub use library::{Library, Load, Loaded, Owner, Plays, Runs, Samples, install};

use crate::arithmetic::LinearRule;
use anyhow::Result;
use library::{LIBRARY, library};
use std::path::Path;

/// Whether this program has llama.cpp.
///
/// # Errors
/// If not: what to do.
pub fn built_in() -> Result<()> {
    library().map(drop)
}

/// The variant of a program whose kernels are its own.
pub const BUILT_IN: &str = "built in";

/// The variant of ggml's CPU backend that runs on this processor; `None` in a program without llama.cpp.
pub fn variant() -> Option<&'static str> {
    Some(LIBRARY.get()?.variant())
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
