//! Captures: the taps of one run, with what identifies the run.

mod array;
mod collector;
pub mod container;
pub mod dump;
mod exporter;
mod filter;
mod intake;
mod located;
pub mod manifest;
mod map;
mod names;
mod npy;
pub mod npz;
mod parts;
mod passes;
mod plan;
pub mod raw;
mod rounding;
mod rows;
mod safetensors;
mod sequences;
mod store;
mod view;

pub use array::Shapes;
pub use collector::{Collector, Want};

pub use filter::Filter;
pub use filter::{matches, stages_like};
pub use names::Names;
pub use passes::{Lengths, Pass, Passes, in_other_run, steps};
pub use plan::{Fed, Plan, Share, Shift, Whose};
pub use rounding::Rounding;
pub use sequences::{PassCollector, PassTaps};
pub use store::{BUDGET, Store, Stored};

use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Axis, Graph, Node, StageId};
use qdiff_engine::ops::anatomy::RowReduction;
use qdiff_engine::ops::{Anatomy, Tensor};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Most characters of a file's own text that an error repeats.
const QUOTED: usize = 200;

/// `text`, shortened where a hostile file made it long.
fn quoted(text: &str) -> String {
    shortened(text, QUOTED)
}

/// The first `most` characters of `text`.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The stages of one step: a part of the prefill, or a later pass, which mostly is one decoded token.
#[derive(Debug)]
pub struct Step {
    /// 0 for all of the prefill, 1 for the first pass after it.
    pub index: usize,
    /// The number of its run, by which captures name it; 0 where there is one alone.
    pub run: u32,
    /// What that run is of.
    pub whose: Whose,
    /// Position of the first token.
    pub first: usize,
    /// Tokens the step was forced on, `[T]`.
    pub tokens: Vec<u32>,
    /// Which of these tokens have their rows in the stages, ascending; all of them where `None`.
    pub kept: Option<Vec<usize>>,
    /// Output of each captured stage, shaped as the graph says, with a row for each kept token.
    pub stages: HashMap<StageId, Stored>,
    /// The last token's logits, `[V]`, which choose the next token.
    pub choice: Option<Stored>,
    /// The stages of which the row of one position alone was captured, that of the prompt's last token, as of an engine
    /// that computes no other logits ([`Graph::of_last_token`]). Their other rows hold NaN and are no part of the capture.
    pub last_row: Option<(BTreeSet<StageId>, usize)>,
    /// The logprob that the engine itself reports for the token after each kept token.
    pub logprobs: Option<Vec<f32>>,
    /// Rows of attention weights that look at slots of the cache that the sequence does not have: those of other sequences, or of the
    /// step's own sequence, which took the tokens back.
    pub foreign: BTreeMap<StageId, Vec<Foreign>>,
    /// Where it is in a pass of several sequences.
    pub in_pass: Option<InPass>,
    /// The cache slot of each token, where that is known.
    pub slots: Option<Vec<usize>>,
    /// Whether the pass went on with tokens that were taken back: it gave no state after the last token here.
    pub cut_short: bool,
    /// Whether it is the last step of a prefix, or before tokens were taken back: an engine may have made its states again.
    pub handed_on: bool,
    /// What was removed from the middle of its sequence before the step.
    pub shift: Option<Shift>,
    /// How often that was done in its run by then.
    pub shifts: u32,
    /// States before the step that the engine made again and handed out.
    pub before: BTreeMap<StageId, Arc<Stored>>,
}

/// The place of a step in a pass of several sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPass {
    /// The number of the pass.
    pub number: usize,
    /// The position of the pass's first row, of whichever sequence.
    pub first: usize,
    /// The rows that the pass has of that row's sequence.
    pub leads: usize,
    /// Sequences that have rows in it before the step's own.
    pub turn: usize,
    /// Rows before the step's own.
    pub before: usize,
    /// The most rows that the pass has of one sequence.
    pub most: usize,
    /// If that is one: the most keys that a sequence had when a pass of one row for each sequence, and of as many rows rounded up to
    /// a power of two, first ran. An engine may have recorded its launches then.
    pub recorded: Option<usize>,
    /// How many of its sequence's tokens another sequence has as well, by then.
    pub shared: usize,
    /// The rows of the pass.
    pub rows: usize,
    /// Whether a sequence begins in it.
    pub begins: bool,
    /// If every sequence has one row: the keys of the sequence at the same place when a pass of as many rows, rounded up to a power of
    /// two, first ran.
    pub recorded_here: Option<usize>,
    /// The fewest keys that a sequence of the pass sees.
    pub shortest: usize,
    /// The keys that the sequences before it and after it in the pass see.
    pub beside: [Option<usize>; 2],
}

/// A row of attention weights that looks at slots of the cache that its sequence does not have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Foreign {
    /// Position of the query.
    pub position: usize,
    /// Its head.
    pub head: usize,
    /// A sequence that has such a slot, the one of the largest weight.
    pub sequence: u32,
    /// The weight on all such slots together.
    pub weight: f32,
}

impl Step {
    /// A step without stages, all of whose rows are kept.
    pub fn new(first: usize, tokens: Vec<u32>) -> Self {
        let (stages, foreign, logprobs) = Default::default();
        Self {
            index: 0,
            run: 0,
            whose: Whose::default(),
            first,
            tokens,
            kept: None,
            stages,
            choice: None,
            last_row: None,
            logprobs,
            foreign,
            in_pass: None,
            slots: None,
            cut_short: false,
            handed_on: false,
            shift: None,
            shifts: 0,
            before: BTreeMap::new(),
        }
    }

    /// The same step without stages, all of whose rows are kept.
    pub fn bare(&self) -> Self {
        let Self { index, run, whose, in_pass, cut_short, handed_on, shift, shifts, .. } = *self;
        let (foreign, before) = (self.foreign.clone(), self.before.clone());
        let bare = Self { slots: self.slots.clone(), ..Self::new(self.first, self.tokens.clone()) };
        Self { index, run, whose, foreign, in_pass, cut_short, handed_on, shift, shifts, before, ..bare }
    }

    /// A copy of the first `tokens` tokens of the step, of which at least one is there, kept in `store`.
    pub fn copied(&self, graph: &Graph, tokens: usize, store: &Arc<Store>) -> Self {
        let whole = tokens == self.tokens.len();
        let kept = self.kept.as_ref().map(|kept| kept.iter().copied().filter(|offset| *offset < tokens).collect());
        let step =
            Self { kept, last_row: self.last_row.clone(), ..Self::new(self.first, self.tokens[..tokens].to_vec()) };
        let copied = |stored: &Stored| store.keep(stored.get().into_owned());
        let begun = |(id, stored): (&StageId, &Stored)| {
            let node = graph.index(*id).map(|index| &graph.nodes[index]).filter(|_| !whole);
            let mut copy = copied(stored);
            for (axis, count) in node.into_iter().flat_map(|node| step.extent(node).into_iter().enumerate()) {
                if copy.shape()[axis] > count {
                    copy = store.keep(copy.slice(axis, 0..count));
                }
            }
            (*id, copy)
        };
        // A stage that has the last token's row alone has none in a part before it.
        let none = |id: &StageId| {
            self.last_row.as_ref().is_some_and(|(stages, at)| *at >= self.first + tokens && stages.contains(id))
        };
        // Nor has a state that of a token within the step.
        let within = |id: &StageId| !whole && graph.index(*id).is_some_and(|i| graph.nodes[i].is_own_state());
        let stages = self.stages.iter().filter(|(id, _)| !none(id) && !within(id)).map(begun).collect();
        let choice = self.choice.as_ref().filter(|_| whole).map(copied);
        let mut foreign = self.foreign.clone();
        foreign.values_mut().for_each(|rows| rows.retain(|row| row.position < self.first + tokens));
        for (id, stored) in self.stages.iter().filter(|_| !whole) {
            let rows = graph.index(*id).map(|index| self.beyond(&graph.nodes[index], stored, tokens));
            if let Some(rows) = rows.filter(|rows| !rows.is_empty()) {
                foreign.entry(*id).or_default().extend(rows);
            }
        }
        let Self { index, run, whose, in_pass, handed_on, shift, shifts, .. } = *self;
        let (cut_short, before) = (self.cut_short || !whole, self.before.clone());
        let step = Self { index, run, whose, foreign, stages, choice, in_pass, cut_short, handed_on, before, ..step };
        let slots = self.slots.as_ref().map(|slots| slots[..tokens].to_vec());
        Self { slots, shift, shifts, ..step }
    }

    /// One step of the `steps` of a sequence in a pass, which follow each other; none of none. A cache is that of the last of them.
    pub fn joined(graph: &Graph, mut steps: Vec<Self>, store: &Arc<Store>) -> Option<Self> {
        let last = steps.pop()?;
        if steps.is_empty() {
            return Some(last);
        }
        steps.push(last);
        let (first, keys) = (steps[0].first, steps.last().map_or(0, Self::keys));
        let mut joined = Self::new(first, steps.iter().flat_map(|step| step.tokens.iter().copied()).collect());
        joined.whose = steps[0].whose;
        joined.before = std::mem::take(&mut steps[0].before);
        joined.slots = steps.iter().map(|step| step.slots.clone()).collect::<Option<Vec<_>>>().map(|all| all.concat());
        if steps.iter().any(|step| step.kept.is_some()) {
            let offsets =
                |step: &Self| (0..step.rows()).map(|r| step.first - first + step.offset(r)).collect::<Vec<_>>();
            joined.kept = Some(steps.iter().flat_map(offsets).collect());
        }
        let ids: BTreeSet<StageId> = steps.iter().flat_map(|step| step.stages.keys().copied()).collect();
        for id in ids {
            let Some(node) = graph.index(id).map(|index| &graph.nodes[index]) else { continue };
            let mut parts: Vec<Stored> = steps.iter_mut().filter_map(|step| step.stages.remove(&id)).collect();
            let stored = match (node.token_axis(), parts.pop()) {
                (Some(axis), Some(last)) => {
                    let parts: Vec<_> = parts.iter().chain([&last]).map(Stored::get).collect();
                    store.keep(of_rows(&parts, axis, node.shape.last() == Some(&Axis::Keys), keys))
                }
                (None, Some(last)) => last,
                (_, None) => continue,
            };
            joined.stages.insert(id, stored);
        }
        for step in steps {
            joined.choice = step.choice;
            step.foreign.into_iter().for_each(|(id, rows)| joined.foreign.entry(id).or_default().extend(rows));
        }
        Some(joined)
    }

    /// Of attention weights, the rows of its first `tokens` tokens that look at the keys of later ones.
    fn beyond(&self, node: &Node, stored: &Stored, tokens: usize) -> Vec<Foreign> {
        let of_keys = matches!(node.shape[..], [Axis::Fixed(_), Axis::Tokens, Axis::Keys]);
        if !of_keys || !matches!(node.op.anatomy(), Anatomy::RowReduction(RowReduction::Exponentials(_))) {
            return Vec::new();
        }
        let (weights, first_key) = (stored.get(), self.first + tokens);
        let [_, rows, keys] = weights.shape[..] else { return Vec::new() };
        let each = weights.data.chunks(keys.max(1)).enumerate().filter_map(|(row, weights)| {
            let (head, position) = (row / rows.max(1), self.first + self.offset(row % rows.max(1)));
            let weight: f32 = weights.get(first_key..)?.iter().sum();
            let looks = position < first_key && weights[first_key..].iter().any(|weight| *weight != 0.0);
            looks.then_some(Foreign { position, head, sequence: self.whose.sequence, weight })
        });
        each.collect()
    }

    /// Whether the stage has a row of its own for the token at `position`, as far as it was captured.
    pub fn has_row(&self, id: StageId, position: usize) -> bool {
        self.last_row.as_ref().is_none_or(|(stages, at)| !stages.contains(&id) || position == *at)
    }

    /// Keeps only the rows of positions that `wanted` accepts.
    pub fn keep_only(&mut self, wanted: impl Fn(usize) -> bool) {
        let kept: Vec<usize> = (0..self.tokens.len()).filter(|i| wanted(self.first + i)).collect();
        self.kept = (kept.len() < self.tokens.len()).then_some(kept);
    }

    /// Number of kept tokens: the rows of its stages.
    pub fn rows(&self) -> usize {
        self.kept.as_ref().map_or(self.tokens.len(), Vec::len)
    }

    /// Which token, counted from the step's first, row `r` belongs to.
    pub fn offset(&self, r: usize) -> usize {
        self.kept.as_ref().map_or(r, |k| k[r])
    }

    /// Positions of the kept tokens.
    pub fn positions(&self) -> Vec<u32> {
        (0..self.rows()).map(|r| (self.first + self.offset(r)) as u32).collect()
    }

    /// The kept tokens.
    pub fn kept_tokens(&self) -> Vec<u32> {
        (0..self.rows()).map(|r| self.tokens[self.offset(r)]).collect()
    }

    /// Tokens so far, those of this step included.
    pub fn keys(&self) -> usize {
        self.first + self.tokens.len()
    }

    /// The shape that `node` has in this step.
    pub fn extent(&self, node: &Node) -> Vec<usize> {
        Graph::extent(node, self.rows(), self.keys())
    }

    /// A captured stage; read from disk where it is there.
    pub fn get(&self, id: StageId) -> Option<Cow<'_, Tensor<f32>>> {
        self.stages.get(&id).map(Stored::get)
    }

    /// As captures on disk name it: `prefill`, `prefill@512` for the part of a
    /// prefill in ubatches that begins at position 512, `step3`; `s2.step3` of run 2.
    pub fn label(&self) -> String {
        let step = self.own_label();
        if self.run > 0 { format!("s{}.{step}", self.run) } else { step }
    }

    /// As sentences name it: `prefill@13 of sequence 0 after rollback 1`; without the sequence in the first run.
    pub fn told(&self) -> String {
        let step = self.own_label();
        if self.run > 0 { format!("{step} of {}", self.whose) } else { step }
    }

    fn own_label(&self) -> String {
        match (self.index, self.first) {
            (0, 0) => "prefill".to_owned(),
            // After a shift, positions come again.
            (0, first) if self.shifts > 0 => format!("prefill@{first}-{}", self.shifts),
            (0, first) => format!("prefill@{first}"),
            (n, _) => format!("step{n}"),
        }
    }
}

/// The rows of parts, which follow each other along `axis`. Rows that count keys have `keys` of them: those beyond a part's own are 0.
fn of_rows(parts: &[Cow<'_, Tensor<f32>>], axis: usize, by_keys: bool, keys: usize) -> Tensor<f32> {
    let mut shape = parts[0].shape.clone();
    shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
    if by_keys {
        shape[axis + 1..].last_mut().into_iter().for_each(|own| *own = keys);
    }
    let mut data = Vec::with_capacity(shape.iter().product());
    for outer in 0..shape[..axis].iter().product() {
        for part in parts {
            let row: usize = part.shape[axis + 1..].iter().product();
            let of_part = &part.data[outer * part.shape[axis] * row..][..part.shape[axis] * row];
            for row in of_part.chunks(part.shape[axis + 1..].last().copied().unwrap_or(1).max(1)) {
                data.extend_from_slice(row);
                data.resize(data.len() + if by_keys { keys - row.len() } else { 0 }, 0.0);
            }
        }
    }
    Tensor { shape, data }
}

/// All steps of one runner.
#[derive(Debug)]
pub struct Capture {
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Where their tensors are.
    pub store: Arc<Store>,
    /// What their values were rounded to.
    pub rounding: Rounding,
    /// The number formats, narrower than f32, of arrays that stages were read from.
    pub elements: HashMap<StageId, DType>,
    /// Whether the run was cut short, so that steps may be missing of which nothing is known.
    pub cut: bool,
    /// Lines of the map that fit no array, as errors call them.
    pub unmatched: Vec<String>,
    /// What the engine gave its kernels for the rows of each pass of a run of several sequences.
    pub rows: Vec<RowsSaid>,
}

/// The whole numbers that an engine gave its kernels for the rows of a pass, as far as it was captured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowsSaid {
    /// The position of each row.
    pub positions: Option<Vec<i64>>,
    /// The cache slot that each row was written to.
    pub slots: Option<Vec<i64>>,
    /// The slots of the positions of each sequence that has rows.
    pub tables: BTreeMap<u32, Vec<i64>>,
    /// The sequence of each row, in the order of the rows of the pass.
    pub sequences: Vec<u32>,
}

impl Capture {
    /// Leaves out the steps in the pass of this number of a run of several sequences, and in later ones.
    pub fn end_before_pass(&mut self, number: usize) {
        self.steps.retain(|step| step.in_pass.is_none_or(|pass| pass.number < number));
    }

    /// Whether the step of this index is one of its own run, and not of another one that it begins with.
    pub fn is_own(&self, index: usize) -> bool {
        self.steps.last().is_none_or(|last| self.steps[index].run == last.run)
    }

    /// The tokens of its own steps.
    pub fn own_tokens(&self) -> impl Iterator<Item = u32> {
        let own = (0..self.steps.len()).filter(|&index| self.is_own(index));
        own.flat_map(|index| self.steps[index].tokens.iter().copied())
    }

    /// The same steps without any stage: what nobody captured.
    pub fn blank(&self) -> Self {
        let steps = self.steps.iter().map(|s| Step { kept: s.kept.clone(), ..s.bare() });
        Self { steps: steps.collect(), ..self.sibling() }
    }

    /// A capture without steps.
    pub fn new(store: Arc<Store>) -> Self {
        let (elements, unmatched, rows) = Default::default();
        Self { steps: Vec::new(), store, rounding: Rounding::default(), elements, cut: false, unmatched, rows }
    }

    /// The tokens up to the end of the step `index`, from position 0 on; none if the capture begins later.
    pub fn history(&self, index: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        for step in &self.steps[..=index] {
            if let Some(Shift { tokens: removed, from }) =
                step.shift.filter(|shift| shift.from + shift.tokens < tokens.len())
            {
                tokens.drain(from..from + removed);
            }
            if step.first > tokens.len() {
                return Vec::new();
            }
            tokens.truncate(step.first);
            tokens.extend(&step.tokens);
        }
        tokens
    }

    /// Tokens of each step after the prefill that has several, by its number.
    pub fn longer(&self) -> BTreeMap<usize, usize> {
        let later = self.steps.iter().filter(|step| step.index > 0 && step.tokens.len() > 1);
        later.map(|step| (step.index, step.tokens.len())).collect()
    }

    /// The same with what another rank captured of the same steps.
    fn with(mut self, other: Self) -> Self {
        for (step, of_other) in self.steps.iter_mut().zip(other.steps) {
            step.stages.extend(of_other.stages);
            step.choice = of_other.choice.or(step.choice.take());
            if let Some((stages, at)) = of_other.last_row {
                step.last_row.get_or_insert_with(|| (BTreeSet::new(), at)).0.extend(stages);
            }
        }
        self.elements.extend(other.elements);
        // A line of the map that fits arrays of one rank fits.
        self.unmatched.retain(|line| other.unmatched.contains(line));
        Self { cut: self.cut || other.cut, ..self }
    }

    /// A capture without steps, for some of what this one holds.
    pub fn sibling(&self) -> Self {
        Self { rounding: self.rounding.clone(), ..Self::new(self.store.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of parts follow each other, of each head; keys that a part does not have yet are 0.
    #[test]
    fn rows_of_parts_follow_each_other() {
        let part = |shape: [usize; 3], first: usize| {
            let data = (first..first + shape.iter().product::<usize>()).map(|i| i as f32).collect();
            Cow::Owned(Tensor { shape: shape.to_vec(), data })
        };
        // Two heads: one row of one key, then two rows of three keys.
        let joined = of_rows(&[part([2, 1, 1], 1), part([2, 2, 3], 10)], 1, true, 3);
        assert_eq!(joined.shape, [2, 3, 3]);
        let (first, second) = ([1.0, 0.0, 0.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0], [2.0, 0.0, 0.0, 16.0, 17.0]);
        assert_eq!((&joined.data[..9], &joined.data[9..14]), (&first[..], &second[..]));
        let joined = of_rows(&[part([1, 1, 2], 0), part([2, 1, 2], 2)], 0, false, 3);
        assert_eq!((joined.shape, joined.data), (vec![3, 1, 2], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    }
}
