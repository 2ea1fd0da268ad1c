//! Arguments of `qdiff weights`.

use super::FileArgs;
use crate::tasks::weights::WeightsRequest;
use clap::Args;

/// `qdiff weights`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff weights model.gguf
  qdiff weights model.gguf --inject nibble-order@L00.ffn_down
  qdiff weights model.gguf --inject tensor-not-loaded@blk.1.attn_q.weight --json weights.json
  qdiff weights damaged.gguf --against model.gguf")]
pub struct WeightsArgs {
    /// Whose weights
    #[command(flatten)]
    pub request: WeightsRequest,
    /// Where the report goes
    #[command(flatten)]
    pub files: FileArgs,
}
