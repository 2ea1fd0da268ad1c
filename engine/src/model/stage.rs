//! Names of places in a model: `embed`, `L07.q_rope`, `logits`.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A stage of the graph: its name, and the layer it belongs to if it is repeated per layer.
///
/// Printed as `L07.q_rope`, or `logits` for a stage outside the layers. The
/// name is always one that a graph declares, hence `'static`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String")]
pub struct StageId {
    /// Layer index from 0; `None` for the stages before and after the layers.
    pub layer: Option<u16>,
    /// Stage name without the layer, e.g. `q_rope`.
    pub name: &'static str,
}

impl StageId {
    /// A stage of layer `layer`.
    pub const fn layer(layer: u16, name: &'static str) -> Self {
        Self { layer: Some(layer), name }
    }

    /// A stage outside the layers.
    pub const fn global(name: &'static str) -> Self {
        Self { layer: None, name }
    }
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => f.pad(&format!("L{layer:02}.{}", self.name)),
            None => f.pad(self.name),
        }
    }
}

impl fmt::Debug for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that names no stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no stage of an architecture that qdiff knows")]
pub struct UnknownStage(String);

impl FromStr for StageId {
    type Err = UnknownStage;

    /// Reads what [`StageId`] prints. The name must be one that the graph of some architecture declares.
    fn from_str(text: &str) -> Result<Self, UnknownStage> {
        let unknown = || UnknownStage(text.to_owned());
        let (layer, name) = match text.strip_prefix('L').and_then(|t| t.split_once('.')) {
            Some((layer, name)) => (Some(layer.parse().map_err(|_| unknown())?), name),
            None => (None, text),
        };
        let known = super::STAGES.iter().find(|id| id.name == name && id.layer.is_some() == layer.is_some());
        known.map(|id| Self { layer, ..*id }).ok_or_else(unknown)
    }
}

impl Serialize for StageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        for &id in crate::model::STAGES.iter() {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let deep = StageId::layer(123, "q_rope");
        assert_eq!("L123.q_rope".parse(), Ok(deep));
        for no in ["", "L07", "L07.", "q_rope", "L07.logits", "Lx.q_rope", "L07.q_rope "] {
            assert!(no.parse::<StageId>().is_err(), "{no}");
        }
    }
}
