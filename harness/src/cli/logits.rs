//! `qdiff logits`.

use super::args::LogitsArgs;
use super::output::Output;
use super::setup::console;
use crate::tasks::logits::logits;
use anyhow::Result;

/// Looks at every logit; gives the exit code.
pub(super) fn run(args: &LogitsArgs) -> Result<u8> {
    let output = Output::files(&args.files, 1)?;
    output.tell(&logits(&args.request, console())?)
}
