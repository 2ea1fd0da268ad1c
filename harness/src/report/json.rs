//! JSON, written to a temporary name and renamed.

use super::Report;
use anyhow::{Context as _, Result};
use std::io::Write as _;
use std::path::Path;

/// Writes the report to `path`, or not at all.
///
/// # Errors
/// If the folder cannot be written to.
pub fn write(report: &Report, path: &Path) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let problem = || {
        format!(
            "cannot write {}: give a path in a folder you can write to",
            path.display()
        )
    };
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(problem)?;
    file.write_all(&text).with_context(problem)?;
    file.persist(path).with_context(problem)?;
    Ok(())
}

/// Refuses an output that could not be written, before anything runs.
///
/// # Errors
/// As [`write()`].
pub fn check(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    if path.is_dir() {
        anyhow::bail!(
            "cannot write {}: it is a directory; name a file in it",
            path.display()
        );
    }
    tempfile::NamedTempFile::new_in(folder)
        .map(drop)
        .with_context(|| {
            format!(
                "cannot write {}: give a path in a folder you can write to",
                path.display()
            )
        })
}
