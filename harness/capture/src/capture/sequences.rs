//! A pass over several sequences, taken apart: each sequence's rows and slots of the caches become a step of its own.

use super::{Collector, Foreign, Step, Want};
use anyhow::Result;
use qdiff_engine::cpu::{Group, Row, Sequences};
use qdiff_engine::model::{Axis, Graph, Node, StageId};
use qdiff_engine::ops::anatomy::RowReduction;
use qdiff_engine::ops::{Anatomy, Tensor};
use qdiff_engine::tap::{Part, TapSink};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Collects the selected values of a pass, for each sequence separately.
#[derive(Debug)]
pub struct PassCollector {
    want: Arc<Want>,
    rows: usize,
    /// The sequences after the pass.
    after: Sequences,
    groups: Vec<(Group, Collector)>,
    /// Whether scores and weights are of positions, not of slots.
    by_position: bool,
}

impl PassCollector {
    /// For `rows`, which follow what the `sequences` have so far.
    ///
    /// # Errors
    /// If there are no rows, or a sequence does not go on where it ended.
    pub fn new(want: &Arc<Want>, sequences: &Sequences, rows: &[Row]) -> Result<Self> {
        let (after, groups) = sequences.after(rows)?;
        let collector = |group: Group| {
            let first = group.positions.first().map_or(0, |first| *first as usize);
            let collector = Collector::new(want, first, &group.tokens).of_sequence(group.sequence);
            (group, collector)
        };
        let groups = groups.into_iter().map(collector).collect();
        Ok(Self { want: want.clone(), rows: rows.len(), after, groups, by_position: false })
    }

    /// For an engine whose scores and weights are by position of a row's own sequence, not by slot.
    #[must_use]
    pub fn with_keys_by_position(self) -> Self {
        Self { by_position: true, ..self }
    }

    /// The sequences after the pass.
    pub fn after(&self) -> &Sequences {
        &self.after
    }

    /// The shape that `node` has in the pass.
    pub fn extent(&self, node: &Node) -> Vec<usize> {
        let extent = Graph::extent(node, self.rows, self.after.slots()).into_iter();
        // A state is one of each sequence.
        let of_states = |(n, axis): (usize, &Axis)| if *axis == Axis::Last { self.groups.len() } else { n };
        extent.zip(&node.shape).map(of_states).collect()
    }

    /// How many of the `n` entries mean something to the node in its row `r`, which is a token of what has a row for each. All of
    /// them where rows are of several sequences.
    pub fn meaningful(&self, node: &Node, r: usize, n: usize) -> usize {
        match self.groups.as_slice() {
            [(group, _)] if self.after.is_one() => node.op.meaningful(group.positions[0] + r as u32, n),
            _ => n,
        }
    }

    /// Whether a sequence wants the stage.
    pub fn wants(&self, id: StageId) -> bool {
        self.groups.iter().any(|(_, collector)| collector.wants(id))
    }

    /// Keeps the selected values of a stage's tensor; gives false if it was given before.
    pub fn take(&mut self, node: &Node, tensor: Arc<Tensor<f32>>) -> bool {
        let alone = self.after.is_one();
        let mut first = true;
        for (group, collector) in &mut self.groups {
            if alone {
                first &= collector.take(node.id, tensor.clone());
                continue;
            }
            if !collector.wants(node.id) {
                continue;
            }
            let pairs = matches!(node.shape[..], [Axis::Fixed(_), Axis::Tokens, Axis::Keys]);
            let mut own = match pairs && self.by_position {
                true => Group { slots: (0..group.slots.len()).collect(), ..group.clone() }.gather(&node.shape, &tensor),
                false => group.gather(&node.shape, &tensor),
            };
            if let [Axis::Fixed(heads), Axis::Tokens, Axis::Keys] = node.shape[..] {
                let keys = group.slots.len();
                for (r, row) in own.data.chunks_mut(keys.max(1)).enumerate() {
                    // What means nothing is 0, as where a sequence is alone.
                    let seen = node.op.meaningful(group.positions[r % group.positions.len()], keys);
                    row[seen..].fill(0.0);
                }
                if matches!(node.op.anatomy(), Anatomy::RowReduction(RowReduction::Exponentials(_)))
                    && !self.by_position
                {
                    let foreign = foreign(group, &self.after, heads, &tensor);
                    collector.note_foreign(node.id, foreign);
                }
            }
            first &= collector.take(node.id, Arc::new(own));
        }
        first
    }

    /// Wanted stages that were not tapped, sorted; and how many are wanted.
    pub fn missing(&self) -> (Vec<StageId>, usize) {
        let all: Vec<_> = self.groups.iter().map(|(_, collector)| collector.missing()).collect();
        let total = all.iter().map(|(_, total)| *total).max().unwrap_or(0);
        let missing: BTreeSet<StageId> = all.into_iter().flat_map(|(missing, _)| missing).collect();
        (missing.into_iter().collect(), total)
    }

    /// The step of each sequence that has rows in the pass, with all that was tapped.
    pub fn finish(self) -> Vec<Step> {
        let of = |(group, collector): (Group, Collector)| {
            let slots = group.positions.iter().map(|p| group.slots.get(*p as usize).copied()).collect();
            Step { slots, ..collector.finish() }
        };
        self.groups.into_iter().map(of).collect()
    }

    /// The same as a sink of an engine that runs `graph`.
    pub fn taps<'a>(&'a mut self, graph: &'a Graph) -> PassTaps<'a> {
        PassTaps { graph, pass: self, parts: Vec::new() }
    }

    /// What is wanted.
    pub fn want(&self) -> &Arc<Want> {
        &self.want
    }
}

/// The rows of weights `[H, T, slots]` of a group that look at slots that are not its own.
fn foreign(group: &Group, after: &Sequences, heads: usize, weights: &Tensor<f32>) -> Vec<Foreign> {
    let (tokens, slots) = (weights.shape[1], weights.shape[2]);
    let mut others = vec![true; slots];
    group.slots.iter().for_each(|slot| others[*slot] = false);
    let mut found = Vec::new();
    for head in 0..heads {
        for (r, &position) in group.rows.iter().zip(&group.positions) {
            let row = &weights.data[(head * tokens + r) * slots..][..slots];
            let seen = || (0..slots).filter(|&slot| others[slot] && row[slot] != 0.0);
            let Some(most) = seen().max_by(|&a, &b| row[a].abs().total_cmp(&row[b].abs())) else { continue };
            found.push(Foreign {
                position: position as usize,
                head,
                sequence: after.owner(most).unwrap_or_default(),
                weight: seen().map(|slot| row[slot]).sum(),
            });
        }
    }
    found
}

/// A [`PassCollector`] as engines take it.
pub struct PassTaps<'a> {
    graph: &'a Graph,
    pass: &'a mut PassCollector,
    /// The parts so far of a stage that comes in parts.
    parts: Vec<f32>,
}

impl TapSink for PassTaps<'_> {
    fn wants(&self, id: StageId) -> bool {
        self.pass.wants(id)
    }

    fn tap(&mut self, id: StageId, value: Arc<Tensor<f32>>) {
        if let Some(index) = self.graph.index(id) {
            self.pass.take(&self.graph.nodes[index], value);
        }
    }

    fn part(&mut self, part: Part<'_>) {
        self.parts.extend_from_slice(part.values);
        if self.parts.len() == part.shape.iter().product::<usize>() {
            let data = std::mem::take(&mut self.parts);
            self.tap(part.id, Arc::new(Tensor { shape: part.shape.to_vec(), data }));
        }
    }
}
