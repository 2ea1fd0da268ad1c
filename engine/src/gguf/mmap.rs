//! A read-only mapping of a file.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// A file's bytes, mapped into memory.
pub(super) struct Mapping(Mmap);

impl Mapping {
    /// Maps the whole file at `path`.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the mapping is private to this type and only ever read, as
        // plain bytes, for which every value is valid. That nobody changes or
        // cuts the file while it is open cannot be enforced; as with every
        // program that maps its models, cutting it ends the process (SIGBUS).
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self(map))
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
