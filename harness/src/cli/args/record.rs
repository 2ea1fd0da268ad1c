//! Arguments of `qdiff record`.

use crate::tasks::record::RecordRequest;
use clap::Args;

/// `qdiff record`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff record --runner cpu --out golden
  qdiff run --subject capture:golden
  qdiff record --runner llama --like golden --out theirs
  qdiff compare golden theirs")]
pub struct RecordArgs {
    /// What to record
    #[command(flatten)]
    pub request: RecordRequest,
}
