//! Names of places in a model: `embed`, `L07.q_rope`, `logits`.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A stage of the graph: its name, the layer it belongs to if it is repeated per layer, and its rank if the graph is cut.
///
/// Printed as `L07.q_rope`, or `logits` for a stage outside the layers; `r1.L07.q_rope` of rank 1. The
/// name is always one that a graph declares, hence `'static`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String")]
pub struct StageId {
    /// Layer index from 0; `None` for the stages before and after the layers.
    pub layer: Option<u16>,
    /// Stage name without the layer, e.g. `q_rope`.
    pub name: &'static str,
    /// The rank that has it, where a graph is cut over ranks.
    pub rank: Option<u16>,
}

impl StageId {
    /// A stage of layer `layer`.
    pub const fn layer(layer: u16, name: &'static str) -> Self {
        Self { layer: Some(layer), name, rank: None }
    }

    /// A stage outside the layers.
    pub const fn global(name: &'static str) -> Self {
        Self { layer: None, name, rank: None }
    }
}

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = self.rank.map_or_else(String::new, |rank| format!("r{rank}."));
        match (self.layer, self.rank) {
            (Some(layer), _) => f.pad(&format!("{rank}L{layer:02}.{}", self.name)),
            (None, Some(_)) => f.pad(&(rank + self.name)),
            (None, None) => f.pad(self.name),
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
        let (rank, text) = of_rank(text);
        let (layer, name) = match text.strip_prefix('L').and_then(|t| t.split_once('.')) {
            Some((layer, name)) => (Some(layer.parse().map_err(|_| unknown())?), name),
            None => (None, text),
        };
        let known = super::STAGES.iter().find(|id| id.name == name && id.layer.is_some() == layer.is_some());
        known.map(|id| Self { layer, rank, ..*id }).ok_or_else(unknown)
    }
}

/// The rank that a text begins with, such as `r1.`, and the rest.
pub fn of_rank(text: &str) -> (Option<u16>, &str) {
    let found = text.strip_prefix('r').and_then(|t| t.split_once('.'));
    match found.and_then(|(rank, rest)| Some((rank.parse().ok()?, rest))) {
        Some((rank, rest)) => (Some(rank), rest),
        None => (None, text),
    }
}

impl StageId {
    /// The same stage on no rank: what it is called in a graph that is not cut.
    pub const fn whole(self) -> Self {
        Self { rank: None, ..self }
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
        let of_rank = StageId { rank: Some(1), ..deep };
        assert_eq!((of_rank.to_string().as_str(), "r1.L123.q_rope".parse()), ("r1.L123.q_rope", Ok(of_rank)));
        for no in ["", "L07", "L07.", "q_rope", "L07.logits", "Lx.q_rope", "L07.q_rope ", "r.logits", "rx.logits"] {
            assert!(no.parse::<StageId>().is_err(), "{no}");
        }
    }
}
