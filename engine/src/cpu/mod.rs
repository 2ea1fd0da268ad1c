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
#[cfg(test)]
mod tests;

pub use ranks::{Exchange, Peers, SharedMemory};
pub use rows::{Group, Row, RowsError, Sequences};

use crate::model::fault::{Faults, FaultyWeights, Output};
use crate::model::{Graph, Node, WeightSource, row_len};
use crate::ops::{self, Context, Op, Tensor};
use crate::quant::{ActivationFormat, KvType};
use crate::tap::{Intervene, Site, TapSink};
use std::collections::HashMap;
use std::sync::Arc;

/// State of a running model: the graph, and what survives a step.
pub struct CpuEngine<'a> {
    graph: Graph,
    weights: Weights<'a>,
    last_use: Vec<usize>,
    /// Per node, for states and for stages that keep stale elements.
    kept: Vec<Option<Arc<Tensor<f32>>>>,
    /// States whose value before a step is read in it.
    looked_back_to: Vec<usize>,
    intervention: Option<Box<dyn Intervene + 'a>>,
    sequences: Sequences,
    /// The tokens of a sequence that is alone.
    history: Vec<u32>,
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
            intervention: None,
            sequences: Sequences::default(),
            history: Vec::new(),
            kv: KvType::F32,
            peers,
        }
    }

    /// The same engine with caches of these formats. A head must be whole blocks of them.
    pub fn with_kv(self, kv: KvType) -> Self {
        Self { kv, ..self }
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
        self.history.clear();
        self.kept.fill(None);
    }

    /// Lets sequence `to`, which is empty, begin with the first `tokens` tokens of sequence `from`, in the same slots.
    ///
    /// # Errors
    /// If `to` is not empty, or `from` has fewer tokens.
    pub fn share(&mut self, from: u32, to: u32, tokens: usize) -> Result<(), RowsError> {
        self.sequences.share(from, to, tokens)
    }

    /// Takes a sequence back to its first `to` tokens, as an engine does with a rejected draft. Cache rows that no sequence has
    /// any more are filled with NaN, so that whoever still reads them is found.
    ///
    /// # Errors
    /// If the sequence has fewer tokens; a model with recurrent layers, whose states cannot be taken back.
    pub fn take_back(&mut self, sequence: u32, to: usize) -> Result<(), RowsError> {
        if !self.looked_back_to.is_empty() {
            return Err(RowsError::States);
        }
        let freed = self.sequences.take_back(sequence, to)?;
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
        Ok(())
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
    /// faults or recurrent layers. Nothing is changed then.
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
        if !alone && !self.looked_back_to.is_empty() {
            return Err(RowsError::Recurrent);
        }
        // States before the step.
        let mut before: HashMap<usize, Arc<Tensor<f32>>> = HashMap::new();
        for &index in &self.looked_back_to {
            let zeros = || Arc::new(Tensor::zeros(Graph::extent(&self.graph.nodes[index], 0, 0)));
            before.insert(index, self.kept[index].clone().unwrap_or_else(zeros));
        }
        // Rows may take slots that others had before.
        let (taken, slots) = (self.sequences.slots(), slots_of(rows.len(), &groups));
        let reuses = slots.iter().enumerate().any(|(i, slot)| *slot != taken + i);
        let weights = self.weights.clone();
        let tokens: Vec<u32> = rows.iter().map(|row| row.token).collect();
        let positions: Vec<u32> = rows.iter().map(|row| row.position).collect();
        let mut history = std::mem::take(&mut self.history);
        history.truncate(positions[0] as usize);
        history.extend(&tokens);
        let mut values: Vec<Option<Arc<Tensor<f32>>>> = vec![None; self.graph.nodes.len()];
        let mut output = None;
        for index in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[index];
            let context = Context {
                tokens: &tokens,
                positions: &positions,
                history: &history,
                source: weights.source(),
                weights: &node.weights,
            };
            let together = matches!(node.op, Op::Collective(_));
            let mut value = if alone || node.has_state() || together {
                let reads = Reads { values: &values, before: &before };
                let peers = self.peers.as_ref().filter(|_| together);
                let parts = peers.map(|peers| peers.exchange.exchange(peers.rank, reads.of(node).swap_remove(0)));
                let kept = &mut self.kept[index];
                Evaluation { reads, parts, context, kv: self.kv, kept }.of(node)
            } else {
                let whole = Tensor::zeros(Graph::extent(node, rows.len(), sequences.slots()));
                let reads = Reads { values: &values, before: &before };
                Arc::new(by_sequence(&self.graph, node, reads, &context, &groups, whole))
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
        (self.sequences, self.history) = (sequences, history);
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

/// A node without state, whose `whole` is filled with what each sequence has alone.
fn by_sequence(
    graph: &Graph, node: &Node, reads: Reads<'_>, context: &Context<'_>, groups: &[Group], mut whole: Tensor<f32>,
) -> Tensor<f32> {
    let inputs = reads.of(node);
    for group in groups {
        let own = |(&input, value): (&usize, &Arc<Tensor<f32>>)| group.gather(&graph.nodes[input].shape, value);
        let own: Vec<Tensor<f32>> = node.inputs.iter().zip(&inputs).map(own).collect();
        let context = Context { tokens: &group.tokens, positions: &group.positions, ..*context };
        let part = ops::forward(&node.op, &own.iter().collect::<Vec<_>>(), &context);
        group.scatter(&node.shape, &part, &mut whole);
    }
    whole
}

/// What nodes may read.
#[derive(Clone, Copy)]
struct Reads<'a> {
    /// Of this step.
    values: &'a [Option<Arc<Tensor<f32>>>],
    /// States before it.
    before: &'a HashMap<usize, Arc<Tensor<f32>>>,
}

impl Reads<'_> {
    /// What a node reads, in the order of its inputs.
    fn of(&self, node: &Node) -> Vec<Arc<Tensor<f32>>> {
        let read = |(place, &i): (usize, &usize)| match node.looks_back(place) {
            true => self.before[&i].clone(),
            false => self.values[i].clone().expect("inputs come before their readers"),
        };
        node.inputs.iter().enumerate().map(read).collect()
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
