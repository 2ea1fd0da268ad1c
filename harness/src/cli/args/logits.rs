//! Arguments of `qdiff logits`.

use super::{FileArgs, SidesArgs};
use clap::Args;

/// `qdiff logits`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff logits --prompt haiku
  qdiff logits --inject lm-head-transposed
  qdiff logits --inject one-column-wrong:column=77 --positions 0-3 --json logits.json
  qdiff logits --subject capture:mine -m model.gguf")]
pub struct LogitsArgs {
    /// The two sides, on which tokens
    #[command(flatten)]
    pub sides: SidesArgs,
    /// Only the logits after these token positions, such as 0,12-15
    #[arg(long, value_name = "LIST", env = "QDIFF_POSITIONS")]
    pub positions: Option<String>,
    /// Where the report goes
    #[command(flatten)]
    pub files: FileArgs,
}
