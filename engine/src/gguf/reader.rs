//! Checked reading of little-endian bytes.

use super::error::Problem;

/// llama.cpp's limit of a string's bytes and of an array's elements.
pub(super) const MAX_LENGTH: u64 = 1 << 30;

/// Reads from the front; every read is checked against the file's end.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the front of a file.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Refuses if the file has fewer than `needed` bytes.
    pub(super) fn check(&self, what: &'static str, needed: u64) -> Result<(), Problem> {
        let len = self.bytes.len() as u64;
        if needed > len { Err(Problem::Truncated { what, needed, len }) } else { Ok(()) }
    }

    pub(super) fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], Problem> {
        let end = (self.at as u64).saturating_add(n);
        self.check(what, end)?;
        let taken = &self.bytes[self.at..end as usize];
        self.at = end as usize;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Problem> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, Problem> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, Problem> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], Problem> {
        let len = self.u64(what)?;
        if len > MAX_LENGTH {
            return Err(Problem::Damaged(format!("has a string of {len} bytes, above the limit of 2^30")));
        }
        self.take(len, what)
    }

    /// `n` numbers, at most [`MAX_LENGTH`], of `N` bytes each.
    pub(super) fn numbers<T, const N: usize>(
        &mut self, n: u64, read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Problem> {
        let bytes = self.take(n * N as u64, "an array")?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect())
    }
}
