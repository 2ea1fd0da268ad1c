//! Arguments of `qdiff sweep`.

use super::FileArgs;
use crate::tasks::sweep::SweepRequest;
use clap::Args;

/// `qdiff sweep`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff sweep --prompt haiku
  qdiff sweep --prompt code -n 16 --sizes 1,2,3,5,8
  qdiff sweep --prompt long --length 2000 -n 0 --sizes 64 --layers 0 --positions 0,1,63,64,1999")]
pub struct SweepArgs {
    /// What to sweep
    #[command(flatten)]
    pub request: SweepRequest,
    /// Where the report goes
    #[command(flatten)]
    pub files: FileArgs,
}
