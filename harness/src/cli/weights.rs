//! `qdiff weights`.

use super::args::WeightsArgs;
use super::setup::console;
use super::{exit, tell};
use crate::report::weights::render;
use crate::tasks::weights::weights;
use anyhow::Result;

/// Compares; gives the exit code.
pub(super) fn run(args: &WeightsArgs) -> Result<u8> {
    args.json.check()?;
    let report = weights(&args.request, console())?;
    tell(&render(&report))?;
    args.json.write(&report)?;
    Ok(if report.check.diverged() { exit::DIVERGED } else { exit::MATCH })
}
