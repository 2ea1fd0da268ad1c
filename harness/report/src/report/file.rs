//! Files that appear whole under their name, or not at all.

use crate::prompts::UNNAMED;
use crate::{cleanup, hash};
use anyhow::{Context as _, Result, bail};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Writes `content` to `path`: to a temporary name beside it, then renamed.
///
/// # Errors
/// If the folder cannot be written to.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = temporary(path)?;
    let _cleanup = cleanup::guard(file.path());
    let problem = || format!("cannot write {}", path.display());
    file.write_all(content).with_context(problem)?;
    file.persist(path).map_err(|e| e.error).with_context(problem)?;
    Ok(())
}

/// Removes `path`, if it is there.
///
/// # Errors
/// If it cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot replace {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Refuses an output that could not be written, before anything runs. `flag` is the option that names it.
///
/// # Errors
/// As [`write()`]; and a device, a link or a directory, which renaming would replace.
pub fn check(path: &Path, flag: &str) -> Result<()> {
    if path.as_os_str() == "-" {
        bail!("{flag} takes a file, and no `-` for standard output");
    }
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            bail!("cannot write {}: it is a directory; name a file in it", path.display())
        }
        Ok(found) if !found.is_file() => {
            bail!("cannot write {}: it is no plain file; name another", path.display())
        }
        _ => temporary(path).map(drop),
    }
}

/// A file beside `path`, to be renamed to it.
///
/// # Errors
/// If the folder cannot be written to.
pub fn temporary(path: &Path) -> Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Readable by others as any new file is; the umask still applies.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder).map_err(|e| {
        anyhow::anyhow!("cannot write {}: {}; give a path in a folder you can write to", path.display(), e.kind())
    })
}

/// The files of `folder` with this extension, in order of their names.
///
/// # Errors
/// If the folder cannot be read.
pub fn list(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let problem = || format!("cannot read the folder {}", folder.display());
    let mut paths = Vec::new();
    for entry in folder.read_dir().with_context(problem)? {
        paths.push(entry.with_context(problem)?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|e| e == extension) && path.is_file());
    paths.sort();
    Ok(paths)
}

/// Keeps a report in `folder` under a name that no other has, `NAME-TIME.json`, and as `report.json`, which is the newest
/// of the folder; gives the path of the first.
///
/// # Errors
/// As [`write()`].
pub fn keep(folder: &Path, name: &str, content: &[u8]) -> Result<PathBuf> {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let named = |n: usize| if n == 1 { format!("{name}-{now}.json") } else { format!("{name}-{now}-{n}.json") };
    let path =
        (1..).map(|n| folder.join(named(n))).find(|p| p.symlink_metadata().is_err()).context("no name is free")?;
    write(&path, content)?;
    // A second name, not a second copy, where the file system has such.
    let newest = folder.join("report.json");
    remove(&newest)?;
    std::fs::hard_link(&path, &newest).or_else(|_| std::fs::copy(&path, &newest).map(drop))?;
    Ok(path)
}

/// The folder of a prompt's reports. A prompt that has no name of its own is known by its tokens.
pub fn of_prompt(prompt: &str, tokens: &[u32]) -> String {
    if !UNNAMED.contains(&prompt) {
        return name(prompt);
    }
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    format!("{}-{:.8}", name(prompt), hash::sha256(&bytes))
}

/// `name` as part of a file's name.
pub fn name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    name.chars().map(plain).collect()
}
