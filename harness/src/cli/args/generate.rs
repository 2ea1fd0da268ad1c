//! Arguments of `qdiff generate`.

use super::FileArgs;
use crate::tasks::generate::GenerateRequest;
use clap::Args;

/// `qdiff generate`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Without --temp both sides take the most probable token. With it they draw, with
llama.cpp's defaults for the other samplers and the same seed.

Exit codes: 0 the same text, or other text by a flip that rounding made with
every stage in order; 1 a stage is wrong; 2 trouble; 3 not everything judged.

Examples:
  qdiff generate --prompt haiku -n 64
  qdiff generate --prompt 'Tell me a joke' -n 64 --temp 0.8 --seed 7
  qdiff generate --prompt haiku -n 32 --inject rope-base:base=10000@L07
  qdiff generate --nonce -n 32")]
pub struct GenerateArgs {
    /// What to generate
    #[command(flatten)]
    pub request: GenerateRequest,
    /// Where the report goes
    #[command(flatten)]
    pub files: FileArgs,
}
