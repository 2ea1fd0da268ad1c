//! Files that appear whole under their name, or not at all.

use crate::prompts::UNNAMED;
use crate::{cleanup, hash, home, runners};
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
    builder
        .tempfile_in(folder)
        .map_err(|e| anyhow::anyhow!("cannot write {}: {}", path.display(), home::unwritable(folder, &e)))
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
    // The folder may have the name already.
    let doubled = folder.file_name().is_some_and(|folder| folder == name);
    let first = if doubled { now.to_string() } else { format!("{name}-{now}") };
    let named = |n: usize| if n == 1 { format!("{first}.json") } else { format!("{first}-{n}.json") };
    let path =
        (1..).map(|n| folder.join(named(n))).find(|p| p.symlink_metadata().is_err()).context("no name is free")?;
    write(&path, content)?;
    // A second name, not a second copy, where the file system has such.
    let newest = folder.join("report.json");
    remove(&newest)?;
    std::fs::hard_link(&path, &newest).or_else(|_| std::fs::copy(&path, &newest).map(drop))?;
    Ok(path)
}

/// The folder of a prompt's reports. A prompt that has no name of its own is known by its tokens, and a file in another
/// folder by its name and tokens.
pub fn of_prompt(prompt: &str, tokens: &[u32]) -> String {
    let of_file = Path::new(prompt).file_name().and_then(|file| file.to_str()).filter(|file| *file != prompt);
    if of_file.is_none() && !UNNAMED.contains(&prompt) {
        return name(prompt);
    }
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
    format!("{}-{:.8}", name(of_file.unwrap_or(prompt)), hash::sha256(&bytes))
}

/// Most characters of a subject in the name of a file.
const SHORT: usize = 40;

/// Programs that run another one, which their arguments name.
const STARTERS: [&str; 7] = ["env", "sh", "bash", "node", "uv", "uvx", "time"];

/// What a recording's name has behind the engine's, and before the time.
const RECORDED: &str = " (recorded";

/// A subject as the beginning of a file's name. A command is known by its program: `cmd: python3 bin/engine.py {tokens}` is
/// `engine_py`.
pub fn of_subject(subject: &str) -> String {
    let command = [runners::RUN, runners::SERVE].iter().find_map(|kind| subject.strip_prefix(kind));
    let program = |word: &&str| {
        let base = word.rsplit('/').next().unwrap_or(word);
        let starter = STARTERS.contains(&base) || base.starts_with("python");
        !starter && !word.starts_with(['-', '{']) && !word.contains('=')
    };
    let program = command.map(|line| line.split_whitespace().find(program).unwrap_or("command"));
    // `numpy (run by its command, arithmetic not declared: f32 assumed)` is numpy; `cpu (recorded)` is cpu_recorded, and so is
    // one whose dump says when.
    let engine = subject.split([',', ')']).next().unwrap_or(subject).trim_end_matches(" (run by its command");
    let engine = engine.find(RECORDED).map_or(engine, |at| &engine[..at + RECORDED.len()]);
    let short = program.map_or(engine, |word| word.rsplit('/').next().unwrap_or(word));
    let words: Vec<String> = name(short).split('_').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    words.join("_").chars().take(SHORT).collect()
}

/// `path` as it is shown: from the current folder, where it lies in it.
pub fn near(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let near =
        here.as_deref().and_then(|here| path.strip_prefix(here).ok()).filter(|near| !near.as_os_str().is_empty());
    near.unwrap_or(path).display().to_string()
}

/// `name` as part of a file's name.
pub fn name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of a command had the whole command line in its path, of 120 characters and more.
    #[test]
    fn a_path_has_the_program_of_a_command_and_the_name_of_a_file() {
        for (subject, short) in [
            ("cmd: /home/me/engines/mine/target/release/engine --model {model} {tokens}", "engine"),
            ("cmd: OMP_NUM_THREADS=1 python3 -u tools/engine.py {model}", "engine_py"),
            ("serve: ./engine", "engine"),
            ("my engine (recorded 2026-11-27 03:19:04 UTC, f32 assumed)", "my_engine_recorded"),
            ("cmd: {model}", "command"),
            ("llama.cpp (cpu)", "llama_cpp_cpu"),
            ("numpy (run by its command, arithmetic not declared: f32 assumed)", "numpy"),
            ("mine (recorded, arithmetic not declared: f32 assumed)", "mine_recorded"),
        ] {
            assert_eq!(of_subject(subject), short);
        }
        assert!(of_subject(&"long ".repeat(30)).len() <= SHORT);
        assert_eq!(of_prompt("haiku", &[1]), "haiku");
        assert_eq!(of_prompt("notes.txt", &[1]), "notes_txt");
        let of_file = of_prompt("/home/me/prompts/notes.txt", &[1]);
        assert!(of_file.starts_with("notes_txt-") && of_file.len() == 18, "{of_file}");
        assert_ne!(of_file, of_prompt("/home/you/notes.txt", &[2]));
        let here = std::env::current_dir().unwrap();
        assert_eq!(near(&here.join("a/b.json")), "a/b.json");
        assert_eq!(near(Path::new("/elsewhere/b.json")), "/elsewhere/b.json");
    }

    #[test]
    fn a_name_is_not_doubled() {
        let folder = tempfile::tempdir().unwrap();
        let dump = folder.path().join("dump");
        std::fs::create_dir(&dump).unwrap();
        let written = keep(&dump, "dump", b"{}").unwrap();
        assert!(!written.file_name().unwrap().to_str().unwrap().contains("dump"), "{written:?}");
        let written = keep(&dump, "cpu", b"{}").unwrap();
        assert!(written.file_name().unwrap().to_str().unwrap().starts_with("cpu-"), "{written:?}");
    }
}
