//! Arguments of `qdiff bench`.

use super::FileArgs;
use crate::tasks::bench::BenchRequest;
use clap::Args;
use std::path::PathBuf;

/// `qdiff bench`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff bench --rounds 1")]
pub struct BenchArgs {
    /// What to measure
    #[command(flatten)]
    pub request: BenchRequest,
    /// Where the figures go
    #[command(flatten)]
    pub files: FileArgs,
    /// Print the change against the figures of an earlier --json file (`--measure cuda`)
    #[arg(long, value_name = "FILE", env = "QDIFF_BASELINE", help_heading = "Output")]
    pub baseline: Option<PathBuf>,
}
