//! Temporary folders that must not outlive the process. A destructor removes one when a command ends, `cleanup` after an
//! interrupt, and the supervisor after a crash. A SIGKILL of both processes runs none of them, so the next process that makes a
//! folder of the same kind in the same place removes what it left.
//!
//! Each folder holds a file that its process keeps locked. The system releases the lock when the process ends, however it
//! ends, so a folder whose file can be locked belongs to no living process.

use crate::cleanup;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use tempfile::TempDir;

/// The file that the folder's process keeps locked.
const OWNER: &str = ".owner";

/// What it is called until it is locked.
const UNNAMED: &str = ".owner.new";

/// A temporary folder, removed when this is dropped.
#[derive(Debug)]
pub struct Home {
    // Dropped in this order: the folder goes before the lock does.
    folder: TempDir,
    _cleanup: cleanup::Guard,
    _owner: File,
}

impl Home {
    /// Makes a folder in `parent` whose name begins with `prefix`, and removes those that killed processes left there.
    ///
    /// # Errors
    /// If `parent` cannot be written.
    pub fn new(prefix: &str, parent: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let guard = cleanup::guard(folder.path());
        // The file gets its name once it is locked: another process never sees it unlocked while this one lives.
        let unnamed = folder.path().join(UNNAMED);
        let owner = File::create(&unnamed)?;
        // On a file system without locks it gets no name, and the folder is never taken for one that was left.
        if owner.try_lock().is_ok() {
            std::fs::rename(&unnamed, folder.path().join(OWNER))?;
        }
        remove_left(prefix, parent, folder.path());
        Ok(Self { folder, _cleanup: guard, _owner: owner })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the folder a name under which it stays, and everything in it.
    ///
    /// # Errors
    /// If the name is taken; the folder is removed then.
    pub fn keep_as(self, name: &Path) -> io::Result<()> {
        for owner in [OWNER, UNNAMED] {
            let _ = std::fs::remove_file(self.path().join(owner));
        }
        std::fs::rename(self.path(), name)?;
        // Nothing is left to remove under the old name.
        let _ = self.folder.keep();
        Ok(())
    }
}

/// Why nothing could be written in `folder`, in words: the folder that is missing, or what the system says.
pub fn unwritable(folder: &Path, error: &io::Error) -> String {
    let missing = folder.ancestors().filter(|above| !above.as_os_str().is_empty() && !above.exists()).last();
    match missing.filter(|_| error.kind() == io::ErrorKind::NotFound) {
        Some(missing) => format!("there is no folder {}; make it, or name another", missing.display()),
        None => format!("{}; give a path in a folder you can write to", error.kind()),
    }
}

/// Removes the folders in `parent` that a process of this user made, with this prefix, and that no living process owns.
/// `own` is this process's folder. A folder that cannot be removed is left.
fn remove_left(prefix: &str, parent: &Path, own: &Path) {
    let Ok(user) = own.metadata().map(|of| of.uid()) else { return };
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        // A link to a folder is no folder here.
        let folder = entry.metadata().is_ok_and(|of| of.is_dir() && of.uid() == user);
        if folder && path != own && entry.file_name().to_string_lossy().starts_with(prefix) && ownerless(&path) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// Whether the folder was made by [`Home::new`], and its process is gone.
fn ownerless(folder: &Path) -> bool {
    let path = folder.join(OWNER);
    let plain = path.symlink_metadata().is_ok_and(|of| of.is_file());
    plain && File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that a killed process left is removed; that of a living one, and what is no such folder, stays.
    #[test]
    fn what_a_killed_process_left_is_removed_at_the_next_start() {
        let work = tempfile::tempdir().unwrap();
        let made = |name: &str, owner: bool| {
            let folder = work.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("dump"), "values").unwrap();
            if owner {
                std::fs::write(folder.join(OWNER), "").unwrap();
            }
            folder
        };
        let (killed, somebodys, other) = (made(".a-killed", true), made(".a-mine", false), made(".b-killed", true));
        let elsewhere = made("elsewhere", true);
        std::os::unix::fs::symlink(&elsewhere, work.path().join(".a-link")).unwrap();
        let alive = Home::new(".a-", work.path()).unwrap();
        assert!(!killed.exists());
        let next = Home::new(".a-", work.path()).unwrap();
        assert!(alive.path().is_dir() && next.path().is_dir());
        assert!([somebodys, other, elsewhere.join("dump")].iter().all(|path| path.exists()));
        let gone = next.path().to_path_buf();
        drop(next);
        assert!(!gone.exists());
        alive.keep_as(&work.path().join("kept")).unwrap();
        assert_eq!(std::fs::read_dir(work.path().join("kept")).unwrap().count(), 0);
    }
}
