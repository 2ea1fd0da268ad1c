//! `qdiff record`.

use super::args::RecordArgs;
use super::setup::console;
use super::{exit, say};
use crate::tasks::record::record;
use anyhow::Result;

pub(super) fn run(args: &RecordArgs) -> Result<u8> {
    let made = record(&args.request, console())?;
    let out = args.request.out.display();
    say(&format!("recorded {} arrays of {} steps of {} in {out}\n", made.arrays, made.steps, made.engine))?;
    Ok(exit::MATCH)
}
