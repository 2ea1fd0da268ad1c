//! The encoding of GGUF files.

use crate::tensor::Tensor;

// Types of metadata values, as GGUF numbers them.
const GGUF_TYPE_UINT16: u32 = 2;
const GGUF_TYPE_UINT32: u32 = 4;
const GGUF_TYPE_INT32: u32 = 5;
const GGUF_TYPE_FLOAT32: u32 = 6;
const GGUF_TYPE_BOOL: u32 = 7;
const GGUF_TYPE_STRING: u32 = 8;
const GGUF_TYPE_ARRAY: u32 = 9;
const GGUF_TYPE_UINT64: u32 = 10;

/// Alignment of the data section and of each tensor in it where the metadata say nothing: GGUF's default.
const ALIGNMENT: u32 = 32;

/// A file's metadata: keys, each with its value encoded. A key that is set again keeps its place.
pub struct Kv {
    entries: Vec<(String, Vec<u8>)>,
    alignment: u32,
}

impl Default for Kv {
    fn default() -> Self {
        Self { entries: Vec::new(), alignment: ALIGNMENT }
    }
}

impl Kv {
    fn entry(&mut self, key: &str, ty: u32, value: &[u8]) -> &mut Vec<u8> {
        let value = [&ty.to_le_bytes()[..], value].concat();
        let at = self.entries.iter().position(|(k, _)| k == key).unwrap_or(self.entries.len());
        if at == self.entries.len() {
            self.entries.push((key.to_owned(), Vec::new()));
        }
        self.entries[at].1 = value;
        &mut self.entries[at].1
    }

    fn array(&mut self, key: &str, ty: u32, len: usize) -> &mut Vec<u8> {
        let value = self.entry(key, GGUF_TYPE_ARRAY, &ty.to_le_bytes());
        put_u64(value, len);
        value
    }

    /// The keys, in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(key, _)| key.as_str())
    }

    /// Takes a key out.
    ///
    /// # Panics
    /// If there is no such key.
    pub fn remove(&mut self, key: &str) {
        let before = self.entries.len();
        self.entries.retain(|(k, _)| k != key);
        assert!(self.entries.len() < before, "no key {key:?}");
    }

    /// Aligns the data section, and each tensor in it, to `bytes`; 32 by default.
    pub fn align(&mut self, bytes: u32) {
        self.alignment = bytes;
        self.u32("general.alignment", bytes);
    }

    /// An unsigned integer.
    pub fn u32(&mut self, key: &str, value: u32) {
        self.entry(key, GGUF_TYPE_UINT32, &value.to_le_bytes());
    }

    /// An unsigned integer of two bytes.
    pub fn u16(&mut self, key: &str, value: u16) {
        self.entry(key, GGUF_TYPE_UINT16, &value.to_le_bytes());
    }

    /// A signed integer.
    pub fn i32(&mut self, key: &str, value: i32) {
        self.entry(key, GGUF_TYPE_INT32, &value.to_le_bytes());
    }

    /// A float.
    pub fn f32(&mut self, key: &str, value: f32) {
        self.entry(key, GGUF_TYPE_FLOAT32, &value.to_le_bytes());
    }

    /// A truth value.
    pub fn bool(&mut self, key: &str, value: bool) {
        self.entry(key, GGUF_TYPE_BOOL, &[value.into()]);
    }

    /// A text.
    pub fn string(&mut self, key: &str, value: &str) {
        put_str(self.entry(key, GGUF_TYPE_STRING, &[]), value.as_bytes());
    }

    /// An array of texts.
    pub fn strings(&mut self, key: &str, values: &[impl AsRef<[u8]>]) {
        let array = self.array(key, GGUF_TYPE_STRING, values.len());
        values.iter().for_each(|v| put_str(array, v.as_ref()));
    }

    /// An array of signed integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        self.array(key, GGUF_TYPE_INT32, values.len()).extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }

    /// An array of unsigned integers of 64 bits.
    pub fn u64s(&mut self, key: &str, values: &[u64]) {
        self.array(key, GGUF_TYPE_UINT64, values.len()).extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }

    /// An array of floats.
    pub fn f32s(&mut self, key: &str, values: &[f32]) {
        self.array(key, GGUF_TYPE_FLOAT32, values.len()).extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }

    /// A file of this metadata and of `tensors` with their data.
    pub(crate) fn file(&self, tensors: &[(Tensor, Vec<u8>)]) -> Vec<u8> {
        let mut out = self.header(tensors.iter().map(|(tensor, data)| (tensor, data.len())));
        for (_, data) in tensors {
            out.extend_from_slice(data);
            out.resize(self.padded(out.len()), 0);
        }
        out
    }

    /// `bytes`, up to where the next tensor begins.
    pub(crate) fn padded(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.alignment as usize)
    }

    /// The start of a file of this metadata and of `tensors` with so many bytes of data: all before the data.
    pub(crate) fn header<'a>(&self, tensors: impl ExactSizeIterator<Item = (&'a Tensor, usize)>) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        put_u64(&mut out, tensors.len());
        put_u64(&mut out, self.entries.len());
        for (key, value) in &self.entries {
            put_str(&mut out, key.as_bytes());
            out.extend_from_slice(value);
        }
        let mut offset = 0;
        for (tensor, bytes) in tensors {
            put_str(&mut out, tensor.name.as_bytes());
            put_u32(&mut out, tensor.ne.len() as u32);
            for &n in &tensor.ne {
                put_u64(&mut out, n);
            }
            put_u32(&mut out, tensor.ty.id());
            put_u64(&mut out, offset);
            offset += self.padded(bytes);
        }
        out.resize(self.padded(out.len()), 0);
        out
    }

    /// A file of this metadata and no tensors: a vocabulary.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.file(&[])
    }
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&(value as u64).to_le_bytes());
}

fn put_str(out: &mut Vec<u8>, value: &[u8]) {
    put_u64(out, value.len());
    out.extend_from_slice(value);
}
