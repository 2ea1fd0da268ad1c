//! GGUF, the file format of llama.cpp's models: reading, never writing.
//!
//! The reader is meant for files of any origin: it never panics, and allocates
//! no more than a small multiple of the file's size. It accepts what the
//! pinned llama.cpp's `gguf_init_from_buffer` accepts, except, being stricter:
//!
//! - every tensor's data must lie inside the file (llama.cpp checks this when
//!   it loads the model; padding after the last tensor may be missing);
//! - keys and tensor names must be UTF-8 without NUL bytes (llama.cpp cuts
//!   them at the first NUL when it compares or shows them);
//! - a tensor whose size in bytes exceeds 64 bits is refused wherever the
//!   overflow happens (llama.cpp's `ggml_nbytes` wraps around at a row of 2^56
//!   elements or more).
//!
//! As there, a bool is true if its byte is not zero, and a string value may
//! hold any bytes.
//!
//! Source of the layout: `gguf_init_from_reader` in gguf.cpp, and
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod error;
mod mmap;
mod parse;
mod reader;
mod value;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

pub use error::{GgufError, Problem};
pub use value::{ArrayValue, Bytes, StringArray, Value};

use crate::quant::GgmlType;

/// One tensor's entry in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name; unique in the file.
    pub name: String,
    /// Elements per dimension in ggml's order: `dims[0]` is contiguous. At most four; none for a scalar.
    pub dims: Vec<u64>,
    /// The format of its elements.
    pub ggml_type: GgmlType,
    /// Bytes from the start of the data section.
    pub offset: u64,
    /// Bytes, without padding.
    pub size: u64,
}

impl TensorInfo {
    /// All elements; 0 if any dimension is.
    pub fn elements(&self) -> u64 {
        // No overflow: the parser checked the product of a tensor without a zero.
        if self.dims.contains(&0) { 0 } else { self.dims.iter().product() }
    }

    /// Elements per row: `dims[0]`, or 1 for a scalar.
    pub fn row_len(&self) -> usize {
        self.dims.first().map_or(1, |n| *n as usize)
    }

    /// Rows: the product of the dimensions after the first; 0 in an empty tensor.
    pub fn rows(&self) -> usize {
        (self.elements() / self.dims.first().copied().unwrap_or(1).max(1)) as usize
    }
}

/// The bytes of a file, wherever they lie.
enum Storage {
    Mapped(mmap::Mapping),
    Owned(Vec<u8>),
}

impl Storage {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(mapping) => mapping.bytes(),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A GGUF file, parsed and checked; its tensor data stays where it is.
pub struct Gguf {
    path: Option<PathBuf>,
    storage: Storage,
    header: parse::Header,
    keys: HashMap<String, usize>,
    names: HashMap<String, usize>,
}

impl Gguf {
    /// Maps the file at `path` into memory, read-only, and parses it.
    ///
    /// # Errors
    /// [`GgufError`], naming the file, if it cannot be read or is refused.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::map(path)
            .and_then(|mapping| Self::new(Some(path.to_owned()), Storage::Mapped(mapping)))
            .map_err(|problem| GgufError::new(Some(path), problem))
    }

    /// Parses a file that is already in memory.
    ///
    /// # Errors
    /// [`GgufError`] if it is refused.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::new(None, Storage::Owned(bytes)).map_err(|problem| GgufError::new(None, problem))
    }

    fn map(path: &Path) -> Result<mmap::Mapping, Problem> {
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Problem::Missing,
            _ => Problem::Unreadable(error),
        })?;
        if metadata.is_dir() {
            return Err(Problem::Directory);
        }
        if !metadata.is_file() {
            return Err(Problem::NotAFile);
        }
        if metadata.len() == 0 {
            return Err(Problem::Empty);
        }
        mmap::Mapping::open(path).map_err(Problem::Unreadable)
    }

    fn new(path: Option<PathBuf>, storage: Storage) -> Result<Self, Problem> {
        let (header, keys, names) = parse::parse(storage.bytes())?;
        Ok(Self { path, storage, header, keys, names })
    }

    /// Where the file lies, if it was opened by path.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// The alignment of tensor data, in bytes: a power of two.
    pub fn alignment(&self) -> u64 {
        self.header.alignment
    }

    /// Where the data section starts, in bytes from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.header.data_offset
    }

    /// The whole file's size in bytes.
    pub fn file_len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// All keys and values, in the file's order.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.header.metadata
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|i| &self.header.metadata[*i].1)
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.header.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.names.get(name).map(|i| &self.header.tensors[*i])
    }

    /// The bytes of one of this file's tensors: [`TensorInfo::size`] of them.
    ///
    /// # Panics
    /// If `t` is of another file and does not fit into this one.
    pub fn data(&self, t: &TensorInfo) -> &[u8] {
        let start = (self.header.data_offset + t.offset) as usize;
        &self.bytes()[start..][..t.size as usize]
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gguf")
            .field("path", &self.path)
            .field("version", &self.version())
            .field("metadata", &self.metadata().len())
            .field("tensors", &self.tensors().len())
            .finish_non_exhaustive()
    }
}
