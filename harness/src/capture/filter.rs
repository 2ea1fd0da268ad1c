//! Which stages, layers and positions are asked for.

use crate::nearest::hint;
use globset::{Glob, GlobMatcher};
use qdiff_engine::model::{Graph, Node, StageId};
use std::collections::{BTreeSet, HashSet};
use thiserror::Error;

/// A filter that names nothing, or not what the model has.
#[derive(Debug, Error)]
pub enum FilterError {
    /// A stage pattern without a match.
    #[error("no stage matches `{pattern}`{hint}")]
    Stage {
        /// As given.
        pattern: String,
        /// What may have been meant, and where the names stand.
        hint: String,
    },
    /// A layer that the model does not have.
    #[error("layer {layer} does not exist; the model has layers 0 to {last}")]
    Layer {
        /// As given.
        layer: usize,
        /// Largest layer index.
        last: usize,
    },
    /// Parts that exclude each other, or positions beyond the run.
    #[error("the filters select nothing: {0}")]
    Nothing(String),
    /// A list of numbers that cannot be read.
    #[error("`{0}` is not a list of numbers and ranges such as 0,3,8-11")]
    Numbers(String),
    /// A stage pattern that cannot be read.
    #[error("`{0}` is not a pattern: {1}")]
    Pattern(String, globset::Error),
}

/// What of a run is asked for; empty parts ask for everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    stages: Vec<GlobMatcher>,
    layers: Option<HashSet<usize>>,
    positions: Option<HashSet<usize>>,
    /// No position before this one.
    since: usize,
    /// Asks for nothing, whatever else it says.
    nothing: bool,
}

impl Filter {
    /// Reads the three options against the graph they are for.
    ///
    /// # Errors
    /// A pattern or layer that selects nothing: refused before anything runs.
    pub fn new(
        graph: &Graph,
        stages: &[String],
        layers: Option<&str>,
        positions: Option<&str>,
    ) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        for pattern in stages {
            let matcher = Glob::new(pattern).map_err(|e| FilterError::Pattern(pattern.clone(), e))?.compile_matcher();
            if !graph.nodes.iter().any(|n| matches(&matcher, n.id)) {
                let bare = pattern.rsplit_once('.').map_or(pattern.as_str(), |(_, name)| name);
                let hint = hint(bare, graph.stage_names(), "`qdiff inspect MODEL` lists the stages");
                return Err(FilterError::Stage { pattern: pattern.clone(), hint });
            }
            filter.stages.push(matcher);
        }
        filter.layers = layers.map(numbers).transpose()?;
        filter.positions = positions.map(numbers).transpose()?;
        let last = graph.config.n_layers - 1;
        if let Some(&layer) = filter.layers.iter().flatten().find(|&&l| l > last) {
            return Err(FilterError::Layer { layer, last });
        }
        Ok(filter)
    }

    /// Refuses a filter that selects nothing of a run of `tokens` tokens.
    ///
    /// # Errors
    /// If no stage or no position is left.
    pub fn check(&self, graph: &Graph, tokens: usize) -> Result<(), FilterError> {
        if !graph.nodes.iter().any(|n| self.stage(n.id)) {
            let why = "no stage is in these layers".to_owned();
            return Err(FilterError::Nothing(why));
        }
        if !(0..tokens).any(|p| self.position(p)) {
            let why = format!("the run has positions 0 to {}", tokens.saturating_sub(1));
            return Err(FilterError::Nothing(why));
        }
        Ok(())
    }

    /// Asks for nothing.
    pub fn none() -> Self {
        Self { nothing: true, ..Self::default() }
    }

    /// Whether the stage is asked for.
    pub fn stage(&self, id: StageId) -> bool {
        if self.nothing {
            return false;
        }
        let layer = match (&self.layers, id.layer) {
            (None, _) => true,
            (Some(layers), Some(layer)) => layers.contains(&usize::from(layer)),
            // Asking for layers leaves out what stands outside them, unless named.
            (Some(_), None) => !self.stages.is_empty(),
        };
        layer && (self.stages.is_empty() || self.stages.iter().any(|m| matches(m, id)))
    }

    /// Whether the position is asked for.
    pub fn position(&self, position: usize) -> bool {
        position >= self.since && self.positions.as_ref().is_none_or(|p| p.contains(&position))
    }

    /// The same, but of positions from `since` on.
    pub fn since(&self, since: usize) -> Self {
        Self { since, ..self.clone() }
    }

    /// The positions asked for; `None` asks for all.
    pub fn positions(&self) -> Option<&HashSet<usize>> {
        self.positions.as_ref()
    }

    /// The positions asked for of a run of `tokens` tokens, ascending; `None`
    /// asks for all.
    pub fn kept(&self, tokens: usize) -> Option<Vec<usize>> {
        let positions = self.positions.as_ref()?;
        Some((0..tokens).filter(|p| positions.contains(p)).collect())
    }

    /// The stages that must be captured to judge those asked for: they, and
    /// their operands. Of what a runner cannot hand out (`taps`), the stages
    /// around it: before it those it is evaluated from, after it those that
    /// show it.
    pub fn capture_set(&self, graph: &Graph, taps: &dyn Fn(&Node) -> bool) -> HashSet<StageId> {
        let known = |i: usize| taps(&graph.nodes[i]);
        let mut wanted = BTreeSet::new();
        for (index, _) in graph.nodes.iter().enumerate().filter(|(_, n)| self.stage(n.id)) {
            let shown_by = match known(index) {
                true => BTreeSet::from([index]),
                false => graph.after(index, &known),
            };
            for index in shown_by {
                wanted.insert(index);
                wanted.extend(graph.before(index, &known));
            }
        }
        wanted.into_iter().map(|i| graph.nodes[i].id).collect()
    }
}

/// A pattern matches the printed id (`L07.q_rope`) or the bare name.
pub(crate) fn matches(matcher: &GlobMatcher, id: StageId) -> bool {
    matcher.is_match(id.name) || matcher.is_match(id.to_string())
}

/// Reads `0,3,8-11`.
fn numbers(text: &str) -> Result<HashSet<usize>, FilterError> {
    let bad = || FilterError::Numbers(text.to_owned());
    let mut set = HashSet::new();
    for part in text.split(',') {
        let part = part.trim().trim_start_matches(['L', 'l', 'p']);
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let from: usize = from.trim().parse().map_err(|_| bad())?;
        let to: usize = to.trim().parse().map_err(|_| bad())?;
        if from > to || to - from > 1 << 20 {
            return Err(bad());
        }
        set.extend(from..=to);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn reads_lists_and_ranges() {
        let mut got: Vec<usize> = numbers("0, 3,8-10,L12").unwrap().into_iter().collect();
        got.sort_unstable();
        assert_eq!(got, [0, 3, 8, 9, 10, 12]);
        for bad in ["", "x", "3-1", "1-", "0-99999999"] {
            assert!(numbers(bad).is_err(), "{bad}");
        }
    }
}
