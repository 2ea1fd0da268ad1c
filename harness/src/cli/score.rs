//! `qdiff mutations score`.

use super::args::ScoreArgs;
use super::output::Output;
use super::setup::console;
use crate::tasks::score::score;
use anyhow::Result;

/// Plants faults and counts what becomes of them; gives the exit code.
pub(super) fn run(args: &ScoreArgs) -> Result<u8> {
    let output = Output::files(&args.files, 1)?;
    output.tell(&score(&args.request, console())?)
}
