//! The same model in another format: in plain floats, to tell a bug of a block format from one of the mathematics; in blocks,
//! to try a format on real weights.

use super::request::ModelRequest;
use super::synth::formats;
use crate::cleanup;
use crate::llama::copy::write_copy;
use crate::number::counted;
use crate::report::file;
use anyhow::{Context as _, Result};
use clap::Args;
use qdiff_engine::quant::GgmlType;
use std::path::PathBuf;

/// Which model to write how.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("model", |a| a.help(super::request::GGUF)))]
pub struct DequantiseRequest {
    #[command(flatten)]
    pub model: ModelRequest,
    /// Format of the matrices; a matrix whose rows are not whole blocks of the format stays as it is. Vectors are F32. A
    /// quantiser that needs an importance matrix gets one in which all columns weigh the same
    #[arg(
        long, value_name = "FORMAT", ignore_case = true, default_value = "f16", value_parser = formats(), env = "QDIFF_TO",
        help_heading = "Output"
    )]
    pub to: GgmlType,
    /// File to write
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub out: PathBuf,
}

/// Writes the copy; says what was written.
///
/// # Errors
/// A file that cannot be written.
pub fn dequantise(request: &DequantiseRequest) -> Result<String> {
    file::check(&request.out, "--out")?;
    let opened = request.model.open()?;
    let weights = opened.ggml()?;
    let out = request.out.display();
    let problem = || format!("cannot write {out}; choose a folder with room");
    // Written beside, under a name of nobody else, and renamed.
    let part = file::temporary(&request.out)?;
    let _cleanup = cleanup::guard(part.path());
    let kept = write_copy(&weights, request.to, part.path()).with_context(problem)?;
    part.persist(&request.out).map_err(|e| e.error).with_context(problem)?;
    let kept = match kept {
        0 => String::new(),
        n => format!("; {} kept as stored: rows are not whole blocks of {}", counted(n, "matrix tensor"), request.to),
    };
    Ok(format!("wrote {out}, {} bytes{kept}\n", std::fs::metadata(&request.out)?.len()))
}
