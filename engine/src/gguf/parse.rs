//! The header's parser: bytes to checked metadata and tensor entries.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use super::error::{Problem, remedy};
use super::reader::{MAX_LENGTH, Reader};
use super::value::{ArrayValue, StringArray, Value};
use super::{Gguf, Part, TensorInfo};
use crate::quant::GgmlType;

/// Bytes of a tensor name, with the NUL that C adds (`GGML_MAX_NAME`).
const MAX_NAME: usize = 64;
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u32 = 32;
/// Numbers of the types whose length is not fixed, and of the last of all types.
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const LAST_TYPE: u32 = 12;

/// Parses a whole file, which was read from `path`.
pub(super) fn parse(file: Box<dyn AsRef<[u8]> + Send + Sync>, path: Option<&Path>) -> Result<Gguf, Problem> {
    let bytes = (*file).as_ref();
    if bytes.is_empty() {
        return Err(Problem::Damaged("is empty".to_owned()));
    }
    if !bytes.starts_with(b"GGUF") && !b"GGUF".starts_with(bytes) {
        let start = shown(bytes);
        let remedy = remedy(&start);
        return Err(Problem::NotGguf(format!("is not a GGUF file: it starts with \"{start}\"; {remedy}")));
    }
    let mut r = Reader::new(bytes);
    r.take(4, "the magic")?;
    let version = version(r.u32("the version")?)?;
    let n_tensors = count("tensors", r.u64("the number of tensors")?)?;
    let n_kv = count("metadata entries", r.u64("the number of metadata entries")?)?;

    let mut metadata = Vec::new();
    let mut keys = HashMap::new();
    for i in 0..n_kv {
        let key = r.string("a key")?;
        if key.is_empty() {
            return Err(Problem::Made(format!("metadata entry {i} has an empty key")));
        }
        let key = name("key", key)?;
        let Entry::Vacant(place) = keys.entry(key.clone()) else {
            return Err(Problem::Made(format!("key {key:?} occurs twice")));
        };
        place.insert(metadata.len());
        let value = value(&mut r, &key)?;
        metadata.push((key, value));
    }
    let alignment = alignment(keys.get("general.alignment").map(|i| &metadata[*i].1))?;

    let mut tensors = Vec::new();
    let mut names = HashMap::new();
    for _ in 0..n_tensors {
        let tensor = tensor(&mut r)?;
        let Entry::Vacant(place) = names.entry(tensor.name.clone()) else {
            return Err(Problem::Made(format!("tensor {:?} occurs twice", tensor.name)));
        };
        place.insert(tensors.len());
        tensors.push(tensor);
    }

    let mut data_offset = r.position();
    if !tensors.is_empty() {
        data_offset = data_offset.next_multiple_of(alignment);
        r.check("the start of the tensor data", data_offset)?;
    }
    check_data(&r, data_offset, alignment, &tensors)?;
    let part = Part { path: path.map(Path::to_owned), alignment, data_offset, bytes: file, opened: None };
    Ok(Gguf { version, metadata, tensors, keys, names, parts: vec![part] })
}

/// Tensors must follow each other without gaps but padding, inside the file.
fn check_data(r: &Reader<'_>, data_offset: u64, alignment: u64, tensors: &[TensorInfo]) -> Result<(), Problem> {
    let mut expected = 0_u64;
    let mut needed = 0;
    for t in tensors {
        if t.offset != expected {
            let TensorInfo { name, offset, .. } = t;
            return Err(Problem::Made(format!("tensor {name:?} is at offset {offset}, expected {expected}")));
        }
        let end = expected.checked_add(t.size).and_then(|end| end.checked_add(data_offset));
        let padded = t.size.checked_next_multiple_of(alignment);
        let next = padded.and_then(|padded| expected.checked_add(padded));
        let (Some(end), Some(next)) = (end, next) else {
            return Err(Problem::Overflow(t.name.clone()));
        };
        // Each tensor ends before the next starts, so the last end is the greatest.
        needed = end;
        expected = next;
    }
    r.check("the tensor data", needed)
}

fn version(version: u32) -> Result<u32, Problem> {
    match version {
        2 | 3 => Ok(version),
        v if v != 0 && v & 0xffff == 0 => {
            Err(Problem::NotGguf("is a big-endian GGUF file; convert the model again without --bigendian".to_owned()))
        }
        v => Err(Problem::Made(format!("is GGUF version {v}, but only 2 and 3 are supported"))),
    }
}

fn count(what: &'static str, n: u64) -> Result<u64, Problem> {
    let signed = n as i64;
    if signed < 0 { Err(Problem::Damaged(format!("has an impossible number of {what}, {signed}"))) } else { Ok(n) }
}

fn alignment(value: Option<&Value>) -> Result<u64, Problem> {
    match value {
        None => Ok(DEFAULT_ALIGNMENT.into()),
        Some(Value::U32(a)) if a.is_power_of_two() => Ok(u64::from(*a)),
        Some(Value::U32(a)) => Err(Problem::Made(format!("general.alignment is {a} but must be a power of 2"))),
        Some(other) => {
            Err(Problem::Made(format!("general.alignment is of type {} but must be u32", other.type_name())))
        }
    }
}

fn value(r: &mut Reader<'_>, key: &str) -> Result<Value, Problem> {
    match r.u32("a value's type")? {
        STRING => Ok(Value::String(r.string("a metadata value")?.into())),
        ARRAY => Ok(Value::Array(array(r, key)?)),
        id => Value::read(r, id)?.ok_or_else(|| invalid_type(key, id)),
    }
}

fn invalid_type(key: &str, id: u32) -> Problem {
    let nested = if id == ARRAY { " (an array in an array)" } else { "" };
    Problem::Made(format!("key {key:?} has invalid type {id}{nested}"))
}

fn array(r: &mut Reader<'_>, key: &str) -> Result<ArrayValue, Problem> {
    let id = r.u32("an array's type")?;
    let n = r.u64("an array's length")?;
    if n > MAX_LENGTH && id != ARRAY && id <= LAST_TYPE {
        return Err(Problem::Damaged(format!("key {key:?} is an array of {n} elements, above the limit of 2^30")));
    }
    if id != STRING {
        return ArrayValue::read(r, id, n)?.ok_or_else(|| invalid_type(key, id));
    }
    // Each string takes at least the 8 bytes of its length.
    r.check("an array of strings", r.position().saturating_add(n * 8))?;
    let mut strings = StringArray::default();
    for _ in 0..n {
        strings.push(r.string("a string in an array")?);
    }
    Ok(ArrayValue::String(strings))
}

fn tensor(r: &mut Reader<'_>) -> Result<TensorInfo, Problem> {
    let raw = r.string("a tensor's name")?;
    if raw.len() >= MAX_NAME {
        let (start, len) = (shown(raw), raw.len());
        return Err(Problem::Made(format!("tensor name \"{start}\" has {len} bytes, above the limit of 63")));
    }
    let name = name("tensor name", raw)?;

    let n = r.u32("a tensor's dimensions")?;
    if n > MAX_DIMS {
        return Err(Problem::Made(format!("tensor {name:?} has {n} dimensions, above the limit of 4")));
    }
    let mut dims = Vec::new();
    for _ in 0..n {
        let dim = r.u64("a tensor's dimensions")?;
        if (dim as i64) < 0 {
            return Err(Problem::Made(format!("tensor {name:?} has a negative dimension, {}", dim as i64)));
        }
        dims.push(dim);
    }
    // Elements before a dimension of zero must fit into an i64 too.
    let mut elements = dims.first().copied().unwrap_or(1);
    for dim in dims.iter().skip(1) {
        match elements.checked_mul(*dim) {
            Some(product) if i64::try_from(product).is_ok() => elements = product,
            _ => return Err(Problem::Overflow(name)),
        }
    }

    let id = r.u32("a tensor's type")?;
    let Some(ty) = GgmlType::from_id(id) else {
        return Err(Problem::Made(format!("tensor {name:?} has unknown or removed type {id}")));
    };
    let row = dims.first().copied().unwrap_or(1);
    let block = ty.block_size() as u64;
    if !row.is_multiple_of(block) {
        return Err(Problem::Made(format!(
            "tensor {name:?} has rows of {row}, no multiple of {ty}'s block of {block}"
        )));
    }
    let Some(size) = (elements / block).checked_mul(ty.type_size() as u64) else {
        return Err(Problem::Overflow(name));
    };
    let offset = r.u64("a tensor's offset")?;
    Ok(TensorInfo { name, dims, ggml_type: ty, part: 0, offset, size })
}

/// A key or a tensor name as text.
fn name(what: &'static str, bytes: &[u8]) -> Result<String, Problem> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
        _ => Err(Problem::Name(what, shown(bytes))),
    }
}

/// The start of `bytes`, escaped, for a message.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(16)].escape_ascii().to_string()
}
