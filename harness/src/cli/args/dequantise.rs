//! Arguments of `qdiff dequantise`.

use crate::tasks::dequantise::DequantiseRequest;
use clap::Args;

/// `qdiff dequantise`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff dequantise --to f16 --out model-f16.gguf
  qdiff dequantise -m model.gguf --to f32 --out model-f32.gguf")]
pub struct DequantiseArgs {
    /// What to write
    #[command(flatten)]
    pub request: DequantiseRequest,
}
