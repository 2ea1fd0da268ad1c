//! Arguments of `qdiff inspect`.

use super::JsonArgs;
use crate::tasks::request::ModelArgument;
use clap::Args;

/// `qdiff inspect`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff inspect model.gguf
  qdiff inspect model.gguf --json model.json")]
pub struct InspectArgs {
    /// The file
    #[command(flatten)]
    pub model: ModelArgument,
    /// JSON
    #[command(flatten)]
    pub json: JsonArgs,
}
