//! `qdiff mutations score`.

use super::args::ScoreArgs;
use super::setup::console;
use super::{exit, say};
use crate::score::render;
use crate::tasks::score::score;
use anyhow::Result;

/// Plants faults and counts what becomes of them; gives the exit code.
pub(super) fn run(args: &ScoreArgs) -> Result<u8> {
    args.json.check()?;
    let score = score(&args.request, console())?;
    say(&render(&score))?;
    args.json.write(&score)?;
    Ok(if score.reached() { exit::MATCH } else { exit::DIVERGED })
}
