//! `qdiff sweep`.

use super::args::SweepArgs;
use super::output::Output;
use super::setup::console;
use crate::tasks::sweep::sweep;
use anyhow::Result;

/// Feeds the tokens in steps of every size; gives the exit code.
pub(super) fn run(args: &SweepArgs) -> Result<u8> {
    let output = Output::files(&args.files, 1)?;
    output.tell(&sweep(&args.request, console())?)
}
