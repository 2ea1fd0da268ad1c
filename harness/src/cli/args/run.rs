//! Arguments of `qdiff run`.

use super::OutputArgs;
use crate::tasks::run::RunRequest;
use clap::Args;

/// `qdiff run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  qdiff run --prompt haiku
  qdiff run --prompt 'Why is the sky blue?' -n 16
  qdiff run --prompt @notes.txt --raw --stages 'attn_*' --layers 0,5-7 --full
  qdiff run --taps 'L*.layer_out,logits'
  qdiff run --inject rope-base:base=10000@L07
  qdiff run --tolerance 'L*.ffn_down=1e-3' --report report.html --report junit.xml")]
pub struct RunArgs {
    /// What to run and judge
    #[command(flatten)]
    pub request: RunRequest,
    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,
    /// Exit with 125 instead of 2 and 3, for `git bisect run`
    #[arg(long, help_heading = "Output")]
    pub bisect: bool,
}
