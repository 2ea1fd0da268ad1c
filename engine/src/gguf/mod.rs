//! GGUF, the file format of llama.cpp's models: reading, never writing.
//!
//! The reader is meant for files of any origin: it never panics, and allocates no more than a small multiple of the
//! file's size. It accepts what the pinned llama.cpp's `gguf_init_from_buffer` accepts, except, being stricter:
//!
//! - every tensor's data must lie inside the file (llama.cpp checks this when
//!   it loads the model; padding after the last tensor may be missing);
//! - keys and tensor names must be UTF-8 without NUL bytes (llama.cpp cuts
//!   them at the first NUL when it compares or shows them);
//! - a tensor whose size in bytes exceeds 64 bits is refused wherever the
//!   overflow happens (llama.cpp's `ggml_nbytes` wraps around at a row of 2^56
//!   elements or more).
//!
//! A model in several files is opened by naming the first of them ([`split`]).
//!
//! As there, a bool is true if its byte is not zero, and a string value may hold any bytes.
//!
//! Source of the layout: `gguf_init_from_reader` in gguf.cpp, and
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod error;
mod file;
mod finite;
mod parse;
mod reader;
pub mod split;
mod value;

#[cfg(test)]
pub(crate) mod tests;

pub use error::{GgufError, Problem};
pub use file::{Gguf, Part, TensorInfo};
pub use finite::NotFinite;
pub use value::{ArrayValue, StringArray, Value};

use file::map;
use std::path::Path;

impl Gguf {
    /// Maps the file at `path` into memory, read-only, and parses it; and all others, where it is the first of several.
    ///
    /// # Errors
    /// [`GgufError`], naming the file, if it cannot be read or is refused.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_one(path).and_then(|first| split::join(first, path))
    }

    /// The same of this file alone.
    fn open_one(path: &Path) -> Result<Self, GgufError> {
        let parsed = map(path).and_then(|(map, opened)| {
            let mut gguf = parse::parse(Box::new(map), Some(path))?;
            gguf.parts.iter_mut().for_each(|part| part.opened = Some(opened.clone()));
            Ok(gguf)
        });
        parsed.map_err(|problem| GgufError { file: Some(path.to_owned()), problem })
    }

    /// Parses a file that is already in memory: if it is one of several, that one alone.
    ///
    /// # Errors
    /// [`GgufError`] if it is refused.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        parse::parse(Box::new(bytes), None).map_err(|problem| GgufError { file: None, problem })
    }
}
