//! Why a file was refused, in one line, with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::quant::GgmlType;

/// A GGUF file that could not be read: which, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.as_ref().map_or("GGUF in memory".into(), |p| p.to_string_lossy()))]
pub struct GgufError {
    /// The file, if it was opened by path.
    pub file: Option<PathBuf>,
    /// What is wrong with it.
    pub problem: Problem,
}

impl GgufError {
    pub(super) fn new(file: Option<&Path>, problem: Problem) -> Self {
        Self { file: file.map(Path::to_owned), problem }
    }
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Nothing lies at the path.
    #[error("no such file; check the path")]
    Missing,
    /// The path is a directory.
    #[error("is a directory; name a .gguf file in it")]
    Directory,
    /// The path is a pipe, a device or the like.
    #[error("is not a regular file; save it to disk first")]
    NotAFile,
    /// The system refused.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// Zero bytes long.
    #[error("is empty; fetch it again")]
    Empty,
    /// The magic is not "GGUF".
    #[error("is not a GGUF file: it starts with \"{start}\"; {}", remedy(.start))]
    NotGguf {
        /// The first bytes, escaped.
        start: String,
    },
    /// Ends before what its header promises.
    #[error("is truncated: {len} bytes, at least {needed} expected (for {what}); fetch it again")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes that the file would need.
        needed: u64,
        /// Bytes that it has.
        len: u64,
    },
    /// A version that is not 2 or 3.
    #[error("is GGUF version {0}, but only 2 and 3 are supported; convert the model again")]
    Version(u32),
    /// The version's bytes are swapped.
    #[error("is a big-endian GGUF file; convert the model again without --bigendian")]
    BigEndian,
    /// A negative number of tensors or keys.
    #[error("has an impossible number of {what}, {n}; fetch it again")]
    Count {
        /// "tensors" or "metadata entries".
        what: &'static str,
        /// The number, as signed.
        n: i64,
    },
    /// A string above llama.cpp's limit of 2^30 bytes.
    #[error("has a string of {len} bytes, above the limit of 2^30; fetch it again")]
    StringLength {
        /// Its stated length.
        len: u64,
    },
    /// An array above llama.cpp's limit of 2^30 elements.
    #[error("key {key:?} is an array of {len} elements, above the limit of 2^30; fetch it again")]
    ArrayLength {
        /// The key.
        key: String,
        /// Its stated length.
        len: u64,
    },
    /// An empty key.
    #[error("metadata entry {0} has an empty key; convert the model again")]
    EmptyKey(u64),
    /// A key or tensor name that is no text.
    #[error("{what} \"{name}\" is not UTF-8 without NUL; convert the model again")]
    Name {
        /// "key" or "tensor name".
        what: &'static str,
        /// The name, escaped.
        name: String,
    },
    /// A key that occurs twice.
    #[error("key {0:?} occurs twice; convert the model again")]
    DuplicateKey(String),
    /// A value type that does not exist, or an array of arrays.
    #[error("key {key:?} has invalid type {id}{}; convert the model again", if *.id == 9 { " (an array in an array)" } else { "" })]
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        id: u32,
    },
    /// `general.alignment` is not a u32.
    #[error("general.alignment is of type {0} but must be u32; convert the model again")]
    AlignmentType(&'static str),
    /// `general.alignment` is not a power of two.
    #[error("general.alignment is {0} but must be a power of 2; convert the model again")]
    Alignment(u32),
    /// A tensor name of 64 bytes or more.
    #[error("tensor name \"{name}\" has {len} bytes, above the limit of 63; convert the model again")]
    NameLength {
        /// Its first bytes, escaped.
        name: String,
        /// Its stated length.
        len: u64,
    },
    /// A tensor name that occurs twice.
    #[error("tensor {0:?} occurs twice; convert the model again")]
    DuplicateTensor(String),
    /// More than four dimensions.
    #[error("tensor {name:?} has {n} dimensions, above the limit of 4; convert the model again")]
    Dimensions {
        /// The tensor.
        name: String,
        /// Its stated number of dimensions.
        n: u32,
    },
    /// A negative dimension.
    #[error("tensor {name:?} has a negative dimension, {n}; convert the model again")]
    NegativeDimension {
        /// The tensor.
        name: String,
        /// The dimension.
        n: i64,
    },
    /// Too many elements or bytes to count.
    #[error("tensor {0:?} is too large to exist; fetch the file again")]
    Overflow(String),
    /// A type that does not exist or was removed from llama.cpp.
    #[error("tensor {name:?} has unknown or removed type {id}; convert the model again")]
    TensorType {
        /// The tensor.
        name: String,
        /// The type's number.
        id: u32,
    },
    /// Rows that are no whole blocks.
    #[error("tensor {name:?} has rows of {row}, no multiple of {ty}'s block of {}; convert the model again", .ty.block_size())]
    Row {
        /// The tensor.
        name: String,
        /// Elements per row.
        row: u64,
        /// Its type.
        ty: GgmlType,
    },
    /// Tensor data that does not follow the previous tensor's.
    #[error("tensor {name:?} is at offset {offset}, expected {expected}; convert the model again")]
    Offset {
        /// The tensor.
        name: String,
        /// Its stated offset within the data section.
        offset: u64,
        /// Where the previous tensor, padded, ends.
        expected: u64,
    },
}

/// What to do about a file that starts so.
fn remedy(start: &str) -> &'static str {
    if start.starts_with("version ") {
        "this is a Git LFS pointer, run `git lfs pull`"
    } else if start.starts_with('<') {
        "this is a web page, fetch the file itself"
    } else if start.starts_with("PK") {
        "this is an archive, perhaps a PyTorch model: convert it with llama.cpp's convert_hf_to_gguf.py"
    } else {
        "fetch it again, or convert the model with llama.cpp's convert_hf_to_gguf.py"
    }
}
