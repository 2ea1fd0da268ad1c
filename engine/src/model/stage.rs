//! Names of places in a model: `embed`, `L07.q_rope`, `logits`.

use std::fmt;

/// A stage of the graph: its name, and the layer it belongs to if it is
/// repeated per layer.
///
/// Printed as `L07.q_rope`, or `logits` for a stage outside the layers. The
/// name is always one that a graph declares, hence `'static`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StageId {
    /// Layer index from 0; `None` for the stages before and after the layers.
    pub layer: Option<u16>,
    /// Stage name without the layer, e.g. `q_rope`.
    pub name: &'static str,
}

impl StageId {
    /// A stage of layer `layer`.
    pub const fn layer(layer: u16, name: &'static str) -> Self {
        Self {
            layer: Some(layer),
            name,
        }
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
