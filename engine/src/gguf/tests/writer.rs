//! Writes the small files of the tests.

use super::{Gguf, GgufError};

/// A tiny writer: a header, then what the test appends.
pub(crate) struct File(pub(crate) Vec<u8>);

impl File {
    pub(crate) fn new(tensors: i64, entries: i64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).i64(tensors).i64(entries)
    }
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub(crate) fn u32(self, v: u32) -> Self {
        self.raw(&v.to_le_bytes())
    }
    pub(crate) fn i64(self, v: i64) -> Self {
        self.raw(&v.to_le_bytes())
    }
    pub(crate) fn str(self, s: &[u8]) -> Self {
        self.i64(s.len() as i64).raw(s)
    }
    pub(crate) fn kv_u32(self, key: &str, v: u32) -> Self {
        self.str(key.as_bytes()).u32(4).u32(v)
    }
    pub(crate) fn kv_text(self, key: &str, text: &str) -> Self {
        self.str(key.as_bytes()).u32(8).str(text.as_bytes())
    }
    pub(crate) fn kv_texts(self, key: &str, texts: &[&[u8]]) -> Self {
        let array = self.str(key.as_bytes()).u32(9).u32(8).i64(texts.len() as i64);
        texts.iter().fold(array, |file, text| file.str(text))
    }
    pub(crate) fn tensor(self, name: &str, dims: &[i64], ty: u32, offset: i64) -> Self {
        let named = self.str(name.as_bytes()).u32(dims.len() as u32);
        dims.iter().fold(named, |file, dim| file.i64(*dim)).u32(ty).i64(offset)
    }
    /// Padding to `alignment`, then `n` bytes of data.
    pub(crate) fn data(mut self, alignment: usize, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment) + n, 7);
        self
    }
    pub(crate) fn read(self) -> Result<Gguf, GgufError> {
        Gguf::from_bytes(self.0)
    }
}
