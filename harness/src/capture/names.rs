//! How the arrays of a capture are called, and how they lie: as the graph
//! calls them, or as an engine does whose names a map translates.

use crate::input;
use anyhow::{Context as _, Result, bail, ensure};
use qdiff_engine::model::{Graph, Node, StageId};
use std::collections::HashMap;
use std::path::Path;

/// Stands for the layer's number in a map.
const LAYER: &str = "{L}";

/// A stage by some array name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Index of the node in the graph.
    pub node: usize,
    /// Whether the name is the engine's own: then the array is brought into
    /// the stage's shape where its elements lie in the same order.
    pub foreign: bool,
    /// Order in which the array's axes are to be taken; empty for as it lies.
    pub axes: Vec<usize>,
}

/// The stages of a graph by array name.
#[derive(Debug)]
pub struct Names {
    by_name: HashMap<String, Named>,
    /// Whether a map is in use: then other arrays are the engine's own affair.
    pub mapped: bool,
}

impl Names {
    /// The graph's own names.
    pub fn of(graph: &Graph) -> Self {
        let nodes = graph.nodes.iter().enumerate();
        let own = |(node, n): (usize, &Node)| (n.id.to_string(), Named { node, foreign: false, axes: Vec::new() });
        Self { by_name: nodes.map(own).collect(), mapped: false }
    }

    /// The graph's own names, and those of the map in the file `path`, a line for each: `THEIRS = OURS`, with `{L}` for
    /// the layer's number on both sides, and after a colon the order of axes where theirs is another:
    ///
    /// ```text
    /// # theirs                            ours
    /// model.layers.{L}.self_attn.q_rotated = q_rope : 1,0,2
    /// lm_head                              = logits
    /// ```
    ///
    /// A stage that is repeated per layer is named without its layer.
    ///
    /// # Errors
    /// A file that cannot be read; a line that is none of that, names a stage
    /// that the model does not have, or a name that is there twice.
    pub fn read(graph: &Graph, path: &Path) -> Result<Self> {
        let text = input::text(path, input::TEXT).with_context(|| format!("cannot read the map {}", path.display()))?;
        let mut names = Self::of(graph);
        names.mapped = true;
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if !line.is_empty() {
                names.line(graph, line).with_context(|| format!("{} line {}", path.display(), i + 1))?;
            }
        }
        Ok(names)
    }

    fn line(&mut self, graph: &Graph, line: &str) -> Result<()> {
        let (theirs, ours) = line.split_once('=').with_context(|| format!("`{line}` is not THEIRS = OURS"))?;
        let (ours, axes) = ours.split_once(':').unwrap_or((ours, ""));
        let (theirs, ours) = (theirs.trim(), ours.trim());
        let axes = axes_of(axes)?;
        let stages: Vec<(usize, StageId)> =
            graph.nodes.iter().enumerate().filter(|(_, n)| n.id.name == ours).map(|(i, n)| (i, n.id)).collect();
        ensure!(!stages.is_empty(), "no stage is called `{ours}`; the stages are: {}", graph.stage_names().join(" "));
        for (node, id) in stages {
            let name = match id.layer {
                Some(layer) => {
                    ensure!(
                        theirs.contains(LAYER),
                        "`{ours}` is in every layer, and `{theirs}` has no {LAYER} for its number"
                    );
                    theirs.replace(LAYER, &layer.to_string())
                }
                None => theirs.to_owned(),
            };
            let named = Named { node, foreign: true, axes: axes.clone() };
            if self.by_name.insert(name.clone(), named).is_some() {
                bail!("`{name}` is a name already");
            }
        }
        Ok(())
    }

    /// The stage that an array called `name` belongs to.
    pub fn get(&self, name: &str) -> Option<&Named> {
        self.by_name.get(name)
    }
}

/// Reads `1,0,2`: a permutation, or nothing.
fn axes_of(text: &str) -> Result<Vec<usize>> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let axes: Option<Vec<usize>> = text.split(',').map(|a| a.trim().parse().ok()).collect();
    let axes = axes.with_context(|| format!("`{text}` is not an order of axes such as 1,0,2"))?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    ensure!(sorted.iter().copied().eq(0..axes.len()), "`{text}` does not name each axis once, from 0 on");
    Ok(axes)
}

#[cfg(test)]
mod tests {
    use super::axes_of;

    #[test]
    fn orders_of_axes_are_permutations() {
        assert_eq!(axes_of(" 1, 0,2").unwrap(), [1, 0, 2]);
        assert!(axes_of("").unwrap().is_empty());
        for bad in ["1,2", "0,0", "x", "0,,1"] {
            assert!(axes_of(bad).is_err(), "{bad}");
        }
    }
}
