//! Progress of long work.

/// Told what is being done, how much of it is done, and of how much.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// For whoever shows no progress.
pub fn silent(_: &str, _: usize, _: usize) {}
