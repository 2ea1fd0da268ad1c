//! The options of `qdiff mutations`.

use super::JsonArgs;
use crate::tasks::values;
use clap::Subcommand;

/// What of the catalogue.
#[derive(Debug, Subcommand)]
pub enum MutationsCommand {
    /// A line for each mutation of the catalogue, with the stages where it happens
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
}
