//! Arguments of `qdiff logits`.

use super::FileArgs;
use crate::tasks::logits::LogitsRequest;
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
    /// Whose logits
    #[command(flatten)]
    pub request: LogitsRequest,
    /// Where the report goes
    #[command(flatten)]
    pub files: FileArgs,
}
