//! Why a file was refused, in one line, with what to do about it.

use std::path::PathBuf;

/// A GGUF file that could not be read: which, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", file.as_ref().map_or("GGUF in memory".into(), |p| p.to_string_lossy()))]
pub struct GgufError {
    /// The file, if it was opened by path.
    pub file: Option<PathBuf>,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
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
    /// A key or tensor name that is no text: which of them, and the name, escaped.
    #[error("{0} \"{1}\" is not UTF-8 without NUL; convert the model again")]
    Name(&'static str, String),
    /// A tensor of too many elements or bytes to count.
    #[error("tensor {0:?} is too large to exist; fetch the file again")]
    Overflow(String),
    /// A file that was made wrong: in what.
    #[error("{0}; convert the model again")]
    Made(String),
    /// A file that does not hold what was written: in what.
    #[error("{0}; fetch it again")]
    Damaged(String),
    /// A model in several files that do not make one: in what, and the remedy.
    #[error("{0}")]
    Parts(String),
    /// A file that is no GGUF file: its format, and the remedy.
    #[error("{0}")]
    NotGguf(String),
}

/// What to do about a file that starts so.
pub(super) fn remedy(start: &str) -> &'static str {
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
