//! Arguments of `qdiff bench`.

use super::JsonArgs;
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
    /// JSON, of `--measure cuda`
    #[command(flatten)]
    pub json: JsonArgs,
    /// Print the change against the figures of an earlier --json file (`--measure cuda`)
    #[arg(long, value_name = "FILE", env = "QDIFF_BASELINE", help_heading = "Output")]
    pub baseline: Option<PathBuf>,
}
