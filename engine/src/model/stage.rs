//! Names of places in a model: `embed`, `L07.q_rope`, `logits`.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use std::fmt;

/// A stage of the graph: its name, the layer it belongs to if it is repeated per layer, and its rank if the graph is cut.
///
/// Printed as `L07.q_rope`, or `logits` for a stage outside the layers; `r1.L07.q_rope` of rank 1. The
/// name is always one that a graph declares, so `'static`.
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
pub struct UnknownStage(pub(super) String);

/// The rank that a text begins with, such as `r1.`, and the rest.
pub fn of_rank(text: &str) -> (Option<u16>, &str) {
    let found = text.strip_prefix('r').and_then(|t| t.split_once('.'));
    match found.and_then(|(rank, rest)| Some((rank.parse().ok()?, rest))) {
        Some((rank, rest)) => (Some(rank), rest),
        None => (None, text),
    }
}

impl StageId {
    /// The same stage on no rank: its name in a graph that is not cut.
    pub const fn whole(self) -> Self {
        Self { rank: None, ..self }
    }
}

impl Serialize for StageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
