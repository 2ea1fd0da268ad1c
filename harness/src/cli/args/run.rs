//! Arguments of `qdiff run`.

use super::{OutputArgs, SidesArgs};
use crate::cli::batch::Shard;
use clap::Args;
use std::path::PathBuf;

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
    /// The two sides, on which tokens
    #[command(flatten)]
    pub sides: SidesArgs,
    /// Many prompts, with the model loaded once: a file with a prompt a line, each as --prompt takes it, or a folder of .txt files
    #[arg(long, value_name = "FILE|DIR")]
    pub prompts: Option<PathBuf>,
    /// Only this part of --prompts, such as 1/4: for CI matrices
    #[arg(long, value_name = "PART/PARTS", requires = "prompts")]
    pub shard: Option<Shard>,
    /// Where --prompts writes a JSON report per prompt, which `qdiff report` puts together
    #[arg(
        long,
        value_name = "DIR",
        requires = "prompts",
        default_value_if("prompts", clap::builder::ArgPredicate::IsPresent, "qdiff-report")
    )]
    pub json_dir: Option<PathBuf>,
    /// Only stages that match the pattern, such as 'L07.*' or 'attn_*'; repeatable
    #[arg(long, value_name = "GLOB", value_delimiter = ',', env = "QDIFF_STAGES")]
    pub stages: Vec<String>,
    /// Tap only these stages of the subject, such as 'L*.layer_out,logits': the rest runs as it does untapped, and is
    /// judged within the segment that ends in the next tapped stage; repeatable
    #[arg(long, value_name = "GLOB", value_delimiter = ',', conflicts_with = "repeat", env = "QDIFF_TAPS")]
    pub taps: Vec<String>,
    /// Only these layers, such as 0,5-7
    #[arg(long, value_name = "LIST", env = "QDIFF_LAYERS")]
    pub layers: Option<String>,
    /// Only these token positions, such as 0,12-15
    #[arg(long, value_name = "LIST", env = "QDIFF_POSITIONS")]
    pub positions: Option<String>,
    /// Allow a stage this relative L2 per row instead of its bound; repeatable,
    /// the last rule that matches wins
    #[arg(long, value_name = "GLOB=NUMBER", env = "QDIFF_TOLERANCE")]
    pub tolerance: Vec<String>,
    /// Run the subject so often first, and compare the runs bit by bit: a race shows before all else
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), env = "QDIFF_REPEAT")]
    pub repeat: u16,
    /// Where the report goes
    #[command(flatten)]
    pub output: OutputArgs,
    /// Exit with 125 instead of 2 and 3, for `git bisect run`
    #[arg(long)]
    pub bisect: bool,
}
