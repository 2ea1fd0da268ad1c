//! Arguments of `qdiff verify-oracle`.

use super::OutputArgs;
use crate::tasks::verify::VerifyRequest;
use clap::Args;

/// `qdiff verify-oracle`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff verify-oracle -n 2")]
pub struct OracleArgs {
    /// What to run
    #[command(flatten)]
    pub request: VerifyRequest,
    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,
}
