//! `qdiff generate`.

use super::args::GenerateArgs;
use super::setup::console;
use super::{exit, tell};
use crate::report::generation;
use crate::tasks::generate::generate;
use anyhow::Result;

/// Generates on both sides, says where the texts part; gives the exit code.
pub(super) fn run(args: &GenerateArgs) -> Result<u8> {
    args.json.check()?;
    let report = generate(&args.request, console())?;
    tell(&generation::render(&report))?;
    args.json.write(&report)?;
    Ok(exit::of(report.outcome))
}
