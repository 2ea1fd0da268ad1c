//! `qdiff weights`.

use super::args::WeightsArgs;
use super::output::Output;
use super::setup::console;
use crate::tasks::weights::weights;
use anyhow::Result;

/// Compares; gives the exit code.
pub(super) fn run(args: &WeightsArgs) -> Result<u8> {
    let output = Output::files(&args.files, 1)?;
    output.tell(&weights(&args.request, console())?)
}
