//! What `qdiff mutations` can be asked.

use super::{JsonArgs, Reported};
use crate::tasks::score::ScoreRequest;
use crate::tasks::values;
use clap::Subcommand;

/// What of the catalogue.
#[derive(Debug, Subcommand)]
pub enum MutationsCommand {
    /// A line for each fault that can be injected and recognised
    #[command(after_help = "\
Examples:
  qdiff mutations list
  qdiff mutations list --json mutations.json")]
    List {
        #[command(flatten)]
        json: JsonArgs,
    },
    /// All about one of them
    #[command(after_help = "\
Examples:
  qdiff mutations show rope-base")]
    Show {
        /// Its name
        #[arg(value_parser = values::MUTATION, hide_possible_values = true)]
        name: String,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Plant faults, diagnose them, and say how often the diagnosis is right
    #[command(after_help = "\
Exit codes: 0 if every independent fault that is not inert is found at its stage, 95 of 100
are named and no clean run raises an alarm; else 1.

Examples:
  qdiff mutations score --json score.json
  qdiff mutations score --model model.gguf --pairs 4")]
    Score(Reported<ScoreRequest>),
}
