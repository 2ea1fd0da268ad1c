//! The CPU engine: an interpreter of the graph.
//!
//! It walks the nodes in order, evaluates each with its op's definition and hands the result to the taps. A fault
//! injected by rewriting a node is therefore run like any other node.
//!
//! A step is a list of rows, of one sequence or of several. Of several, each sequence's rows and slots of the caches are
//! gathered, evaluated as those of a sequence alone, and put back: what a row becomes depends on no other sequence.

#[cfg(test)]
mod rank_tests;
mod ranks;
mod rows;
pub(crate) mod states;
#[cfg(test)]
mod tests;

pub use ranks::{Exchange, Peers, SharedMemory};
pub use rows::{Group, Row, RowsError, Sequences};

use crate::model::fault::{Faults, FaultyWeights, Output};
use crate::model::{Graph, Node, WeightSource, row_len};
use crate::ops::{self, Context, Op, Tensor};
use crate::quant::{ActivationFormat, KvType};
use crate::tap::{Intervene, Site, TapSink};
use states::{AfterTokens, OfNodes, States};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// State of a running model: the graph, and what survives a step.
pub struct CpuEngine<'a> {
    graph: Graph,
    weights: Weights<'a>,
    /// The weights of sequences that have others: those with an adapter of their own.
    adapted: BTreeMap<u32, Weights<'a>>,
    last_use: Vec<usize>,
    /// Per node, for caches and for stages that keep stale elements.
    kept: Vec<Option<Arc<Tensor<f32>>>>,
    /// States of recurrent layers: their value before a step is read in it.
    looked_back_to: Vec<usize>,
    states: States,
    intervention: Option<Box<dyn Intervene + 'a>>,
    sequences: Sequences,
    /// The tokens of each sequence.
    histories: BTreeMap<u32, Vec<u32>>,
    /// What rows become on their way into a cache.
    kv: KvType,
    /// The other ranks, where it runs the stages of one.
    peers: Option<Peers>,
}

/// Weights that somebody else keeps, or that ranks share.
#[derive(Clone)]
enum Weights<'a> {
    Borrowed(&'a dyn WeightSource),
    Shared(Arc<dyn WeightSource + Send + Sync + 'a>),
}

impl Weights<'_> {
    fn source(&self) -> &dyn WeightSource {
        match self {
            Self::Borrowed(weights) => *weights,
            Self::Shared(weights) => weights.as_ref(),
        }
    }
}

impl<'a> CpuEngine<'a> {
    /// An engine at position 0. The graph must fit `weights`.
    pub fn new(graph: Graph, weights: &'a dyn WeightSource) -> Self {
        Self::with(graph, Weights::Borrowed(weights), None)
    }

    /// The engine of one of the ranks that `graph` is cut over, at position 0. Its collectives wait for the other ranks.
    pub fn of_rank(graph: &Graph, weights: Arc<dyn WeightSource + Send + Sync + 'a>, peers: Peers) -> Self {
        Self::with(graph.of_rank(peers.rank as u16), Weights::Shared(weights), Some(peers))
    }

    fn with(graph: Graph, weights: Weights<'a>, peers: Option<Peers>) -> Self {
        let reads_back = |node: &Node| node.inputs.last().copied().filter(|_| node.op.anatomy().looks_back());
        Self {
            looked_back_to: graph.nodes.iter().filter_map(reads_back).collect(),
            last_use: graph.last_use(),
            kept: vec![None; graph.nodes.len()],
            graph,
            weights,
            adapted: BTreeMap::new(),
            intervention: None,
            states: States::default(),
            sequences: Sequences::default(),
            histories: BTreeMap::new(),
            kv: KvType::F32,
            peers,
        }
    }

    /// The same engine with caches of these formats. A head must be whole blocks of them.
    pub fn with_kv(self, kv: KvType) -> Self {
        Self { kv, ..self }
    }

    /// The same engine, in which these sequences have these weights: the model's with an adapter of their own.
    #[must_use]
    pub fn with_adapted(self, adapted: BTreeMap<u32, Arc<dyn WeightSource + Send + Sync + 'a>>) -> Self {
        let adapted = adapted.into_iter().map(|(sequence, weights)| (sequence, Weights::Shared(weights))).collect();
        Self { adapted, ..self }
    }

    /// Keeps the states of recurrent layers that are gone back to: those of a sequence after so many of its tokens. A draft can
    /// be taken back to there, and another sequence can begin with that prefix.
    pub fn keep_states(&mut self, these: BTreeSet<(u32, usize)>) {
        self.states.keep(these);
    }

    /// Lets `intervention` change what stages give.
    pub fn intervened(mut self, intervention: Box<dyn Intervene + 'a>) -> Self {
        self.intervention = Some(intervention);
        self
    }

    /// What it runs.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its sequences.
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// Tokens of sequence 0 so far, the one that [`Self::step`] goes on with.
    pub fn position(&self) -> usize {
        self.sequences.tokens(0)
    }

    /// Forgets everything: the next step begins at position 0.
    pub fn reset(&mut self) {
        self.sequences = Sequences::default();
        self.histories.clear();
        self.states.clear();
        self.kept.fill(None);
    }

    /// Lets sequence `to`, which is empty, begin with the first `tokens` tokens of sequence `from`, in the same slots.
    ///
    /// # Errors
    /// If `to` is not empty, or `from` has fewer tokens; states of recurrent layers that are not kept.
    pub fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<(), RowsError> {
        self.states_after(from, tokens)?;
        self.sequences.share(from, to, tokens)?;
        self.states.share(from, to, tokens);
        let prefix = self.histories.get(&from).map(|all| all[..tokens].to_vec()).unwrap_or_default();
        self.histories.insert(to, prefix);
        Ok(())
    }

    /// The states of a sequence after its first `tokens` tokens.
    fn states_after(&self, sequence: u32, tokens: usize) -> Result<OfNodes, RowsError> {
        // The caller checks that the sequence has so many tokens.
        if self.looked_back_to.is_empty() || tokens > self.sequences.tokens(sequence) {
            return Ok(OfNodes::new());
        }
        self.states.after(sequence, tokens).ok_or(RowsError::States { sequence, tokens })
    }

    /// Takes a sequence back to its first `to` tokens, as an engine does with a rejected draft. Cache rows that no sequence has
    /// any more are filled with NaN, so that whoever still reads them is found.
    ///
    /// # Errors
    /// If the sequence has fewer tokens; states of recurrent layers that are not kept.
    pub fn take_back(&mut self, sequence: u32, to: usize) -> Result<(), RowsError> {
        self.states_after(sequence, to)?;
        let freed = self.sequences.take_back(sequence, to)?;
        self.states.take_back(sequence, to);
        self.histories.entry(sequence).or_default().truncate(to);
        self.clear(&freed);
        Ok(())
    }

    /// Removes `tokens` tokens of a sequence from position `from` on, as an engine does whose context is full; those behind them have
    /// as much lower positions. Their cached keys turn by as much, from the rows that the cache holds, and are rounded to the format
    /// of the cache again; values stay. Cache rows that no sequence has any more are filled with NaN.
    ///
    /// # Errors
    /// If the sequence has no tokens there, or none behind them; tokens that another sequence has too; recurrent layers.
    pub fn shift(&mut self, sequence: u32, from: usize, tokens: usize) -> Result<(), RowsError> {
        if !self.looked_back_to.is_empty() {
            return Err(RowsError::ShiftedStates { sequence });
        }
        let [freed, moved] = self.sequences.shift(sequence, from, tokens)?;
        self.histories.entry(sequence).or_default().drain(from..from + tokens);
        for (node, kept) in self.graph.nodes.iter().zip(&mut self.kept) {
            let (Op::KvCache(_), Some(cache), Some(rope)) = (&node.op, kept, self.graph.moves_by(node)) else {
                continue;
            };
            let (cache, width, format) = (Arc::make_mut(cache), row_len(node), self.kv.of(node.is_of_values()));
            for slot in &moved {
                let row = &mut cache.data[slot * width..][..width];
                let stored = Tensor { shape: vec![1, width], data: row.to_vec() };
                let turned = ops::rope::forward(&rope, &stored, &[-(tokens as f64)]);
                if format == ActivationFormat::F32 {
                    row.copy_from_slice(&turned.data);
                    continue;
                }
                let mut held = vec![0.0; width];
                node.faults.held(format, width, &turned.data, &mut held);
                row.iter_mut().zip(held).for_each(|(to, held)| *to = held as f32);
            }
        }
        self.clear(&freed);
        Ok(())
    }

    /// Fills cache rows that no sequence has any more with NaN, and cuts caches behind the last row that one has.
    fn clear(&mut self, freed: &[usize]) {
        let slots = self.sequences.slots();
        for (node, kept) in self.graph.nodes.iter().zip(&mut self.kept) {
            let (Op::KvCache(_), Some(cache)) = (&node.op, kept) else { continue };
            let (cache, row) = (Arc::make_mut(cache), row_len(node));
            for slot in freed.iter().filter(|slot| **slot < slots) {
                cache.data[slot * row..][..row].fill(f32::NAN);
            }
            cache.data.truncate(slots * row);
            cache.shape[0] = slots;
        }
    }

    /// Runs `tokens` at the next positions of sequence 0 through all stages and gives the logits `[T, V]`.
    ///
    /// # Panics
    /// If `tokens` is empty or holds an id beyond the vocabulary; as [`Self::step_rows`] fails.
    pub fn step(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Arc<Tensor<f32>> {
        let row = |(position, &token)| Row { sequence: 0, position, token };
        let rows: Vec<Row> = (self.position() as u32..).zip(tokens).map(row).collect();
        self.step_rows(&rows, taps).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs rows of any sequences through all stages and gives the logits `[T, V]`, a row for each. On an axis of keys
    /// the entries are slots, in the order in which rows took them; where a row does not see a slot, its scores and
    /// weights are 0.
    ///
    /// # Errors
    /// If there are no rows, a sequence does not go on where it ended, or there are several sequences and the graph has
    /// faults. Nothing is changed then.
    ///
    /// # Panics
    /// If a token is beyond the vocabulary.
    pub fn step_rows(&mut self, rows: &[Row], taps: &mut dyn TapSink) -> Result<Arc<Tensor<f32>>, RowsError> {
        let (sequences, groups) = self.sequences.after(rows)?;
        let alone = sequences.is_one();
        let faulty = |node: &Node| node.before.is_some() || !node.faults.none();
        if !alone && self.graph.nodes.iter().any(faulty) {
            return Err(RowsError::Faults);
        }
        // States before the step, of each sequence that has rows in it.
        let mut before: HashMap<usize, Vec<Arc<Tensor<f32>>>> = HashMap::new();
        for group in &groups {
            let mut states = self.states_after(group.sequence, group.positions[0] as usize)?;
            for &index in &self.looked_back_to {
                let zeros = || Arc::new(Tensor::zeros(Graph::extent(&self.graph.nodes[index], 0, 0)));
                before.entry(index).or_default().push(states.remove(&index).unwrap_or_else(zeros));
            }
        }
        // States after the step and those within it that are kept, of each sequence.
        let asked: Vec<Vec<usize>> = groups.iter().map(|group| self.states.asked(group)).collect();
        let mut after: Vec<AfterTokens> = vec![AfterTokens::new(); groups.len()];
        // Rows may take slots that others had before.
        let (taken, slots) = (self.sequences.slots(), slots_of(rows.len(), &groups));
        let reuses = slots.iter().enumerate().any(|(i, slot)| *slot != taken + i);
        let weights = self.weights.clone();
        let adapted = self.adapted.clone();
        let of = |sequence: u32| adapted.get(&sequence).unwrap_or(&weights).source();
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let positions: Vec<u32> = rows.iter().map(|row| row.position).collect();
        let mut histories = std::mem::take(&mut self.histories);
        for group in &groups {
            let history = histories.entry(group.sequence).or_default();
            history.truncate(group.positions[0] as usize);
            history.extend(&group.tokens);
        }
        let mut values: Vec<Option<Arc<Tensor<f32>>>> = vec![None; self.graph.nodes.len()];
        let mut output = None;
        for index in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[index];
            let context = Context {
                tokens: &tokens,
                positions: &positions,
                history: histories.get(&rows[0].sequence).map_or(&[], Vec::as_slice),
                source: of(rows[0].sequence),
                weights: &node.weights,
            };
            let together = matches!(node.op, Op::Collective(_));
            let of_states = self.looked_back_to.contains(&index);
            let mut value = if of_states && groups.len() > 1 {
                let reads = Reads { values: &values, before: &before };
                Arc::new(of_each_sequence(&self.graph, index, reads, &context, &groups))
            } else if alone || node.has_state() || together {
                if of_states {
                    self.kept[index] = Some(before[&index][0].clone());
                }
                let reads = Reads { values: &values, before: &before };
                let peers = self.peers.as_ref().filter(|_| together);
                let parts = peers.map(|peers| peers.exchange.exchange(peers.rank, reads.of(node).swap_remove(0)));
                let kept = &mut self.kept[index];
                Evaluation { reads, parts, context, kv: self.kv, kept }.of(node)
            } else {
                let whole = Tensor::zeros(Graph::extent(node, rows.len(), sequences.slots()));
                let reads = Reads { values: &values, before: &before };
                let of = OfSequences { groups: &groups, histories: &histories, weights: &of };
                Arc::new(by_sequence(&self.graph, node, reads, &context, of, whole))
            };
            if reuses && matches!(node.op, Op::KvCache(_)) {
                drop(value);
                let cache = self.kept[index].as_mut().expect("a cache is kept");
                place(Arc::make_mut(cache), taken, &slots, sequences.slots());
                value = cache.clone();
            }
            if let Some(intervention) = &mut self.intervention {
                // What is kept is changed with it, not a copy of it.
                let keeps = self.kept[index].take().is_some();
                intervention.change(Site {
                    node,
                    inputs: &Reads { values: &values, before: &before }.of(node),
                    context: &context,
                    output: Arc::make_mut(&mut value),
                });
                self.kept[index] = keeps.then(|| value.clone());
            }
            if of_states {
                let reads = Reads { values: &values, before: &before };
                let run = value.data.len() / groups.len();
                for (g, (group, own)) in groups.iter().zip(value.data.chunks(run)).enumerate() {
                    let part = || Arc::new(Tensor { shape: before[&index][g].shape.clone(), data: own.to_vec() });
                    let last = if groups.len() == 1 { value.clone() } else { part() };
                    let (end, within) = asked[g].split_last().expect("the last state is always wanted");
                    let within = after_each(&self.graph, index, (reads, g), &context, (group, within));
                    for (tokens, state) in within.chain([(*end, last)]) {
                        after[g].entry(tokens).or_default().insert(index, state);
                    }
                }
            }
            if taps.wants(node.id) {
                // A state is changed in place by the next step.
                let given = if node.has_state() { Arc::new(Tensor::clone(&value)) } else { value.clone() };
                taps.tap(node.id, given);
            }
            for input in node.reads() {
                if self.last_use[input] == index {
                    values[input] = None;
                }
            }
            output = Some(value.clone());
            values[index] = (self.last_use[index] > index).then_some(value);
        }
        for (group, after) in groups.iter().zip(after).filter(|_| !self.looked_back_to.is_empty()) {
            self.states.add(group.sequence, after);
        }
        (self.sequences, self.histories) = (sequences, histories);
        Ok(output.expect("a graph has stages"))
    }
}

/// The slot of each row of a step.
fn slots_of(rows: usize, groups: &[Group]) -> Vec<usize> {
    let mut slots = vec![0; rows];
    for group in groups {
        for (&row, &position) in group.rows.iter().zip(&group.positions) {
            slots[row] = group.slots[position as usize];
        }
    }
    slots
}

/// Moves the rows of a step, which were added to a cache behind its first `taken` rows, to their slots, of which there are
/// `all`.
fn place(cache: &mut Tensor<f32>, taken: usize, slots: &[usize], all: usize) {
    let row = cache.row_len();
    let fresh = cache.data.split_off(taken * row);
    cache.data.resize(all * row, f32::NAN);
    cache.shape[0] = all;
    for (values, slot) in fresh.chunks(row).zip(slots) {
        cache.data[slot * row..][..row].copy_from_slice(values);
    }
}

/// What each sequence of a step has of its own.
#[derive(Clone, Copy)]
struct OfSequences<'s, 'a> {
    groups: &'s [Group],
    histories: &'s BTreeMap<u32, Vec<u32>>,
    weights: &'s dyn Fn(u32) -> &'a dyn WeightSource,
}

/// A node without state, whose `whole` is filled with what each sequence has alone.
fn by_sequence<'a>(
    graph: &Graph, node: &Node, reads: Reads<'_>, context: &Context<'a>, of: OfSequences<'_, 'a>,
    mut whole: Tensor<f32>,
) -> Tensor<f32> {
    for (g, group) in of.groups.iter().enumerate() {
        let own = reads.of_group(graph, node, (g, group));
        let history = of.histories.get(&group.sequence).map_or(&[][..], Vec::as_slice);
        let source = (of.weights)(group.sequence);
        let context = Context { tokens: &group.tokens, positions: &group.positions, history, source, ..*context };
        let part = ops::forward(&node.op, &own.iter().collect::<Vec<_>>(), &context);
        group.scatter(&node.shape, &part, &mut whole);
    }
    whole
}

/// The state `index` after the step, of each sequence one.
fn of_each_sequence(
    graph: &Graph, index: usize, reads: Reads<'_>, context: &Context<'_>, groups: &[Group],
) -> Tensor<f32> {
    let node = &graph.nodes[index];
    let mut all = Tensor { shape: Graph::extent(node, 0, 0), data: Vec::new() };
    all.shape[0] = groups.len();
    for (g, group) in groups.iter().enumerate() {
        let own = reads.of_group(graph, node, (g, group));
        let mut state = Tensor::clone(&reads.before[&index][g]);
        ops::advance(&node.op, &mut state, &own.iter().collect::<Vec<_>>(), context);
        all.data.extend(state.data);
    }
    all
}

/// The state `index` of a sequence after so many tokens each, which the step goes beyond.
fn after_each<'a>(
    graph: &'a Graph, index: usize, (reads, g): (Reads<'a>, usize), context: &'a Context<'a>,
    (group, asked): (&'a Group, &'a [usize]),
) -> impl Iterator<Item = (usize, Arc<Tensor<f32>>)> + 'a {
    let node = &graph.nodes[index];
    let own = if asked.is_empty() { Vec::new() } else { reads.of_group(graph, node, (g, group)) };
    let mut state = reads.before[&index][g].clone();
    let mut at = group.slots.len() - group.rows.len();
    asked.iter().map(move |&tokens| {
        let rows = |x: &Tensor<f32>| {
            let (first, n, len) = (at + group.rows.len() - group.slots.len(), tokens - at, x.row_len());
            Tensor { shape: [&[n], &x.shape[1..]].concat(), data: x.data[first * len..][..n * len].to_vec() }
        };
        let rows: Vec<Tensor<f32>> = own.iter().map(rows).collect();
        ops::advance(&node.op, Arc::make_mut(&mut state), &rows.iter().collect::<Vec<_>>(), context);
        at = tokens;
        (tokens, state.clone())
    })
}

/// What nodes may read.
#[derive(Clone, Copy)]
struct Reads<'a> {
    /// Of this step.
    values: &'a [Option<Arc<Tensor<f32>>>],
    /// States before it, of each sequence.
    before: &'a HashMap<usize, Vec<Arc<Tensor<f32>>>>,
}

impl Reads<'_> {
    /// What a node reads, in the order of its inputs; of states those of the first sequence.
    fn of(&self, node: &Node) -> Vec<Arc<Tensor<f32>>> {
        let read = |(place, &i): (usize, &usize)| match node.looks_back(place) {
            true => self.before[&i][0].clone(),
            false => self.value(i).clone(),
        };
        node.inputs.iter().enumerate().map(read).collect()
    }

    /// What a node reads in a sequence, the one of this place in the step.
    fn of_group(&self, graph: &Graph, node: &Node, (g, group): (usize, &Group)) -> Vec<Tensor<f32>> {
        let read = |(place, &i): (usize, &usize)| match node.looks_back(place) {
            true => Tensor::clone(&self.before[&i][g]),
            false => group.gather(&graph.nodes[i].shape, self.value(i)),
        };
        node.inputs.iter().enumerate().map(read).collect()
    }

    fn value(&self, input: usize) -> &Arc<Tensor<f32>> {
        self.values[input].as_ref().expect("inputs come before their readers")
    }
}

/// What a node is evaluated with.
struct Evaluation<'a> {
    reads: Reads<'a>,
    /// What all ranks gave, where the node puts that together.
    parts: Option<Vec<Arc<Tensor<f32>>>>,
    context: Context<'a>,
    kv: KvType,
    /// What the node keeps from one step to the next.
    kept: &'a mut Option<Arc<Tensor<f32>>>,
}

impl Evaluation<'_> {
    /// The node, for early positions as it was before.
    fn of(&mut self, node: &Node) -> Arc<Tensor<f32>> {
        let since = node.before.as_ref().map_or(0, |before| before.since as u32);
        let earlier = self.context.positions.iter().filter(|&&p| p < since).count();
        let Some(before) = node.before.as_ref().filter(|_| earlier > 0) else {
            return self.of_itself(node);
        };
        let old = self.of(&before.node);
        let mixed = match node.token_axis() {
            Some(axis) if earlier < self.context.tokens.len() => {
                let mut value = Arc::unwrap_or_clone(self.of_itself(node));
                copy_rows(&mut value, &old, axis, earlier);
                Arc::new(value)
            }
            _ => old,
        };
        if node.faults.write.is_some() && !node.has_state() {
            // What the next step finds in the buffer.
            *self.kept = Some(mixed.clone());
        }
        mixed
    }

    /// The node, as it was before some position. A fault computes and writes f64, narrowed again.
    fn of_itself(&mut self, node: &Node) -> Arc<Tensor<f32>> {
        let inputs = self.parts.clone().unwrap_or_else(|| self.reads.of(node));
        let operands: Vec<&Tensor<f32>> = inputs.iter().map(AsRef::as_ref).collect();
        let Faults { left_out, read, compute, write, .. } = &node.faults;
        let computed = compute.as_ref().map(|fault| {
            let mut wide: Vec<Tensor<f64>> = operands.iter().map(|t| t.wide()).collect();
            if let Op::Defined(_) = &node.op
                && node.has_state()
            {
                // What it was before the step is an operand.
                let zeros = || Tensor::zeros(Graph::extent(node, 0, 0));
                wide.push(self.kept.as_ref().map_or_else(zeros, |state| state.wide()));
            }
            fault(&wide.iter().collect::<Vec<_>>(), &self.context).0.narrow()
        });
        let mut value = if node.has_state() {
            let empty = || match node.op {
                Op::KvCache(_) => Arc::default(),
                _ => Arc::new(Tensor::zeros(Graph::extent(node, 0, 0))),
            };
            let state = self.kept.get_or_insert_with(empty);
            match (&computed, &node.op) {
                // No reader of the last step holds a cache any more: changed in place.
                (Some(rows), Op::KvCache(_)) => {
                    advance(node, Arc::make_mut(state), &[rows], self.kv.of(node.is_of_values()), &self.context)
                }
                (Some(faulty), _) => *state = Arc::new(faulty.clone()),
                (None, _) => {
                    advance(node, Arc::make_mut(state), &operands, self.kv.of(node.is_of_values()), &self.context)
                }
            }
            state.clone()
        } else if let Some(computed) = computed {
            Arc::new(computed)
        } else if *left_out {
            inputs[0].clone()
        } else if let Some(fault) = read {
            let source = FaultyWeights { source: self.context.source, fault: fault.as_ref() };
            Arc::new(ops::forward(&node.op, &operands, &Context { source: &source, ..self.context }))
        } else {
            Arc::new(ops::forward(&node.op, &operands, &self.context))
        };
        if let Some(fault) = write {
            // A state keeps what it was; another stage keeps what its buffer holds.
            let old = self.kept.as_ref().filter(|_| !node.has_state()).map(|t| t.data.as_slice());
            let mut wide = value.wide();
            let mut bound = vec![0f32; wide.data.len()];
            fault(Output { value: &mut wide, bound: &mut bound, old, positions: self.context.positions });
            value = Arc::new(wide.narrow());
            if !node.has_state() {
                *self.kept = Some(value.clone());
            }
        }
        value
    }
}

/// Copies the first `count` entries along `axis` from one tensor to another of the same shape.
fn copy_rows(to: &mut Tensor<f32>, from: &Tensor<f32>, axis: usize, count: usize) {
    let inner: usize = to.shape[axis + 1..].iter().product();
    let plane = (to.shape[axis] * inner).max(1);
    let planes = to.data.chunks_mut(plane).zip(from.data.chunks(plane));
    for (to, from) in planes {
        to[..count * inner].copy_from_slice(&from[..count * inner]);
    }
}

/// Goes on from a state with operands as it holds them in its format.
fn advance(
    node: &Node, state: &mut Tensor<f32>, operands: &[&Tensor<f32>], format: ActivationFormat, context: &Context<'_>,
) {
    if format == ActivationFormat::F32 || !matches!(node.op, Op::KvCache(_)) {
        return ops::advance(&node.op, state, operands, context);
    }
    let held = operands.iter().map(|x| {
        let mut held = Tensor::<f64>::zeros(x.shape.clone());
        node.faults.held(format, row_len(node), &x.data, &mut held.data);
        held.narrow()
    });
    let held: Vec<Tensor<f32>> = held.collect();
    ops::advance(&node.op, state, &held.iter().collect::<Vec<_>>(), context);
}
