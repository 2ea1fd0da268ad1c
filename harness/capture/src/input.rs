//! Files that people name, opened without waiting and read up to a bound: a FIFO without a writer would be waited for
//! for ever, a device never ends, and a sparse file is larger than any memory.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Bytes of what people write by hand: prompts, maps, settings.
pub const TEXT: u64 = 64 << 20;

/// Bytes of what qdiff wrote: reports and results.
pub const REPORT: u64 = 1 << 30;

/// Opens a plain file for reading.
///
/// # Errors
/// One that cannot be read, or is none: a directory, a FIFO, a device.
pub fn open(path: &Path) -> Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    match found.is_file() {
        true => Ok(file),
        false if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        false => Err(Error::other("it is no plain file; save it as one first")),
    }
}

/// The content of a plain file of at most `most` bytes.
///
/// # Errors
/// As [`open`]; also a longer file, of which only that much is read.
pub fn bytes(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = open(path)?;
    // Nothing is read of a sparse file that is too long.
    if file.metadata()?.len() > most { Err(too_long(most)) } else { whole(file, most) }
}

/// What comes from `source`, at most `most` bytes.
///
/// # Errors
/// If it cannot be read, or more comes.
pub fn whole(source: impl Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = source.take(most + 1).read_to_end(&mut bytes)?;
    if read as u64 > most { Err(too_long(most)) } else { Ok(bytes) }
}

fn too_long(most: u64) -> Error {
    Error::new(ErrorKind::FileTooLarge, format!("it is longer than {} MiB", most >> 20))
}

/// The same of a file that is UTF-8.
///
/// # Errors
/// As [`bytes`]; and one that is not.
pub fn text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(bytes(path, most)?).map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_is_allowed() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (length, fits) in [(0, true), (1 << 20, true), ((1 << 20) + 1, false), (1 << 50, false)] {
            // Sparse: the lengths matter, not the bytes.
            if file.as_file().set_len(length).is_ok() {
                assert_eq!(bytes(file.path(), 1 << 20).is_ok(), fits, "{length}");
            }
        }
    }
}
