//! `qdiff report`.

use super::args::ReportArgs;
use super::output::Output;
use super::{exit, session};
use crate::report::{Report, json};
use anyhow::{Result, bail};
use std::path::Path;

/// Shows saved reports; gives the exit code of the worst.
pub(super) fn run(args: &ReportArgs) -> Result<u8> {
    let output = Output::new(&args.output, args.inputs.len())?;
    let reports = args
        .inputs
        .iter()
        .map(|path| read(path))
        .collect::<Result<Vec<_>>>()?;
    output.serve(&reports, None)?;
    Ok(exit::worst(reports.iter().map(|r| exit::of(r.outcome))))
}

fn read(path: &Path) -> Result<Report> {
    if path.join("manifest.json").is_file() {
        bail!(
            "{0} is a capture, not a report: judge it with `qdiff run --subject capture:{0}`",
            session::show(path)
        );
    }
    json::read(path)
}
