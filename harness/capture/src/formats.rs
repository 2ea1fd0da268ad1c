//! The number formats of stages.

use qdiff_engine::dtype::DType;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A number format for all stages, or one for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Formats {
    /// One for all.
    All(DType),
    /// Some have their own.
    Each(OfStages),
}

/// Number formats of stages: by a pattern, else by the op, else the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OfStages {
    /// Of every other stage.
    pub default: DType,
    /// By the name of an op, such as `residual`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ops: BTreeMap<String, DType>,
    /// By a pattern as `--stages` takes it, such as `L*.q_*`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, DType>,
}

impl<'de> Deserialize<'de> for Formats {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        name_or_map(from, "a number format, or an object of them", Self::All, Self::Each)
    }
}

/// Reads what is either a name or an object, and says what is wrong with the one that it is.
pub(crate) fn name_or_map<'de, D: Deserializer<'de>, N: Deserialize<'de>, M: Deserialize<'de>, T>(
    from: D, expected: &'static str, of_name: fn(N) -> T, of_map: fn(M) -> T,
) -> Result<T, D::Error> {
    struct Either<N, M, T>(&'static str, fn(N) -> T, fn(M) -> T);
    impl<'de, N: Deserialize<'de>, M: Deserialize<'de>, T> Visitor<'de> for Either<N, M, T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, name: &str) -> Result<T, E> {
            N::deserialize(name.into_deserializer()).map(self.1)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            M::deserialize(MapAccessDeserializer::new(map)).map(self.2)
        }
    }
    from.deserialize_any(Either(expected, of_name, of_map))
}

impl Default for Formats {
    fn default() -> Self {
        Self::All(DType::F32)
    }
}

impl Formats {
    /// Whether they are f32 throughout.
    pub fn plain(&self) -> bool {
        let plain = |format: &DType| *format == DType::F32;
        match self {
            Self::All(format) => plain(format),
            Self::Each(of) => plain(&of.default) && of.ops.values().chain(of.stages.values()).all(plain),
        }
    }
}

impl fmt::Display for Formats {
    /// `bf16`, or `bf16 (residual f32, L*.q_* f16)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(format) => write!(f, "{format}"),
            Self::Each(of) => {
                write!(f, "{}", of.default)?;
                let others: Vec<String> =
                    of.ops.iter().chain(&of.stages).map(|(what, format)| format!("{what} {format}")).collect();
                if others.is_empty() { Ok(()) } else { write!(f, " ({})", others.join(", ")) }
            }
        }
    }
}
