//! The arguments of `qdiff run`.

use super::confirm::ConfirmRequest;
use super::request::{AdaptersRequest, FilterRequest, RanksRequest, SequencesRequest, ToleranceRequest};
use super::sides::SidesRequest;
use super::values;
use crate::capture::container;
use crate::runners::Source;
use crate::shard::Shard;
use clap::Args;
use std::path::PathBuf;

/// Folder of reports where none is named.
pub const REPORTS: &str = "qdiff-report";

/// What to run and judge.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What is judged")]
pub struct RunRequest {
    #[command(flatten)]
    pub sides: SidesRequest,
    #[command(flatten)]
    pub sequences: SequencesRequest,
    #[command(flatten)]
    pub adapters: AdaptersRequest,
    #[command(flatten)]
    pub ranks: RanksRequest,
    #[command(flatten)]
    pub batch: BatchRequest,
    #[command(flatten)]
    pub filter: FilterRequest,
    #[command(flatten)]
    pub tolerance: ToleranceRequest,
    /// Tap only these stages of the subject, such as 'L*.layer_out,logits': other stages run untapped, and are judged
    /// as part of the next tapped stage; repeatable
    #[arg(long, value_name = "GLOB", value_delimiter = ',', conflicts_with = "repeat", env = "QDIFF_TAPS",
          value_parser = values::STAGE, hide_possible_values = true)]
    pub taps: Vec<String>,
    /// Run the subject N times and compare the runs bit by bit, before any other verdict. By default a subject that
    /// diverges runs once more on the same tokens if it took less than 30 s; 0 skips that
    #[arg(long, value_name = "N", env = "QDIFF_REPEAT")]
    pub repeat: Option<u16>,
    #[command(flatten)]
    pub confirm: ConfirmRequest,
}

impl RunRequest {
    /// Whether there is a report for each of several runs.
    pub fn several(&self) -> bool {
        let recorded = [Some(&self.sides.subject), self.sides.reference.as_ref()];
        let sequences = |source: &Source| match source {
            Source::Recorded(folder) => {
                Some(container::any_manifest(folder).is_ok_and(|manifest| manifest.sequences.is_some()))
            }
            Source::Auto | Source::Live(_) | Source::Nobody => None,
        };
        let planned: Vec<bool> = recorded.into_iter().flatten().filter_map(sequences).collect();
        // Beside a capture without a plan, a plan is of one sequence.
        let several = !planned.is_empty() && !planned.contains(&false);
        self.batch.prompts.is_some() || self.sequences.sequences.is_some() || several
    }
}

/// Many prompts, with the model loaded once.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Many prompts")]
pub struct BatchRequest {
    /// Many prompts, with the model loaded once: a file with one prompt per line, each as --prompt takes it, or a
    /// folder of .txt files
    #[arg(long, value_name = "FILE|DIR")]
    pub prompts: Option<PathBuf>,
    /// Only this part of --prompts, such as 1/4: for CI matrices
    #[arg(long, value_name = "PART/PARTS", requires = "prompts")]
    pub shard: Option<Shard>,
    /// Where --prompts writes a JSON report per prompt; `qdiff report` combines them
    #[arg(
        long,
        value_name = "DIR",
        requires = "prompts",
        default_value_if("prompts", clap::builder::ArgPredicate::IsPresent, REPORTS)
    )]
    pub json_dir: Option<PathBuf>,
}
