//! `qdiff run` and `qdiff compare`, which judge two sides.

use super::args::Bisected;
use super::exit;
use super::output::Output;
use super::say::{remark, terminal};
use super::setup::console;
use crate::report::{Failure, Report, Told, file};
use crate::tasks::compare::{self, CompareRequest, Compared};
use crate::tasks::run::{REPORTS, Ran, RunRequest, run as judge};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// Runs both sides, judges, reports; gives the exit code.
pub(super) fn run(args: &Bisected<RunRequest>) -> Result<u8> {
    let (batch, several) = (&args.request.batch, args.request.several());
    // Even one prompt of several is printed as several are.
    let output = Output::new(&args.output, if several { 2 } else { 1 })?;
    let Ran { reports, failures } = judge(&args.request, console())?;
    let absent: Vec<String> = failures.iter().map(Failure::line).collect();
    let single = reports.first().filter(|_| !several);
    if !reports.is_empty() {
        let told: Vec<&dyn Told> = reports.iter().map(|r| r as &dyn Told).collect();
        output.serve(&told, &absent, single.map(courtesy))?;
        if several && batch.prompts.is_none() {
            reports.iter().try_for_each(|report| output.serve_one(report, reports.len() > 1, &courtesy(report)))?;
        }
    } else {
        output.write(&[], &absent)?;
    }
    if let Some(folder) = batch.json_dir.as_ref().filter(|_| !reports.is_empty()) {
        remark(&terminal().line("reports", &format!("{} files in {}", reports.len(), folder.display())))?;
    }
    let codes = reports.iter().map(|r| exit::of(r.outcome)).chain(failures.iter().map(|_| exit::TROUBLE));
    let doubtful = reports.iter().any(|r| exit::of(r.outcome) == exit::TROUBLE);
    let engine = !doubtful && failures.iter().all(|failure| failure.engine);
    Ok(exit::bisect(exit::worst(codes), args.bisect, engine))
}

/// With a model, as `run` judges two captures; without, only their distance.
pub(super) fn compare(args: &Bisected<CompareRequest>) -> Result<u8> {
    let output = Output::new(&args.output, 1)?;
    let code = match compare::compare(&args.request, console())? {
        Compared::Judged(report) => {
            output.serve(&[&*report], &[], Some(courtesy(&report)))?;
            exit::of(report.outcome)
        }
        Compared::Agreed(sweep) => output.tell(&sweep)?,
        Compared::Apart(comparison) => output.tell(&comparison)?,
    };
    Ok(exit::bisect(code, args.bisect, false))
}

/// The folder that a report is written to where no file is named.
fn courtesy(report: &Report) -> PathBuf {
    Path::new(REPORTS).join(file::of_prompt(&report.run.prompt, &report.run.tokens))
}
