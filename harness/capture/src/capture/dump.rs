//! Which run a capture is of. A tap writes that first, so that values of an earlier run are never judged as new ones.

use super::quoted;
use crate::input;
use crate::number::counted;
use anyhow::{Context as _, Result, bail, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The environment variable that names the run to an engine that qdiff starts; the tap repeats it in the capture.
pub const RUN: &str = "QDIFF_RUN";

/// The file that a tap leaves in a folder to which it could not dump. It holds the reason, in one line.
pub const TROUBLE: &str = "capture.trouble";

/// Most bytes of it.
const LONGEST: u64 = 1 << 16;

/// Which dump a capture is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Dump {
    /// A word that no other dump has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<String>,
    /// When it began, in seconds since 1970 (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<i64>,
    /// The process that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// What the environment variable QDIFF_RUN held; absent where it was not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Of lines: whether the last of them is `{"closed": STEPS}`. Without that line the run was cut short.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closes: bool,
}

impl Dump {
    /// When it began, as people write it.
    pub(super) fn when(&self) -> Option<String> {
        let at = jiff::Timestamp::from_second(self.started?).ok()?;
        Some(at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
    }
}

/// A run of a command that is to write a capture.
#[derive(Debug)]
pub struct Expected {
    /// What QDIFF_RUN holds.
    pub run: String,
    /// A file that was written on the same file system just before the command started.
    since: PathBuf,
}

impl Expected {
    /// A run that begins now; `since` is a file that was just written, beside the folder of the capture.
    pub fn now(since: &Path) -> Self {
        let words = [RandomState::new().hash_one(std::process::id()), RandomState::new().hash_one(SystemTime::now())];
        Self { run: format!("{:016x}{:016x}", words[0], words[1]), since: since.to_path_buf() }
    }

    /// Refuses a capture that another run wrote. A tap repeats the name of the run, so that no clock matters. A dump without
    /// that name must not have begun before the run, and files of any other writer must not be older than the run; `vouched`
    /// says that the tap wrote all of `files` itself.
    ///
    /// # Errors
    /// The file, and what to do.
    pub(super) fn check(&self, dump: Option<&Dump>, files: &[PathBuf], vouched: bool) -> Result<()> {
        let remedy = "have the command dump its own values, and nothing else, to the folder that QDIFF_DUMP names";
        if let Some(other) = dump.and_then(|dump| dump.run.as_ref()) {
            ensure!(*other == self.run, "the dump is of another run than the last one; {remedy}");
            if vouched {
                return Ok(());
            }
        }
        let since = written(&self.since)?;
        // Copies of an earlier dump are younger than the run, and the dump is not. It tells whole seconds.
        let started = dump.and_then(|dump| dump.started);
        let before = started.is_some_and(|at| at < seconds(since));
        ensure!(
            !before,
            "the dump began at {}, before the run that was to write it: it holds values of an earlier run, or the clock was \
             set back meanwhile; {remedy}; an engine that runs by another clock must also be given {RUN}",
            dump.and_then(Dump::when).unwrap_or_default()
        );
        for file in files {
            ensure!(
                written(file)? >= since,
                "{} is older than the run that was to write it: it holds values of an earlier run, or the clock was set back \
                 meanwhile; {remedy}",
                file.display()
            );
        }
        Ok(())
    }
}

/// When the file was written last.
fn written(file: &Path) -> Result<SystemTime> {
    let of = file.metadata().and_then(|of| of.modified());
    of.with_context(|| format!("cannot read when {} was written", file.display()))
}

/// Whole seconds since 1970.
fn seconds(at: SystemTime) -> i64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// Refuses a folder in which a tap says that it could not dump: what else is there is of an earlier run.
///
/// # Errors
/// The words of the tap, and what to do.
pub(super) fn check_trouble(folder: &Path) -> Result<()> {
    let path = folder.join(TROUBLE);
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let words = input::text(&path, LONGEST).unwrap_or_else(|e| format!("(the reason cannot be read: {e})"));
    bail!(
        "{}: the engine could not dump its values here: {}; remove the folder, or name another one, and run the engine again",
        folder.display(),
        quoted(words.trim())
    )
}

/// Refuses files of which some were written before the dump began that the manifest names, and others after: values of two
/// runs. Where all are older they were copied, or a clock was set.
///
/// # Errors
/// The first file that is older.
pub(super) fn check_one_run(dump: &Dump, files: &[PathBuf]) -> Result<()> {
    let Some(started) = dump.started else { return Ok(()) };
    let mut older = Vec::new();
    for file in files {
        if seconds(written(file)?) < started {
            older.push(file);
        }
    }
    match older.as_slice() {
        [first, ..] if older.len() < files.len() => bail!(
            "{} of {} are of an earlier run than manifest.json names, the first of them {}; remove the folder, and run the engine \
             again",
            counted(older.len(), "file"),
            files.len(),
            first.display()
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Files `0`, `1`, … whose times of writing are so many seconds from a first one's.
    fn files(folder: &Path, ages: &[i64]) -> Vec<PathBuf> {
        let base = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let file = |(i, age): (usize, &i64)| {
            let path = folder.join(i.to_string());
            let by = Duration::from_secs(age.unsigned_abs());
            let file = std::fs::File::create(&path).unwrap();
            file.set_modified(if *age < 0 { base - by } else { base + by }).unwrap();
            path
        };
        ages.iter().enumerate().map(file).collect()
    }

    /// Whatever the clocks say, a capture that names its run is of that run or of another one; without a name no file may be
    /// older than the run.
    #[test]
    fn a_capture_of_an_earlier_run_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (ages, fresh) in [(&[0, 0, 5][..], true), (&[0, -1, 5], false), (&[0, 3, -90], false)] {
            let files = files(folder.path(), ages);
            let expected = Expected::now(&files[0]);
            let [own, other] =
                [expected.run.clone(), "another".to_owned()].map(|run| Dump { run: Some(run), ..Dump::default() });
            let unnamed = Dump { nonce: Some("n".to_owned()), ..Dump::default() };
            assert!(expected.check(Some(&own), &files[1..], true).is_ok());
            assert_eq!(expected.check(Some(&own), &files[1..], false).is_ok(), fresh);
            for none in [None, Some(&unnamed)] {
                assert_eq!(expected.check(none, &files[1..], true).is_ok(), fresh, "{ages:?}");
            }
            // A copy of an earlier dump is younger than the run; the dump is not.
            for (started, begun) in [(1_700_000_000, true), (1_699_999_999, false)] {
                let copied = Dump { started: Some(started), ..unnamed.clone() };
                assert_eq!(expected.check(Some(&copied), &[], true).is_ok(), begun);
                let own = Dump { started: Some(started), ..own.clone() };
                assert!(expected.check(Some(&own), &files[1..], true).is_ok());
            }
            let why = expected.check(Some(&other), &files[1..], true).unwrap_err().to_string();
            assert!(why.contains("of another run") && why.contains("QDIFF_DUMP"), "{why}");
        }
        assert_ne!(Expected::now(folder.path()).run, Expected::now(folder.path()).run);
    }

    /// Files of two runs in one folder are refused; all of them older were copied with other times.
    #[test]
    fn files_of_two_runs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dump = Dump { started: Some(1_700_000_000), ..Dump::default() };
        for (ages, one) in [(&[0, 4][..], true), (&[-7, -3], true), (&[-1, 0], false), (&[9, -3600], false)] {
            let files = files(folder.path(), ages);
            assert_eq!(check_one_run(&dump, &files).is_ok(), one, "{ages:?}");
            assert!(check_one_run(&Dump::default(), &files).is_ok());
        }
        assert_eq!(dump.when().unwrap(), "2023-11-14 22:13:20 UTC");
    }
}
