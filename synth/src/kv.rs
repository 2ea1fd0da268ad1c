//! The encoding of GGUF files.

use crate::Tensor;
use llama_cpp_sys_2 as sys;

/// Alignment of the data section and of each tensor in it, GGUF's default.
const ALIGNMENT: usize = 32;

/// A file's metadata, encoded: key-value pairs.
#[derive(Default)]
pub struct Kv {
    count: usize,
    bytes: Vec<u8>,
}

impl Kv {
    fn entry(&mut self, key: &str, ty: u32, value: &[u8]) {
        self.count += 1;
        put_str(&mut self.bytes, key);
        put_u32(&mut self.bytes, ty);
        self.bytes.extend_from_slice(value);
    }

    fn array(&mut self, key: &str, ty: u32, len: usize) {
        self.entry(key, sys::GGUF_TYPE_ARRAY, &ty.to_le_bytes());
        put_u64(&mut self.bytes, len);
    }

    /// An unsigned integer.
    pub fn u32(&mut self, key: &str, value: u32) {
        self.entry(key, sys::GGUF_TYPE_UINT32, &value.to_le_bytes());
    }

    /// A float.
    pub fn f32(&mut self, key: &str, value: f32) {
        self.entry(key, sys::GGUF_TYPE_FLOAT32, &value.to_le_bytes());
    }

    /// A truth value.
    pub fn bool(&mut self, key: &str, value: bool) {
        self.entry(key, sys::GGUF_TYPE_BOOL, &[value.into()]);
    }

    /// A text.
    pub fn string(&mut self, key: &str, value: &str) {
        self.entry(key, sys::GGUF_TYPE_STRING, &[]);
        put_str(&mut self.bytes, value);
    }

    /// An array of texts.
    pub fn strings(&mut self, key: &str, values: &[String]) {
        self.array(key, sys::GGUF_TYPE_STRING, values.len());
        values.iter().for_each(|v| put_str(&mut self.bytes, v));
    }

    /// An array of signed integers.
    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        self.array(key, sys::GGUF_TYPE_INT32, values.len());
        self.bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }

    /// A file of this metadata and of `tensors` with their data.
    pub(crate) fn file(&self, tensors: &[(Tensor, Vec<u8>)]) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        put_u64(&mut out, tensors.len());
        put_u64(&mut out, self.count);
        out.extend_from_slice(&self.bytes);
        let mut offset = 0;
        for (tensor, data) in tensors {
            put_str(&mut out, &tensor.name);
            put_u32(&mut out, tensor.ne.len() as u32);
            for &n in &tensor.ne {
                put_u64(&mut out, n);
            }
            put_u32(&mut out, tensor.ty.id());
            put_u64(&mut out, offset);
            offset += data.len().next_multiple_of(ALIGNMENT);
        }
        for data in std::iter::once(&Vec::new()).chain(tensors.iter().map(|(_, data)| data)) {
            out.extend_from_slice(data);
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        }
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

fn put_str(out: &mut Vec<u8>, value: &str) {
    put_u64(out, value.len());
    out.extend_from_slice(value.as_bytes());
}
