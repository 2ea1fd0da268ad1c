//! The encoding of GGUF's metadata.

use llama_cpp_sys_2 as sys;

/// Encoded key-value pairs.
#[derive(Default)]
pub(crate) struct Kv {
    pub(crate) count: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Kv {
    fn key(&mut self, key: &str, ty: u32) {
        self.count += 1;
        put_str(&mut self.bytes, key);
        put_u32(&mut self.bytes, ty);
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) {
        self.key(key, sys::GGUF_TYPE_UINT32);
        put_u32(&mut self.bytes, value);
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        self.key(key, sys::GGUF_TYPE_FLOAT32);
        put_u32(&mut self.bytes, value.to_bits());
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.key(key, sys::GGUF_TYPE_BOOL);
        self.bytes.push(value.into());
    }

    pub(crate) fn string(&mut self, key: &str, value: &str) {
        self.key(key, sys::GGUF_TYPE_STRING);
        put_str(&mut self.bytes, value);
    }

    pub(crate) fn strings(&mut self, key: &str, values: &[String]) {
        self.key(key, sys::GGUF_TYPE_ARRAY);
        put_u32(&mut self.bytes, sys::GGUF_TYPE_STRING);
        put_u64(&mut self.bytes, values.len());
        for v in values {
            put_str(&mut self.bytes, v);
        }
    }

    pub(crate) fn i32s(&mut self, key: &str, values: &[i32]) {
        self.key(key, sys::GGUF_TYPE_ARRAY);
        put_u32(&mut self.bytes, sys::GGUF_TYPE_INT32);
        put_u64(&mut self.bytes, values.len());
        for v in values {
            self.bytes.extend_from_slice(&v.to_le_bytes());
        }
    }
}

pub(crate) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&(value as u64).to_le_bytes());
}

pub(crate) fn put_str(out: &mut Vec<u8>, value: &str) {
    put_u64(out, value.len());
    out.extend_from_slice(value.as_bytes());
}

pub(crate) fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(crate::ALIGNMENT), 0);
}
