//! Where a report goes: checked before anything runs, served at the end.

use super::args::{Asked, Ci, FileArgs, JsonArgs, OutputArgs};
use super::exit;
use super::say::{CI, PIPED, complain, pipe, put, remark, tell, terminal};
use crate::own;
use crate::report::{self, Failure, Format, Outcome, Report, Told, file, github::GitHub, json};
use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The name of standard output in place of a file.
const STDOUT: &str = "-";

/// Refuses a file that could not be written. Standard output holds one report, and then nothing else: the screen goes to
/// standard error, where a pipe does not take it up and whoever waits still reads it.
fn check(path: &Path, flag: &str) -> Result<()> {
    if path.as_os_str() != STDOUT {
        return file::check(path, &format!("--{flag}"));
    }
    if PIPED.swap(true, Ordering::Relaxed) {
        bail!("--{flag} -: standard output already takes another report; write one of the two to a file");
    }
    Ok(())
}

/// Writes a report to where [`check`] found room for it, and says so.
fn write(path: &Path, text: &str) -> Result<()> {
    if path.as_os_str() == STDOUT {
        return pipe(text);
    }
    file::write(path, text.as_bytes())?;
    remark(&terminal().line("report", &file::near(path)))
}

impl JsonArgs {
    /// Refuses a file that could not be written, before anything runs.
    pub(super) fn check(&self) -> Result<()> {
        self.json.as_ref().map_or(Ok(()), |path| check(path, "json"))
    }

    /// Writes `list`, and says so.
    pub(super) fn write(&self, list: &impl Serialize) -> Result<()> {
        self.json.as_ref().map_or(Ok(()), |path| write(path, &json::text(list)?))
    }
}

/// Whether reports are being written, so that an error is of that.
static SERVED: AtomicBool = AtomicBool::new(false);

/// Every place that a report goes to.
pub(super) struct Output<'a> {
    full: bool,
    files: Vec<(&'a Path, &'static Format)>,
    github: Option<GitHub>,
}

impl<'a> Output<'a> {
    /// Finds what `args` ask for. `reports` is how many reports there will be.
    ///
    /// # Errors
    /// A file of no known format, one that could not be written, one format
    /// that cannot hold as many reports, or no CI to tell.
    pub(super) fn new(args: &'a OutputArgs, reports: usize) -> Result<Self> {
        Ok(Self { full: args.full, ..Self::files(&args.files, reports)? })
    }

    /// The same for a command of which there is no longer screen.
    pub(super) fn files(args: &'a FileArgs, reports: usize) -> Result<Self> {
        let mut files = Vec::new();
        for path in &args.report {
            files.push(("report", path.as_path(), report::format_of(path)?));
        }
        for (name, path) in args.named() {
            files.push((name, path, report::format_named(name).context("an option without its format")?));
        }
        for (flag, path, format) in &files {
            check(path, flag)?;
            if reports != 1 && !format.several {
                bail!(
                    "{} would hold a report for each prompt or file, and its format holds one; write one file each",
                    path.display()
                );
            }
        }
        CI.store(args.ci.is_some(), Ordering::Relaxed);
        let github = args.ci.map(|Ci::Github| GitHub::new()).transpose()?;
        let files = files.into_iter().map(|(_, path, format)| (path, format));
        Ok(Self { full: false, files: files.collect(), github })
    }

    /// Shows what a command has to tell and writes every file; gives the exit code.
    pub(super) fn tell(&self, told: &dyn Told) -> Result<u8> {
        self.serve(&[told], &[], None)?;
        Ok(exit::of(told.screen(false).outcome))
    }

    /// Writes every file, and tells the CI system.
    pub(super) fn write(&self, told: &[&dyn Told], absent: &[String]) -> Result<()> {
        SERVED.store(true, Ordering::Relaxed);
        for (path, format) in &self.files {
            write(path, &(format.render)(told, absent)?)?;
        }
        self.github.as_ref().map_or(Ok(()), |github| put(&github.publish(told, absent)?))
    }

    /// Prints the reports and writes every file, with the `absent` ones among them. `courtesy` is written where no file
    /// was requested, into a folder, and fails with a remark only.
    pub(super) fn serve(&self, told: &[&dyn Told], absent: &[String], courtesy: Option<PathBuf>) -> Result<()> {
        if told.len() != 1 {
            let reports: Vec<_> = told.iter().filter_map(|t| t.run()).collect();
            tell(&report::overview(&reports, terminal()))?;
        }
        if told.len() == 1 || self.full {
            let screens = told.iter().map(|t| terminal().render(&t.screen(self.full)));
            tell(&screens.collect::<Vec<_>>().join("\n"))?;
        }
        self.write(told, absent)?;
        match (courtesy, told) {
            (Some(path), [one]) if self.files.is_empty() => offer(*one, &path),
            _ => Ok(()),
        }
    }
}

impl Output<'_> {
    /// Shows a report that is no match, where it was shown in a row among several, and writes it where no file was
    /// requested.
    pub(super) fn serve_one(&self, report: &Report, among: bool, folder: &Path) -> Result<()> {
        if report.outcome != Outcome::Match && among && !self.full {
            tell(&format!("\n{}", terminal().render(&report.screen(false))))?;
        }
        if self.files.is_empty() { offer(report, folder) } else { Ok(()) }
    }
}

/// Writes in the place of a report that a command failed, to every place that `asked` for one: what an earlier run left there
/// must not pass for this one. Places that cannot be written to were refused before.
pub(super) fn failed(asked: &Asked<'_>, failure: &Failure) {
    if SERVED.load(Ordering::Relaxed) {
        return;
    }
    // Standard output was set aside for this very report.
    PIPED.store(false, Ordering::Relaxed);
    if let Ok(output) = Output::files(asked.files, asked.reports)
        && let Err(e) = output.write(&[failure], &[])
    {
        complain(&format!("{e:#}"));
    }
}

/// Writes a report that nobody asked for, and says how to have it as a page.
fn offer(told: &dyn Told, folder: &Path) -> Result<()> {
    let subject = told.run().map_or("report", |report| report.subject.name.as_str());
    let written = own::make(folder);
    match written.and_then(|()| file::keep(folder, &file::of_subject(subject), told.json()?.as_bytes())) {
        Ok(path) => {
            let (path, page) = (file::near(&path), file::near(&path.with_extension("html")));
            let command = format!("qdiff report {path} --html {page}");
            remark(&(terminal().line("report", &path) + &terminal().shell("page", &command) + "\n"))
        }
        Err(e) => {
            complain(&format!("no report file: {e:#}"));
            Ok(())
        }
    }
}
