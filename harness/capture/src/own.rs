//! Folders that qdiff makes and others write to as well: a command that dumps there, or a checkout in which `qdiff-report` is
//! there already. Nothing is written through a link that these made.

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A folder that was opened: what its path leads to later is nothing to it.
pub struct OwnFolder {
    opened: OwnedFd,
    path: PathBuf,
}

impl OwnFolder {
    /// The folder at `path`, which qdiff has just made.
    ///
    /// # Errors
    /// If it is not there, or is a link.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = openat(rustix::fs::CWD, path, FOLDER, Mode::empty());
        let opened = opened.with_context(|| format!("cannot open the folder {}", path.display()))?;
        Ok(Self { opened, path: path.to_path_buf() })
    }

    /// The folder of this name in it.
    ///
    /// # Errors
    /// If there is none, or a link or a file in its place.
    pub fn folder(&self, name: &str) -> Result<Self> {
        let path = self.path.join(name);
        match openat(&self.opened, name, FOLDER, Mode::empty()) {
            Ok(opened) => Ok(Self { opened, path }),
            // Linux says of a link that it is no folder.
            Err(Errno::LOOP | Errno::NOTDIR) => Err(anyhow::anyhow!("{} is a link or a file now", path.display())),
            Err(e) => Err(io::Error::from(e)).with_context(|| format!("cannot open the folder {}", path.display())),
        }
    }

    /// Writes a file of this name in it, in the place of what has the name.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        let written = || -> io::Result<()> {
            match unlinkat(&self.opened, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
            let new = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            File::from(openat(&self.opened, name, new, Mode::from_raw_mode(0o666))?).write_all(content.as_bytes())
        };
        written().with_context(|| format!("cannot write {}", self.path.join(name).display()))
    }
}

/// Makes `path`, of folders that nobody named: each of them is there afterwards, and none is a link.
///
/// # Errors
/// One that is something else, or cannot be made.
pub fn make(path: &Path) -> Result<()> {
    let mut all: Vec<&Path> = path.ancestors().filter(|folder| !folder.as_os_str().is_empty()).collect();
    while let Some(folder) = all.pop() {
        match std::fs::create_dir(folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(e).with_context(|| format!("cannot make the folder {}", folder.display()));
            }
            _ => {}
        }
        ensure!(
            folder.symlink_metadata().is_ok_and(|found| found.is_dir()),
            "{} is a link or a file, and nothing is written through a link that nobody named: remove it, or say where the \
             report goes with --json or --json-dir",
            folder.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_is_written_through_a_link() {
        let home = tempfile::tempdir().expect("a folder");
        let (elsewhere, at) = (home.path().join("elsewhere"), home.path().join("home"));
        std::fs::create_dir_all(at.join("dump")).expect("a folder");
        std::fs::create_dir(&elsewhere).expect("a folder");
        let own = OwnFolder::open(&at).expect("a folder");
        own.folder("dump").expect("a folder").write("a", "1").expect("written");
        assert_eq!(std::fs::read_to_string(at.join("dump/a")).expect("it was written"), "1");
        // A file in it: whether what it leads to is there or not.
        std::fs::write(elsewhere.join("theirs"), "theirs").expect("written");
        for (name, of) in [("b", "theirs"), ("c", "nothing")] {
            symlink(elsewhere.join(of), at.join("dump").join(name)).expect("a link");
            own.folder("dump").expect("a folder").write(name, "2").expect("written");
            assert_eq!(std::fs::read_to_string(at.join("dump").join(name)).expect("it was written"), "2");
        }
        assert_eq!(std::fs::read_to_string(elsewhere.join("theirs")).expect("it is there"), "theirs");
        // The folder, and the one above it.
        std::fs::remove_dir_all(at.join("dump")).expect("removed");
        symlink(&elsewhere, at.join("dump")).expect("a link");
        assert!(own.folder("dump").err().expect("a link").to_string().contains("is a link or a file now"));
        std::fs::rename(&at, home.path().join("aside")).expect("renamed");
        symlink(&elsewhere, &at).expect("a link");
        own.write("d", "3").expect("written");
        assert!(OwnFolder::open(&at).is_err());
        let names = elsewhere.read_dir().expect("a folder").map(|entry| entry.expect("an entry").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["theirs"]);
    }

    #[test]
    fn folders_that_nobody_named_are_made_and_are_no_links() {
        let home = tempfile::tempdir().expect("a folder");
        let (wanted, elsewhere) = (home.path().join("a/b"), home.path().join("elsewhere"));
        make(&wanted).expect("made");
        make(&wanted).expect("there already");
        std::fs::create_dir(&elsewhere).expect("a folder");
        symlink(&elsewhere, home.path().join("link")).expect("a link");
        let why = make(&home.path().join("link/b")).expect_err("a link").to_string();
        assert!(why.contains("link is a link or a file") && !elsewhere.join("b").exists(), "{why}");
    }
}
