//! `qdiff generate`.

use super::args::GenerateArgs;
use super::output::Output;
use super::setup::console;
use super::tell;
use crate::tasks::generate::generate;
use anyhow::Result;

/// Generates on both sides, says where the texts part; gives the exit code.
pub(super) fn run(args: &GenerateArgs) -> Result<u8> {
    let output = Output::files(&args.files, 1)?;
    let report = generate(&args.request, console())?;
    // Below the table of tokens.
    tell("\n")?;
    output.tell(&report)
}
