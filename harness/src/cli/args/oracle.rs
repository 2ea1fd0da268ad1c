//! Arguments of `qdiff verify-oracle`.

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
}
