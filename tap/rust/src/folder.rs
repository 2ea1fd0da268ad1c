//! The folder of a dump: whose it is, and what an earlier run left there.

use crate::{Error, quoted};
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher as _, RandomState};
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

/// The file of lines.
pub(crate) const LINES: &str = "capture.jsonl";

/// The file of elements, which the process that dumps keeps locked.
pub(crate) const ELEMENTS: &str = "capture.bin";

/// Says why nothing is dumped; qdiff refuses a folder that has it.
const TROUBLE: &str = "capture.trouble";

/// Takes the folder for a dump of this process, and gives its lines and elements, both empty.
///
/// # Errors
/// Why it cannot be taken.
pub(crate) fn taken(folder: &Path) -> Result<(File, File), String> {
    let shown = folder.display();
    std::fs::create_dir_all(folder).map_err(|e| format!("cannot make the folder {shown}: {e}"))?;
    let problem = |name: &str, e: std::io::Error| format!("cannot write {name} in {shown}: {e}");
    let open = OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(ELEMENTS));
    let elements = open.map_err(|e| problem(ELEMENTS, e))?;
    // On a file system without locks, whoever comes last has the folder.
    if let Err(TryLockError::WouldBlock) = elements.try_lock() {
        return Err(format!("another dump to {shown} has not ended; give each process a folder of its own"));
    }
    let lines = folder.join(LINES);
    if lines.exists() && folder.join("manifest.json").exists() {
        return Err(format!(
            "{shown} holds a capture of an earlier run, with a manifest.json; remove the folder, or name another one"
        ));
    }
    // Without its lines an old capture cannot be judged, even if this process ends now.
    match std::fs::remove_file(&lines) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            return Err(format!("cannot remove the earlier {LINES} in {shown}: {e}"));
        }
        _ => {}
    }
    elements.set_len(0).map_err(|e| problem(ELEMENTS, e))?;
    let lines = OpenOptions::new().write(true).create_new(true).open(lines).map_err(|e| problem(LINES, e))?;
    Ok((lines, elements))
}

/// Says that the first line of a dump is written: until then qdiff refuses a folder in which an earlier one failed.
///
/// # Errors
/// If it still says that.
pub(crate) fn ready(folder: &Path) -> Result<(), String> {
    match std::fs::remove_file(folder.join(TROUBLE)) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(format!("cannot remove {TROUBLE} in {}: {e}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Leaves in the folder why nothing is dumped there, so that what is there is judged for no values of this run; the same as an
/// error.
pub(crate) fn refused(folder: &Path, why: &str) -> Error {
    if std::fs::write(folder.join(TROUBLE), format!("{why}\n")).is_err() {
        // The values of an earlier run must not be taken for those of this one.
        let _ = std::fs::remove_file(folder.join(LINES));
    }
    Error(why.to_owned())
}

/// Which dump this is, as JSON.
pub(crate) fn dump() -> String {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let run = std::env::var("QDIFF_RUN").ok().filter(|run| !run.is_empty());
    let run = run.map_or_else(String::new, |run| format!(",\"run\":{}", quoted(&run)));
    let (nonce, pid) = (RandomState::new().hash_one(started), std::process::id());
    format!("{{\"nonce\":\"{nonce:016x}\",\"started\":{started},\"pid\":{pid},\"closes\":true{run}}}")
}
