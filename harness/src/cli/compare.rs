//! `qdiff compare`.

use super::args::Bisected;
use super::exit;
use super::output::Output;
use super::run::courtesy;
use super::setup::console;
use crate::tasks::compare::{CompareRequest, Compared, compare};
use anyhow::Result;

/// With a model, as `run` judges two captures; without, only their distance.
pub(super) fn run(args: &Bisected<CompareRequest>) -> Result<u8> {
    let output = Output::new(&args.output, 1)?;
    let code = match compare(&args.request, console())? {
        Compared::Judged(report) => {
            output.serve(&[&*report], &[], Some(courtesy(&report)))?;
            exit::of(report.outcome)
        }
        Compared::Apart(comparison) => output.tell(&comparison)?,
    };
    Ok(exit::bisect(code, args.bisect))
}
