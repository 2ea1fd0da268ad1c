//! `qdiff logits`.

use super::args::LogitsArgs;
use super::setup::console;
use super::{exit, tell};
use crate::report::logits::render;
use crate::tasks::logits::logits;
use anyhow::Result;

/// Looks at every logit; gives the exit code.
pub(super) fn run(args: &LogitsArgs) -> Result<u8> {
    args.json.check()?;
    let (report, model) = logits(&args.request, console())?;
    tell(&render(&report, &|id| model.piece(id as u32)))?;
    args.json.write(&report)?;
    Ok(exit::of(report.outcome))
}
