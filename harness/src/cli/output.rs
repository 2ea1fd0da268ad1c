//! Where a report goes: checked before anything runs, served at the end.

use super::args::{Ci, JsonArgs, OutputArgs};
use super::{complain, remark, say, tell};
use crate::report::{self, Format, Report, file, github::GitHub, json, terminal};
use anyhow::{Result, bail};
use serde::Serialize;
use std::path::{Path, PathBuf};

impl JsonArgs {
    /// Refuses a file that could not be written, before anything runs.
    pub(super) fn check(&self) -> Result<()> {
        self.json.as_ref().map_or(Ok(()), |path| file::check(path, "--json"))
    }

    /// Writes `report`, and says so.
    pub(super) fn write(&self, report: &impl Serialize) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        file::write(path, json::text(report)?.as_bytes())?;
        remark(&terminal::line("report", &path.display().to_string()))
    }
}

/// Every place that a report goes to.
pub(super) struct Output<'a> {
    full: bool,
    files: Vec<(&'a Path, &'static dyn Format)>,
    github: Option<GitHub>,
}

impl<'a> Output<'a> {
    /// Finds what `args` ask for. `reports` is how many reports there will be.
    ///
    /// # Errors
    /// A file of no known format, one that could not be written, one format
    /// that cannot hold as many reports, or no CI to tell.
    pub(super) fn new(args: &'a OutputArgs, reports: usize) -> Result<Self> {
        let mut files = Vec::new();
        for path in &args.report {
            files.push(("--report", path.as_path(), report::format_of(path)?));
        }
        if let Some(path) = &args.json.json {
            files.push(("--json", path.as_path(), &json::Json as &dyn Format));
        }
        for (flag, path, format) in &files {
            file::check(path, flag)?;
            if reports != 1 && !format.several() {
                bail!(
                    "{} would hold a report for each prompt or file, and its format holds one; write one file each",
                    path.display()
                );
            }
        }
        let github = match args.ci {
            Some(Ci::Github) => Some(GitHub::new()?),
            None => None,
        };
        let files = files.into_iter().map(|(_, path, format)| (path, format));
        Ok(Self { full: args.full, files: files.collect(), github })
    }

    /// Shows `reports` and writes every file, with what is `absent` among them.
    /// `courtesy` is written where no file was asked for, and fails with a remark
    /// only.
    ///
    /// # Errors
    /// A file that cannot be written, or a screen that is gone.
    pub(super) fn serve(&self, reports: &[Report], absent: &[String], courtesy: Option<PathBuf>) -> Result<()> {
        if reports.len() != 1 {
            tell(&report::overview(reports))?;
        }
        if reports.len() == 1 || self.full {
            let screens = reports.iter().map(|r| terminal::render(r, self.full));
            tell(&screens.collect::<Vec<_>>().join("\n"))?;
        }
        for (path, format) in &self.files {
            file::write(path, format.render(reports, absent)?.as_bytes())?;
            remark(&terminal::line("report", &path.display().to_string()))?;
        }
        if let Some(github) = &self.github {
            say(&github.publish(reports, absent)?)?;
        }
        match courtesy {
            Some(path) if self.files.is_empty() => self.offer(reports, &path),
            _ => Ok(()),
        }
    }

    fn offer(&self, reports: &[Report], path: &Path) -> Result<()> {
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .map_err(Into::into)
            .and_then(|()| json::Json.render(reports, &[]))
            .and_then(|text| file::write(path, text.as_bytes()));
        match written {
            Ok(()) => remark(&terminal::line("report", &path.display().to_string())),
            Err(e) => {
                complain(&format!("no report file: {e:#}"));
                Ok(())
            }
        }
    }
}
