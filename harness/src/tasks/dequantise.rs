//! The same model in plain floats, to tell a bug of a block format from one of the mathematics.

use super::request::ModelRequest;
use crate::cleanup;
use crate::formats::CopyType;
use crate::llama::gguf::write_copy;
use crate::report::file;
use anyhow::{Context as _, Result};
use clap::Args;
use std::path::PathBuf;

/// Which model to write how.
#[derive(Clone, Debug, Args)]
pub struct DequantiseRequest {
    #[command(flatten)]
    pub model: ModelRequest,
    /// As what matrices are written; vectors are f32
    #[arg(long, value_enum, default_value_t = CopyType::F16, env = "QDIFF_TO", help_heading = "Output")]
    pub to: CopyType,
    /// File to write
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub out: PathBuf,
}

/// Writes the copy; gives its size in bytes.
///
/// # Errors
/// A file that cannot be written.
pub fn dequantise(request: &DequantiseRequest) -> Result<u64> {
    file::check(&request.out, "--out")?;
    let opened = request.model.open()?;
    let weights = opened.ggml()?;
    let problem = || format!("cannot write {}; choose a folder with room", request.out.display());
    // Written beside, under a name of nobody else, and renamed.
    let part = file::temporary(&request.out)?;
    let _cleanup = cleanup::guard(part.path());
    write_copy(&weights, request.to, part.path()).with_context(problem)?;
    part.persist(&request.out).map_err(|e| e.error).with_context(problem)?;
    Ok(std::fs::metadata(&request.out)?.len())
}
