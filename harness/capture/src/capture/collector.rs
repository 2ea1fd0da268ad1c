//! What is to be kept of a run, and the sink that keeps it.

use super::store::parts;
use super::{Filter, Foreign, Step, Store, Stored};
use qdiff_engine::model::{Graph, Node, StageId};
use qdiff_engine::ops::Tensor;
use qdiff_engine::tap::{Part, TapSink};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Which stages and rows of a run are kept, and where.
#[derive(Debug)]
pub struct Want {
    /// With the axis that counts tokens.
    stages: HashMap<StageId, Option<usize>>,
    /// The stage whose last row chooses the next token.
    choice: Option<StageId>,
    positions: Option<HashSet<usize>>,
    /// Where the tensors go.
    pub store: Arc<Store>,
    /// Stages taken so far, of all steps.
    taken: AtomicUsize,
}

impl Want {
    /// What `filter` selects from a runner that can hand out the stages `taps`, the operands, and the logits of the
    /// last token of every step, in any case: they choose the next.
    pub fn new(graph: &Graph, filter: &Filter, taps: &dyn Fn(&Node) -> bool, store: &Arc<Store>) -> Arc<Self> {
        let set = filter.capture_set(graph, taps);
        let stages = graph.nodes.iter().filter(|n| set.contains(&n.id));
        Arc::new(Self {
            stages: stages.map(|n| (n.id, n.token_axis())).collect(),
            choice: graph.nodes.last().map(|n| n.id),
            positions: filter.positions.clone(),
            store: store.clone(),
            taken: AtomicUsize::new(0),
        })
    }

    /// What is to be kept of another graph in the place of this: the stages of it that `of` gives.
    pub fn of_others(&self, graph: &Graph, of: impl Fn(StageId) -> Option<StageId>) -> Arc<Self> {
        let wanted: HashSet<StageId> = self.stages.keys().filter_map(|id| of(*id)).collect();
        let stages = graph.nodes.iter().filter(|n| wanted.contains(&n.id));
        Arc::new(Self {
            stages: stages.map(|n| (n.id, n.token_axis())).collect(),
            choice: self.choice.and(graph.nodes.last()).map(|n| n.id),
            positions: self.positions.clone(),
            store: self.store.clone(),
            taken: AtomicUsize::new(0),
        })
    }

    /// How many stages were taken so far, of all steps, and how many are wanted of each.
    pub fn taken(&self) -> (usize, usize) {
        (self.taken.load(Ordering::Relaxed), self.stages.len())
    }

    /// Only the logits of the last token of every step, which choose the next.
    pub fn choice(graph: &Graph, store: &Arc<Store>) -> Arc<Self> {
        let choice = graph.nodes.last().map(|n| n.id);
        Arc::new(Self {
            stages: HashMap::new(),
            choice,
            positions: None,
            store: store.clone(),
            taken: AtomicUsize::new(0),
        })
    }

    /// Nothing at all: an untapped run.
    pub fn nothing() -> Arc<Self> {
        Arc::new(Self {
            stages: HashMap::new(),
            choice: None,
            positions: None,
            store: Store::usual(None),
            taken: AtomicUsize::new(0),
        })
    }
}

/// Collects the selected values of one step.
#[derive(Debug)]
pub struct Collector {
    want: Arc<Want>,
    step: Step,
    /// The parts so far of a stage that comes in parts.
    parts: Vec<f32>,
}

impl Collector {
    /// For `tokens` from position `first` on.
    pub fn new(want: &Arc<Want>, first: usize, tokens: &[u32]) -> Self {
        let mut step = Step::new(first, tokens.to_vec());
        if let Some(positions) = &want.positions {
            step.keep_only(|p| positions.contains(&p));
        }
        Self { step, want: want.clone(), parts: Vec::new() }
    }

    /// The same of a sequence among several.
    pub(super) fn of_sequence(mut self, sequence: u32) -> Self {
        self.step.whose.sequence = sequence;
        self
    }

    /// Notes rows of a stage that look at what is not the sequence's.
    pub(super) fn note_foreign(&mut self, id: StageId, foreign: Vec<Foreign>) {
        if !foreign.is_empty() {
            self.step.foreign.insert(id, foreign);
        }
    }

    /// The step, with all that was tapped.
    pub fn finish(self) -> Step {
        self.step
    }

    /// The step so far.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// Wanted stages that were not tapped, sorted; and how many are wanted.
    pub fn missing(&self) -> (Vec<StageId>, usize) {
        let rows = self.step.rows() > 0;
        let mut wanted: Vec<StageId> = self.want.stages.keys().copied().filter(|_| rows).collect();
        let total = wanted.len();
        wanted.retain(|id| !self.step.stages.contains_key(id));
        if self.step.choice.is_none() {
            wanted.extend(self.want.choice);
        }
        wanted.sort();
        wanted.dedup();
        (wanted, total)
    }

    /// Keeps the selected values of a stage's tensor; gives false if it was given before.
    pub fn take(&mut self, id: StageId, tensor: Arc<Tensor<f32>>) -> bool {
        if Some(id) == self.want.choice && tensor.rows() > 0 {
            let row = tensor.row(tensor.rows() - 1);
            self.step.choice = Some(self.want.store.keep(Tensor { shape: vec![row.len()], data: row.to_vec() }));
        }
        let Some(axis) = self.want.stages.get(&id) else {
            return true;
        };
        self.want.taken.fetch_add(1, Ordering::Relaxed);
        let tensor = match (&self.step.kept, axis) {
            (Some(kept), _) if kept.is_empty() => return true,
            (Some(kept), Some(axis)) => Arc::new(select(&tensor, *axis, kept)),
            _ => tensor,
        };
        let stored: Stored = self.want.store.keep(tensor);
        self.step.stages.insert(id, stored).is_none()
    }
}

/// The entries `kept` along `axis`.
fn select(tensor: &Tensor<f32>, axis: usize, kept: &[usize]) -> Tensor<f32> {
    let kept: Vec<_> = kept.iter().map(|&k| k..k + 1).collect();
    parts(&tensor.shape, axis, &kept, |at, out| out.copy_from_slice(&tensor.data[at..at + out.len()]))
}

impl TapSink for Collector {
    fn wants(&self, id: StageId) -> bool {
        let rows = self.step.rows() > 0;
        rows && self.want.stages.contains_key(&id) || Some(id) == self.want.choice
    }

    fn tap(&mut self, id: StageId, value: Arc<Tensor<f32>>) {
        self.take(id, value);
    }

    fn part(&mut self, part: Part<'_>) {
        let len: usize = part.shape.iter().product();
        self.parts.reserve_exact(len - part.first);
        self.parts.extend_from_slice(part.values);
        if self.parts.len() == len {
            let data = std::mem::take(&mut self.parts);
            self.take(part.id, Arc::new(Tensor { shape: part.shape.to_vec(), data }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_parts_is_kept_as_what_comes_whole() {
        let (a, b) = (StageId::global("a"), StageId::global("b"));
        let want =
            Want { stages: [(a, Some(0)), (b, None)].into(), ..Arc::into_inner(Want::nothing()).expect("its own") };
        let mut collector = Collector::new(&Arc::new(want), 0, &[1, 2]);
        let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
        for (id, at) in [(a, 0..1), (a, 1..4), (a, 4..6), (b, 0..6)] {
            collector.part(Part { id, shape: &[2, 3], first: at.start, values: &values[at] });
        }
        let step = collector.finish();
        for id in [a, b] {
            let kept = step.stages[&id].get();
            assert_eq!((&kept.shape[..], &kept.data), (&[2, 3][..], &values));
        }
    }

    #[test]
    fn rows_are_selected_along_any_axis() {
        let t = Tensor { shape: vec![2, 3, 2], data: (0..12).map(|i| i as f32).collect() };
        let part = select(&t, 1, &[0, 2]);
        assert_eq!(part.shape, [2, 2, 2]);
        assert_eq!(part.data, [0.0, 1.0, 4.0, 5.0, 6.0, 7.0, 10.0, 11.0]);
        assert_eq!(select(&t, 0, &[1]).data, t.data[6..]);
    }
}
