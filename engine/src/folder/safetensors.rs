//! The header of a safetensors file: 8 bytes with its length, little-endian, then JSON, then the elements of all tensors,
//! whose offsets count from the end of the header.

use super::object::{Object, each_key};
use crate::quant::GgmlType;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// Longest header in bytes that the format allows.
const MAX_HEADER: u64 = 100_000_000;
/// The header entry with metadata of the whole file.
const METADATA: &str = "__metadata__";
/// Most axes that a tensor of a model has.
const MAX_AXES: usize = 4;

/// A tensor as a header describes it.
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) ty: GgmlType,
    /// Elements per axis, the contiguous one last.
    pub(super) shape: Vec<u64>,
    /// Bytes from the end of the header.
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// What a header says.
pub(super) struct Header {
    pub(super) tensors: Vec<Tensor>,
    /// Where the elements begin, in bytes from the start of the file.
    pub(super) data: u64,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The tensors of a header by their names, in its order. They are read as they come: a tree of all values would take 24
/// times the bytes of the header.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                each_key(map, |name, map| {
                    let wrong =
                        |what: String, e: A::Error| A::Error::custom(format!("{what} is described wrongly: {e}"));
                    if name == METADATA {
                        // Texts alone: so the format demands, and so the other reader does.
                        map.next_value::<Object<String>>().map_err(|e| wrong(format!("{METADATA:?}"), e))?;
                    } else {
                        let entry = map.next_value().map_err(|e| wrong(format!("tensor {name:?}"), e))?;
                        entries.push((name, entry));
                    }
                    Ok(())
                })?;
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// Reads the header of a whole file. The tensors must fill the rest of the file, one behind the other: so the format
/// demands, and so no two of them share bytes.
///
/// # Errors
/// What is wrong with the file, and the remedy.
pub(super) fn header(file: &[u8]) -> Result<Header, String> {
    let again = "fetch it again";
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(format!("is truncated: {} bytes, at least 8 expected; {again}", file.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        let lfs = if file.starts_with(b"version ") { "it is a Git LFS pointer: run `git lfs pull`" } else { again };
        return Err(format!("is no safetensors file: its header claims {length} bytes, at most 10^8 expected; {lfs}"));
    }
    let Some((json, data)) = rest.split_at_checked(length as usize) else {
        let needed = 8 + length;
        return Err(format!(
            "is truncated: {} bytes, at least {needed} expected (for the header); {again}",
            file.len()
        ));
    };
    let entries: Entries =
        serde_json::from_slice(json).map_err(|e| format!("has a header that cannot be read: {e}; {again}"))?;
    let mut tensors = Vec::new();
    for (name, Entry { dtype, shape, data_offsets: [begin, end] }) in entries.0 {
        let refuse = |what: String| Err(format!("tensor {name:?} {what}; {again}"));
        let Some(ty) = element(&dtype) else {
            return Err(format!(
                "tensor {name:?} is of dtype {dtype:?}, which is not supported; use a model in F32, F16 or BF16"
            ));
        };
        if shape.len() > MAX_AXES {
            return refuse(format!("has {} axes, above the limit of {MAX_AXES}", shape.len()));
        }
        let expected = shape.iter().try_fold(ty.type_size() as u64, |n, axis| n.checked_mul(*axis));
        let Some(size) = end.checked_sub(begin).filter(|size| Some(*size) == expected) else {
            return refuse(format!("has shape {shape:?} of {dtype}, which data_offsets {begin} to {end} do not hold"));
        };
        tensors.push(Tensor { name, ty, shape, offset: begin, size });
    }
    tensors.sort_by_key(|t| (t.offset, t.size));
    let mut expected = 0;
    for t in &tensors {
        if t.offset != expected {
            return Err(format!("tensor {:?} is at offset {}, expected {expected}; {again}", t.name, t.offset));
        }
        // No overflow: the end was read as a u64.
        expected += t.size;
    }
    if expected != data.len() as u64 {
        return Err(format!("has {} bytes behind its header, and its tensors take {expected}; {again}", data.len()));
    }
    Ok(Header { tensors, data: 8 + length })
}

fn element(dtype: &str) -> Option<GgmlType> {
    match dtype {
        "F32" => Some(GgmlType::F32),
        "F16" => Some(GgmlType::F16),
        "BF16" => Some(GgmlType::BF16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(json: &str, data: usize) -> Vec<u8> {
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &vec![7; data]].concat()
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

    #[test]
    fn tensors_are_read_in_the_order_of_their_bytes() {
        let header = header(&file(TWO, 20)).unwrap();
        let read: Vec<_> =
            header.tensors.iter().map(|t| (t.name.as_str(), t.ty, &t.shape[..], t.offset, t.size)).collect();
        assert_eq!(read, [("a", GgmlType::F32, &[2][..], 0, 8), ("b", GgmlType::BF16, &[2, 3], 8, 12)]);
        assert_eq!(header.data, 8 + TWO.len() as u64);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_refused() {
        let whole = file(TWO, 20);
        assert!((0..whole.len()).all(|n| header(&whole[..n]).is_err()));
    }

    /// Sizes and offsets that another reader might believe, each with a word of its refusal.
    #[test]
    fn hostile_headers_are_refused() {
        let one = |entry: &str| file(&format!(r#"{{"a":{{{entry}}}}}"#), 8);
        let refused = [
            (u64::MAX.to_le_bytes().to_vec(), "claims"),
            ((1u64 << 40).to_le_bytes().to_vec(), "claims"),
            (99_999_999u64.to_le_bytes().to_vec(), "truncated"),
            (file("[]", 0), "expected an object"),
            (file(&"[".repeat(100_000), 0), "cannot be read"),
            (file(r#"{"__metadata__":[]}"#, 0), "\"__metadata__\" is described wrongly"),
            (file(r#"{"__metadata__":{"format":1}}"#, 0), "\"__metadata__\" is described wrongly"),
            (one(r#""dtype":"F32","shape":[2],"data_offsets":[8,0]"#), "do not hold"),
            (one(r#""dtype":"F32","shape":[3],"data_offsets":[0,8]"#), "do not hold"),
            (one(r#""dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]"#), "do not hold"),
            (one(r#""dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]"#), "do not hold"),
            (one(r#""dtype":"F32","shape":[-2],"data_offsets":[0,8]"#), "described wrongly"),
            (
                one(r#""dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551616]"#),
                "described wrongly",
            ),
            (
                one(r#""dtype":"F32","shape":[2],"data_offsets":[18446744073709551607,18446744073709551615]"#),
                "at offset",
            ),
            (one(r#""dtype":"F32","shape":[2],"data_offsets":[4,12]"#), "at offset"),
            (one(r#""dtype":"F32","shape":[1],"data_offsets":[0,4]"#), "behind its header"),
            (one(r#""dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]"#), "use a model in F32"),
            (one(r#""dtype":"F32","shape":[1,1,1,1,2],"data_offsets":[0,8]"#), "axes"),
            (file(&TWO.replace("\"b\"", "\"a\""), 20), "occurs twice"),
            (file(&TWO.replace("[8,20]", "[4,16]"), 20), "at offset"),
        ];
        for (bytes, word) in refused {
            let why = header(&bytes).err().unwrap_or_else(|| panic!("accepted, expected {word:?}"));
            assert!(why.contains(word), "{why}");
        }
        let pointer = b"version https://git-lfs.github.com/spec/v1".as_slice();
        assert!(header(pointer).err().unwrap().contains("git lfs pull"));
    }

    proptest! {
        #[test]
        fn mutations_never_panic(edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6)) {
            let mut bytes = file(TWO, 20);
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(header) = header(&bytes) {
                for t in header.tensors {
                    prop_assert!(header.data + t.offset + t.size <= bytes.len() as u64);
                }
            }
        }
    }
}
