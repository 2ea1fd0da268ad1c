//! Where a report goes: checked before anything runs, served at the end.

use super::args::{Ci, FileArgs, JsonArgs, OutputArgs};
use super::{CI, complain, exit, put, remark, tell};
use crate::report::{self, Format, Told, file, github::GitHub, json, terminal};
use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

impl JsonArgs {
    /// Refuses a file that could not be written, before anything runs.
    pub(super) fn check(&self) -> Result<()> {
        self.json.as_ref().map_or(Ok(()), |path| file::check(path, "--json"))
    }

    /// Writes `list`, and says so.
    pub(super) fn write(&self, list: &impl Serialize) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        file::write(path, json::text(list)?.as_bytes())?;
        remark(&terminal::line("report", &path.display().to_string()))
    }
}

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
            file::check(path, &format!("--{flag}"))?;
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

    /// Shows what is told and writes every file, with what is `absent` among it. `courtesy` is written where no file
    /// was asked for, and fails with a remark only.
    pub(super) fn serve(&self, told: &[&dyn Told], absent: &[String], courtesy: Option<PathBuf>) -> Result<()> {
        if told.len() != 1 {
            let reports: Vec<_> = told.iter().filter_map(|t| t.run()).collect();
            tell(&report::overview(&reports))?;
        }
        if told.len() == 1 || self.full {
            let screens = told.iter().map(|t| terminal::render(&t.screen(self.full)));
            tell(&screens.collect::<Vec<_>>().join("\n"))?;
        }
        for (path, format) in &self.files {
            file::write(path, (format.render)(told, absent)?.as_bytes())?;
            remark(&terminal::line("report", &path.display().to_string()))?;
        }
        if let Some(github) = &self.github {
            put(&github.publish(told, absent)?)?;
        }
        match (courtesy, told) {
            (Some(path), [one]) if self.files.is_empty() => offer(*one, &path),
            _ => Ok(()),
        }
    }
}

fn offer(told: &dyn Told, path: &Path) -> Result<()> {
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .map_err(Into::into)
        .and_then(|()| told.json())
        .and_then(|text| file::write(path, text.as_bytes()));
    match written {
        Ok(()) => remark(&terminal::line("report", &path.display().to_string())),
        Err(e) => {
            complain(&format!("no report file: {e:#}"));
            Ok(())
        }
    }
}
