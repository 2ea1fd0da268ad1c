//! Results: the figures of reports as one small file, and folders of such files as one document.

use crate::report::book::{Book, Runs};
use anyhow::{Result, bail};
use clap::Args;
use qdiff::report::json::{self, Saved};
use qdiff::report::{Report, file, format_of};
use std::path::PathBuf;

/// Which reports to put together, and where.
#[derive(Clone, Debug, Args)]
pub struct DigestRequest {
    /// Reports that `qdiff run --json` wrote
    #[arg(value_name = "FILE", required = true)]
    pub reports: Vec<PathBuf>,
    /// The file to write, for a folder of results
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Its heading
    #[arg(long, value_name = "TEXT", default_value = "Runs")]
    pub title: String,
}

/// Writes the figures of all reports as one file.
///
/// # Errors
/// A file that is no report of a whole run, or one that cannot be written.
pub fn digest(request: &DigestRequest) -> Result<()> {
    file::check(&request.out, "--out")?;
    let mut reports: Vec<Report> = Vec::new();
    for path in &request.reports {
        match json::read(path)? {
            Saved::Report(report) => reports.push(*report),
            Saved::Failure(failure) => bail!("{}: {}", path.display(), failure.line()),
            Saved::Part(_) => bail!(
                "{} is a part of a report; put the parts together first: `qdiff report PARTS --json FILE`",
                path.display()
            ),
        }
    }
    file::write(&request.out, json::text(&Runs::new(&request.title, &reports))?.as_bytes())
}

/// Which folders of results to tell, and where.
#[derive(Clone, Debug, Args)]
pub struct BookRequest {
    /// Folders of JSON results
    #[arg(value_name = "DIR", required = true)]
    pub folders: Vec<PathBuf>,
    /// The file to write, in markdown; without it, standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// The document; `None` where it was written to a file.
///
/// # Errors
/// A folder without results, a file that is none, or one that cannot be written.
pub fn book(request: &BookRequest) -> Result<Option<String>> {
    if let Some(path) = request.folders.iter().find(|p| !p.is_dir()) {
        bail!("{} is no folder; results of several runs are a folder of JSON files", path.display());
    }
    let Some(path) = &request.out else { return Book::read(&request.folders)?.render().map(Some) };
    if format_of(path)?.extension != "md" {
        bail!("{}: folders of results are printed in markdown", path.display());
    }
    file::check(path, "--out")?;
    file::write(path, Book::read(&request.folders)?.render()?.as_bytes()).map(|()| None)
}
