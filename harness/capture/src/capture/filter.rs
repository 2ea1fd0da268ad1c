//! The selection of stages, layers and positions.

use crate::nearest::hint;
use anyhow::{Context as _, Result, bail, ensure};
use globset::{Glob, GlobMatcher};
use qdiff_engine::model::{Graph, Node, StageId};
use std::collections::{BTreeSet, HashSet};

/// The selected part of a run; an empty list selects everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    stages: Vec<GlobMatcher>,
    layers: Option<HashSet<usize>>,
    pub(super) positions: Option<HashSet<usize>>,
    /// No position before this one.
    since: usize,
}

impl Filter {
    /// Reads the three options against the graph they are for.
    ///
    /// # Errors
    /// A pattern or layer that selects nothing: refused before anything runs.
    pub fn new(graph: &Graph, stages: &[String], layers: Option<&str>, positions: Option<&str>) -> Result<Self> {
        let mut filter = Self::default();
        for pattern in stages {
            filter.stages.push(stages_like(graph, pattern)?);
        }
        filter.layers = layers.map(numbers).transpose()?;
        filter.positions = positions.map(numbers).transpose()?;
        let last = graph.config.n_layers - 1;
        if let Some(&layer) = filter.layers.iter().flatten().find(|&&l| l > last) {
            bail!("layer {layer} does not exist; the model has layers 0 to {last}");
        }
        Ok(filter)
    }

    /// Refuses a filter that selects nothing of a run of `tokens` tokens.
    ///
    /// # Errors
    /// If no stage or no position is left.
    pub fn check(&self, graph: &Graph, tokens: usize) -> Result<()> {
        let stage = graph.nodes.iter().any(|n| self.stage(n.id));
        ensure!(stage, "the filters select nothing: no stage is in these layers");
        let last = tokens.saturating_sub(1);
        let position = (0..tokens).any(|p| self.position(p));
        ensure!(position, "the filters select nothing: the run has positions 0 to {last}");
        Ok(())
    }

    /// Whether the stage is selected.
    pub fn stage(&self, id: StageId) -> bool {
        let layer = match (&self.layers, id.layer) {
            (None, _) => true,
            (Some(layers), Some(layer)) => layers.contains(&usize::from(layer)),
            // Asking for layers leaves out what stands outside them, unless named.
            (Some(_), None) => !self.stages.is_empty(),
        };
        layer && (self.stages.is_empty() || self.stages.iter().any(|m| matches(m, id)))
    }

    /// Whether every position is selected.
    pub fn every_position(&self) -> bool {
        self.positions.is_none()
    }

    /// Whether the position is selected.
    pub fn position(&self, position: usize) -> bool {
        position >= self.since && self.positions.as_ref().is_none_or(|p| p.contains(&position))
    }

    /// The same, but of positions from `since` on.
    pub fn since(&self, since: usize) -> Self {
        Self { since, ..self.clone() }
    }

    /// The positions asked for of a run of `tokens` tokens, ascending; `None` asks for all.
    pub fn kept(&self, tokens: usize) -> Option<Vec<usize>> {
        let positions = self.positions.as_ref()?;
        Some((0..tokens).filter(|p| positions.contains(p)).collect())
    }

    /// The stages that must be captured to judge the selected ones: these and their operands. For a stage that a runner
    /// cannot hand out (`taps`), the stages around it: before it those it is evaluated from, after it those that show
    /// it.
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

/// The pattern, which some stage matches.
///
/// # Errors
/// What is no pattern, or matches none: what may have been meant.
pub fn stages_like(graph: &Graph, pattern: &str) -> Result<GlobMatcher> {
    let glob = Glob::new(pattern).map_err(|e| anyhow::anyhow!("`{pattern}` is not a pattern: {e}"))?;
    let matcher = glob.compile_matcher();
    if !graph.nodes.iter().any(|n| matches(&matcher, n.id)) {
        let bare = pattern.rsplit_once('.').map_or(pattern, |(_, name)| name);
        let hint = hint(bare, graph.stage_names(), "`qdiff inspect MODEL` lists the stages");
        bail!("no stage matches `{pattern}`{hint}");
    }
    Ok(matcher)
}

/// A pattern matches the printed id (`L07.q_rope`, of a rank `r1.L07.q_rope`), the id on any rank, or the bare name.
pub fn matches(matcher: &GlobMatcher, id: StageId) -> bool {
    let whole = || id.rank.is_some() && matcher.is_match(id.whole().to_string());
    matcher.is_match(id.name) || matcher.is_match(id.to_string()) || whole()
}

/// Reads `0,3,8-11`.
fn numbers(text: &str) -> Result<HashSet<usize>> {
    let range = |part: &str| {
        let part = part.trim().trim_start_matches(['L', 'l', 'p']);
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        (from <= to && to - from <= 1 << 20).then_some(from..=to)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    let ranges = ranges.with_context(|| format!("`{text}` is not a list of numbers and ranges such as 0,3,8-11"))?;
    Ok(ranges.into_iter().flatten().collect())
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
