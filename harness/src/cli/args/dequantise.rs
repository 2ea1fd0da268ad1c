//! Arguments of `qdiff dequantise`.

use crate::llama::gguf::CopyType;
use clap::Args;
use std::path::PathBuf;

/// `qdiff dequantise`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff dequantise --to f16 --out model-f16.gguf
  qdiff dequantise -m model.gguf --to f32 --out model-f32.gguf")]
pub struct DequantiseArgs {
    /// GGUF file (or QDIFF_MODEL; `./scripts/qdiff` fetches a default)
    #[arg(short, long, env = "QDIFF_MODEL", hide_env_values = true)]
    pub model: Option<PathBuf>,
    /// As what matrices are written; vectors are f32
    #[arg(long, value_enum, default_value_t = CopyType::F16, env = "QDIFF_TO")]
    pub to: CopyType,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
}
