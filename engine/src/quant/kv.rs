//! What the rows of a KV cache are held in.

use super::ActivationFormat;
use crate::dtype::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The formats of caches by name, with what they are.
pub const CACHES: [(&str, ActivationFormat, &str); 11] = [
    ("f32", ActivationFormat::F32, "24 bits of precision"),
    ("f16", ActivationFormat::F16, "IEEE binary16, 11 bits of precision"),
    ("bf16", ActivationFormat::Bf16, "bfloat16, 8 bits of precision"),
    ("f8_e4m3", ActivationFormat::F8E4m3, "8-bit floating point, 4 bits of precision"),
    ("f8_e5m2", ActivationFormat::F8E5m2, "8-bit floating point, 3 bits of precision"),
    ("q8_0", ActivationFormat::Q8_0, "8 bits, a scale per 32 elements"),
    ("q5_1", ActivationFormat::Q5_1, "5 bits, a scale and an offset per 32 elements"),
    ("q5_0", ActivationFormat::Q5_0, "5 bits, a scale per 32 elements"),
    ("q4_1", ActivationFormat::Q4_1, "4 bits, a scale and an offset per 32 elements"),
    ("q4_0", ActivationFormat::Q4_0, "4 bits, a scale per 32 elements"),
    ("iq4_nl", ActivationFormat::Iq4Nl, "one of 16 uneven numbers, a scale per 32 elements"),
];

/// The formats of the key cache and of the value cache; each of [`CACHES`]. Written as one name, or as `q8_0/q4_1` where
/// they differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct KvType {
    /// Of keys.
    pub keys: ActivationFormat,
    /// Of values.
    pub values: ActivationFormat,
}

/// A name that is no type of a KV cache.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no type of a KV cache; take one of {names}, or two such as q8_0/q4_1 for keys and values", names = names())]
pub struct NoKvType(String);

fn names() -> String {
    CACHES.map(|(name, ..)| name).join(", ")
}

impl KvType {
    /// f32 for both.
    pub const F32: Self = Self { keys: ActivationFormat::F32, values: ActivationFormat::F32 };

    /// The format of the cache of values, or of that of keys.
    pub fn of(self, values: bool) -> ActivationFormat {
        if values { self.values } else { self.keys }
    }

    /// The one number format of both caches, if it is one without blocks.
    pub fn number(self) -> Option<DType> {
        self.keys.number().filter(|_| self.keys == self.values)
    }

    /// Elements of a row that must be stored together: 32 if a format has blocks, else 1.
    pub fn block_size(self) -> usize {
        self.keys.block_size().max(self.values.block_size())
    }
}

impl From<DType> for KvType {
    fn from(dtype: DType) -> Self {
        Self { keys: dtype.into(), values: dtype.into() }
    }
}

impl FromStr for KvType {
    type Err = NoKvType;

    fn from_str(text: &str) -> Result<Self, NoKvType> {
        let (keys, values) = text.split_once('/').unwrap_or((text, text));
        let of = |name: &str| {
            let found = CACHES.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
            found.map(|(_, format, _)| *format).ok_or_else(|| NoKvType(text.to_owned()))
        };
        Ok(Self { keys: of(keys)?, values: of(values)? })
    }
}

impl TryFrom<String> for KvType {
    type Error = NoKvType;

    fn try_from(text: String) -> Result<Self, NoKvType> {
        text.parse()
    }
}

impl From<KvType> for String {
    fn from(kv: KvType) -> Self {
        kv.to_string()
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |format: ActivationFormat| {
            CACHES.iter().find(|(_, known, _)| *known == format).map_or("another format", |(name, ..)| name)
        };
        match self.keys == self.values {
            true => f.pad(name(self.keys)),
            false => f.pad(&format!("{}/{}", name(self.keys), name(self.values))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_and_written() {
        for (name, format, _) in CACHES {
            assert_eq!(name.parse(), Ok(KvType { keys: format, values: format }));
            assert_eq!(serde_json::to_value(KvType { keys: format, values: format }).unwrap(), name);
            // The name is the one that the format has in a manifest.
            assert_eq!(serde_json::to_value(format).unwrap(), name);
        }
        let apart: KvType = serde_json::from_str("\"q8_0/q4_1\"").unwrap();
        assert_eq!(apart, KvType { keys: ActivationFormat::Q8_0, values: ActivationFormat::Q4_1 });
        assert_eq!((apart.to_string().as_str(), apart.number(), apart.block_size()), ("q8_0/q4_1", None, 32));
        for text in ["q8_1", "q8_0/", "/q8_0", "q8_0/q8_0/q8_0", ""] {
            assert!(text.parse::<KvType>().is_err(), "{text}");
        }
    }
}
