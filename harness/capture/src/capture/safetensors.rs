//! Containers of safetensors: one file or several, arrays named STEP/STAGE.
//!
//! The format: 8 bytes with the length of a JSON header, the header, then the elements, whose offsets count from its end.
//! The crate of that name wants the whole file in memory and takes the last of two arrays of one name.

use super::array::Format;
use super::intake::{Intake, Pass};
use super::located::Source;
use anyhow::{Context as _, Result, ensure};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// Longest header in bytes: a hundred thousand arrays.
const HEADER: u64 = 16 << 20;

/// What a header says of an array.
#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// The arrays of a header; none is there twice.
struct Header(BTreeMap<String, Info>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Arrays;
        impl<'de> Visitor<'de> for Arrays {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of arrays")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut all = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else if all.insert(name, map.next_value()?).is_some() {
                        return Err(A::Error::custom("two arrays have one name; it is not clear which of them counts"));
                    }
                }
                Ok(Header(all))
            }
        }
        deserializer.deserialize_map(Arrays)
    }
}

/// A file, its arrays, and where their elements begin.
pub(super) struct Opened {
    source: Source,
    arrays: Header,
    start: u64,
}

impl Opened {
    /// Reads the header of the file at `path`.
    ///
    /// # Errors
    /// What is no such file.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let problem = || format!("{} is no safetensors file", path.display());
        let header = || -> Result<(Header, u64)> {
            let length = source.bytes(0, 8)?.try_into().map_or(0, u64::from_le_bytes);
            ensure!(length <= HEADER, "its header claims {length} bytes, and {HEADER} are read at most");
            let text = source.bytes(8, length)?;
            Ok((serde_json::from_slice(&text)?, 8 + length))
        };
        let (arrays, start) = header().with_context(problem)?;
        Ok(Self { source, arrays, start })
    }

    /// The names of the arrays.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.0.keys().map(String::as_str)
    }

    /// Hands over the arrays.
    ///
    /// # Errors
    /// As [`Intake::take`]; arrays that are not in the file, or not as long as their shape says.
    pub(super) fn read(&self, pass: Pass, intake: &mut Intake<'_>) -> Result<()> {
        for (name, info) in &self.arrays.0 {
            intake.take(pass, name, self.source.length, |_| {
                let format = Format::named(&info.dtype)?;
                let [begin, end] = info.data_offsets;
                let bytes = info.shape.iter().try_fold(format.size() as u64, |n, &d| n.checked_mul(d as u64));
                ensure!(
                    bytes.is_some() && bytes == end.checked_sub(begin),
                    "has shape {:?}, and its data_offsets {begin} to {end} hold another number of elements",
                    info.shape
                );
                let offset = self.start.checked_add(begin).context("begins beyond any file")?;
                self.source.array(format, info.shape.clone(), None, offset)
            })?;
        }
        Ok(())
    }
}
