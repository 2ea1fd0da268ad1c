//! What a stage should be: its op in f64 on the operands that a runner itself
//! captured, in the arithmetic it declares, in blocks of rows, so that memory
//! stays bounded however long the run is.

use super::linear;
use super::local::Side;
use super::segment;
use crate::capture::{Filter, Step, Stored};
use qdiff_engine::model::fault::{Misread, Output};
use qdiff_engine::model::{Graph, Node, WeightSource};
use qdiff_engine::ops::{self, Context, KvCache, Op, Tensor, kv_cache};
use qdiff_engine::quant::{self, ActivationFormat};
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

/// Elements that a stage evaluates at once, unless one row has more.
const ELEMENTS_AT_ONCE: usize = 4 << 20;

/// Some rows of a stage in one step of one side, as they should be.
pub struct Block<'a> {
    /// Index of the side.
    pub side: usize,
    /// The step.
    pub step: &'a Step,
    /// Index of the step in its capture.
    pub index: usize,
    /// Rows of the step; of a cache, which has no axis of tokens, all of them.
    pub rows: Range<usize>,
    /// Of a cache, which rows are known: those whose operands were captured.
    pub known: Option<&'a [bool]>,
    /// What the rows should be, shaped as the stage.
    pub value: Tensor<f64>,
    /// What each element may be off by: the forward error bound of the op, and
    /// the uncertainty of operands that were not captured.
    pub bound: Vec<f32>,
    /// Whether an operand of these rows is not finite.
    pub poisoned: bool,
    /// Whether it was evaluated over a segment.
    pub segment: bool,
}

/// What a stage should be on one side, step by step: value and bound.
pub type Expected = Vec<Option<(Tensor<f64>, Vec<f32>)>>;

/// Takes blocks, in order of side, step and row, until it breaks off.
pub type Sink<'s> = dyn FnMut(Block<'_>) -> ControlFlow<()> + 's;

/// Evaluates `node` in f64 on the operands of every side, all steps, as its
/// faults, if it carries any, read and compute it. Operands
/// that were not captured are evaluated themselves, from the nearest captured
/// ones on, with the nodes of `graph` (see [`super::Segment`]). What is known
/// from neither is left out, and so are blocks of which `filter` asks for no
/// position.
pub fn evaluate(
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    sides: &[Side<'_>],
    filter: &Filter,
    sink: &mut Sink<'_>,
) {
    let misread = node.faults.read.as_ref().map(|fault| Misread {
        source: weights,
        fault: fault.as_ref(),
    });
    let weights = misread.as_ref().map_or(weights, |m| m);
    let plans: Vec<segment::Plan> = sides
        .iter()
        .map(|side| segment::Plan::new(node, graph, side.capture))
        .collect();
    let direct: Vec<Source<'_>> = sides
        .iter()
        .enumerate()
        .filter(|(i, _)| plans[*i].is_empty())
        .map(|(index, side)| Source::captured(index, *side, filter))
        .collect();
    let mut flow = apply(
        node,
        graph,
        weights,
        &direct,
        &mut State::new(sides.len()),
        sink,
    );
    for (index, plan) in plans.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
        if flow.is_continue() {
            flow = segment::evaluate(node, graph, weights, (index, sides[index]), plan, sink);
        }
    }
}

/// Where the operands of one side come from.
#[derive(Clone)]
pub(super) struct Source<'a> {
    /// Index of the side.
    pub(super) index: usize,
    pub(super) side: Side<'a>,
    /// Steps to evaluate.
    pub(super) steps: Vec<usize>,
    /// What was evaluated because it was not captured.
    pub(super) computed: Option<&'a segment::Computed>,
    /// Whether a cache goes on from its own contents where they were captured,
    /// as it does inside a segment.
    pub(super) resumes: bool,
    /// Whose positions alone are evaluated; all where `None`.
    pub(super) filter: Option<&'a Filter>,
}

/// An operand: as captured, hence exact, or evaluated, hence uncertain.
pub(super) enum Operand<'a> {
    Captured(Cow<'a, Tensor<f32>>),
    Computed(&'a Tensor<f64>, &'a [f32]),
}

impl Operand<'_> {
    /// As the runner holds it, which stores f32.
    pub(super) fn narrow(&self) -> Cow<'_, [f32]> {
        match self {
            Self::Captured(t) => Cow::Borrowed(&t.data),
            Self::Computed(t, _) => t.data.iter().map(|&v| v as f32).collect(),
        }
    }

    pub(super) fn wide(&self) -> Cow<'_, [f64]> {
        match self {
            Self::Captured(t) => t.data.iter().map(|&v| f64::from(v)).collect(),
            Self::Computed(t, _) => Cow::Borrowed(&t.data),
        }
    }

    pub(super) fn delta(&self) -> Option<&[f32]> {
        match self {
            Self::Captured(_) => None,
            Self::Computed(_, delta) => Some(delta),
        }
    }

    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Self::Captured(t) => &t.shape,
            Self::Computed(t, _) => &t.shape,
        }
    }

    pub(super) fn finite(&self) -> bool {
        match self {
            Self::Captured(t) => t.data.iter().all(|v| v.is_finite()),
            Self::Computed(t, _) => t.data.iter().all(|v| v.is_finite()),
        }
    }

    /// In what the runner multiplies in: the value, and how uncertain it is.
    fn rounded(&self, format: ActivationFormat) -> (Tensor<f64>, Option<Vec<f32>>) {
        let shape = self.shape().to_vec();
        if format == ActivationFormat::F32 {
            let data = self.wide().into_owned();
            return (Tensor { shape, data }, self.delta().map(<[f32]>::to_vec));
        }
        let narrow = self.narrow();
        let mut value = Tensor::zeros(shape);
        quant::emulate(format, &narrow, &mut value.data);
        let delta = self.delta();
        let delta = delta.map(|d| quant::uncertainty(format, &narrow, Some(d)));
        (value, delta)
    }
}

impl<'a> Source<'a> {
    /// All steps, of captured operands alone.
    fn captured(index: usize, side: Side<'a>, filter: &'a Filter) -> Self {
        Self {
            index,
            side,
            steps: (0..side.capture.steps.len()).collect(),
            computed: None,
            resumes: false,
            filter: Some(filter),
        }
    }

    /// Whether any of the rows is asked for.
    pub(super) fn asked(&self, step: &Step, rows: &Range<usize>) -> bool {
        self.filter.is_none_or(|filter| {
            rows.clone()
                .any(|r| filter.position(step.first + step.offset(r)))
        })
    }

    pub(super) fn step(&self, index: usize) -> &'a Step {
        &self.side.capture.steps[index]
    }

    /// Some rows of the node `input` as this side has them; all of them where
    /// they were computed.
    pub(super) fn operand(
        &self,
        graph: &Graph,
        input: usize,
        step: usize,
        rows: &Range<usize>,
    ) -> Option<Operand<'a>> {
        let node = &graph.nodes[input];
        if let Some(stored) = self.step(step).stages.get(&node.id) {
            return rows_of(node, stored, rows).map(Operand::Captured);
        }
        let (value, delta) = self.computed?.get(&input)?.get(&step)?;
        Some(Operand::Computed(value, delta))
    }
}

/// Of a cache, what every side has of it so far.
pub(super) struct State(Vec<CacheState>);

impl State {
    pub(super) fn new(sides: usize) -> Self {
        Self((0..sides).map(|_| CacheState::default()).collect())
    }
}

/// The op on the operands of the given sides.
pub(super) fn apply(
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    sides: &[Source<'_>],
    state: &mut State,
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    match &node.op {
        Op::Linear(layer) => linear::layers((layer, node), graph, weights, sides, sink),
        Op::KvCache(cache) => sides.iter().try_for_each(|side| {
            let state = &mut state.0[side.index];
            caches(cache, node, (graph, weights), side, state, sink)
        }),
        _ => sides.iter().try_for_each(|side| {
            let mut steps = side.steps.iter();
            steps.try_for_each(|&step| pointwise(node, graph, weights, (side, step), sink))
        }),
    }
}

/// What the node computes: its op, or the fault in the op's place.
pub(super) fn forward(
    node: &Node,
    operands: &[&Tensor<f64>],
    context: &Context<'_>,
) -> (Tensor<f64>, Vec<f32>) {
    match &node.faults.compute {
        Some(fault) => fault.evaluate(operands, context),
        None => ops::forward_with_bound(&node.op, operands, context),
    }
}

fn pointwise(
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    (source, index): (&Source<'_>, usize),
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let step = source.step(index);
    let all = step.rows();
    let width = step.extent(node).iter().product::<usize>() / all.max(1);
    let at_once = match source.computed {
        // Computed operands are there as a whole.
        Some(_) => all.max(1),
        None => (ELEMENTS_AT_ONCE / width.max(1)).max(1),
    };
    let arithmetic = source.side.arithmetic;
    let attention = arithmetic.attention(step.tokens.len());
    let format = match &node.op {
        Op::AttnScores(_) => attention.scores,
        Op::AttnContext(_) => attention.context,
        _ => ActivationFormat::F32,
    };
    let factor = match &node.op {
        Op::AttnScores(_) | Op::AttnContext(_) => attention.accumulation.factor(),
        Op::RmsNorm(_) | Op::Rope(_) | Op::AttnWeights(_) | Op::SwiGlu(_) => {
            arithmetic.functions.factor()
        }
        _ => 1.0,
    } as f32;
    let (positions, tokens) = (step.positions(), step.kept_tokens());
    for from in (0..all).step_by(at_once) {
        let rows = from..all.min(from + at_once);
        if !source.asked(step, &rows) {
            continue;
        }
        let operand = |&i: &usize| source.operand(graph, i, index, &rows);
        let Some(operands) = node.inputs.iter().map(operand).collect::<Option<Vec<_>>>() else {
            return ControlFlow::Continue(());
        };
        // An operand of a shape that the op cannot take has been reported at
        // its own stage.
        let shape = |i: usize| operands[i].shape();
        let shapes_fit = match &node.op {
            Op::AttnContext(_) => shape(0).get(2) == shape(1).first(),
            Op::Residual | Op::SwiGlu(_) => shape(0) == shape(1),
            _ => true,
        };
        if !shapes_fit {
            return ControlFlow::Continue(());
        }
        let context = Context {
            tokens: &tokens[rows.clone()],
            positions: &positions[rows.clone()],
            weights,
            weight: node.weight.as_deref().unwrap_or(""),
        };
        let rounded: Vec<_> = operands.iter().map(|x| x.rounded(format)).collect();
        let inputs: Vec<&Tensor<f64>> = rounded.iter().map(|(x, _)| x).collect();
        let deltas: Vec<Option<&[f32]>> = rounded.iter().map(|(_, d)| d.as_deref()).collect();
        let (value, mut bound) = forward(node, &inputs, &context);
        bound.iter_mut().for_each(|b| *b *= factor);
        if deltas.iter().any(Option::is_some) {
            let spread = ops::spread(&node.op, &inputs, &deltas, &value, &context);
            for (b, s) in bound.iter_mut().zip(spread) {
                *b = b.hypot(s);
            }
        }
        sink(Block {
            side: source.index,
            step,
            index,
            rows,
            known: None,
            value,
            bound,
            poisoned: !operands.iter().all(Operand::finite),
            segment: source.computed.is_some(),
        })?;
    }
    ControlFlow::Continue(())
}

/// A cache as it grows: its rows, how uncertain they are, and which of them
/// are known.
#[derive(Default)]
struct CacheState {
    values: Tensor<f64>,
    deltas: Tensor<f32>,
    known: Vec<bool>,
    /// Whether a step's rows are missing, so that no later cache is known.
    lost: bool,
}

/// The cache after each step, from all rows captured so far. A row that was
/// not captured is not known; without a step's rows, no later cache is.
fn caches(
    op: &KvCache,
    node: &Node,
    (graph, weights): (&Graph, &dyn WeightSource),
    source: &Source<'_>,
    state: &mut CacheState,
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let row_shape: Vec<usize> = Graph::extent(node, 0, 0)[1..].to_vec();
    let width: usize = row_shape.iter().product();
    let format = source.side.arithmetic.kv.format();
    for &index in &source.steps {
        let step = source.step(index);
        if let Some(own) = step.get(node.id).filter(|_| source.resumes) {
            state.values = Tensor {
                shape: own.shape.clone(),
                data: own.data.iter().map(|&v| f64::from(v)).collect(),
            };
            state.deltas = Tensor::zeros(own.shape.clone());
            state.known = vec![true; own.rows()];
            state.lost = false;
            continue;
        }
        let count = step.tokens.len();
        let shape = [&[count], row_shape.as_slice()].concat();
        let mut rows = Tensor {
            data: vec![f64::NAN; count * width],
            shape: shape.clone(),
        };
        let mut deltas = Tensor::zeros(shape);
        let mut fresh = vec![false; count];
        let mut poisoned = false;
        match source.operand(graph, node.inputs[0], index, &(0..step.rows())) {
            Some(given) if given.shape().iter().product::<usize>() == step.rows() * width => {
                poisoned = !given.finite();
                let (given, uncertain) = given.rounded(format);
                for (r, row) in given.data.chunks_exact(width).enumerate() {
                    let at = step.offset(r);
                    fresh[at] = true;
                    rows.data[at * width..][..width].copy_from_slice(row);
                    if let Some(uncertain) = &uncertain {
                        let of_row = &uncertain[r * width..][..width];
                        deltas.data[at * width..][..width].copy_from_slice(of_row);
                    }
                }
            }
            _ if step.rows() > 0 => state.lost = true,
            _ => {}
        }
        if state.lost {
            continue;
        }
        if let Some(fault) = &node.faults.compute {
            let positions: Vec<u32> = (step.first..step.keys()).map(|p| p as u32).collect();
            let context = Context {
                tokens: &step.tokens,
                positions: &positions,
                weights,
                weight: "",
            };
            let (spoiled, bound) = fault.evaluate(&[&rows], &context);
            rows = spoiled;
            for (d, b) in deltas.data.iter_mut().zip(bound) {
                *d = d.hypot(b);
            }
        }
        kv_cache::append(op, &mut state.values, &rows, &row_shape);
        kv_cache::append(op, &mut state.deltas, &deltas, &row_shape);
        if !op.advance {
            state.known.clear();
        }
        state.known.extend(fresh);
        if step.rows() == 0 {
            continue;
        }
        sink(Block {
            side: source.index,
            step,
            index,
            rows: 0..state.values.rows(),
            known: Some(&state.known),
            value: state.values.clone(),
            // A cache is a copy: nothing but the uncertainty of its rows is allowed.
            bound: state.deltas.data.clone(),
            poisoned,
            segment: source.computed.is_some(),
        })?;
    }
    ControlFlow::Continue(())
}

/// All blocks of one side put together, step by step, with what a fault of
/// writing leaves in them. `None` where operands were not captured.
pub(crate) fn assembled(
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    side: Side<'_>,
    filter: &Filter,
) -> Expected {
    let mut all: Expected = side.capture.steps.iter().map(|_| None).collect();
    evaluate(node, graph, weights, &[side], filter, &mut |block| {
        let slot = &mut all[block.index];
        let axis = node.token_axis().filter(|a| *a < block.value.shape.len());
        match axis {
            Some(axis) if block.rows != (0..block.step.rows()) => {
                let mut shape = block.value.shape.clone();
                shape[axis] = block.step.rows();
                let (whole, bound) = slot.get_or_insert_with(|| {
                    let whole = Tensor::zeros(shape);
                    let bound = vec![0f32; whole.data.len()];
                    (whole, bound)
                });
                let inner: usize = block.value.shape[axis + 1..].iter().product();
                let (part, plane) = (block.rows.len() * inner, block.step.rows() * inner);
                for i in 0..block.value.data.len() / part.max(1) {
                    let to = i * plane + block.rows.start * inner;
                    let from = i * part..(i + 1) * part;
                    whole.data[to..to + part].copy_from_slice(&block.value.data[from.clone()]);
                    bound[to..to + part].copy_from_slice(&block.bound[from]);
                }
            }
            _ => *slot = Some((block.value, block.bound)),
        }
        ControlFlow::Continue(())
    });
    written(node, side, &mut all);
    all
}

/// Lets a fault of writing change what was computed. The buffer holds what
/// the runner gave a step before.
pub(crate) fn written(node: &Node, side: Side<'_>, expected: &mut Expected) {
    let Some(fault) = &node.faults.write else {
        return;
    };
    let mut old: Option<Cow<'_, Tensor<f32>>> = None;
    for (step, expected) in side.capture.steps.iter().zip(expected) {
        if let Some((value, bound)) = expected {
            fault.write(Output {
                value,
                bound,
                old: old.as_ref().map(|t| t.data.as_slice()),
                first: step.first,
            });
        }
        old = step.get(node.id);
    }
}

/// The rows `rows` of a stage's tensor; all of it where no axis counts tokens.
pub(super) fn rows_of<'a>(
    node: &Node,
    stored: &'a Stored,
    rows: &Range<usize>,
) -> Option<Cow<'a, Tensor<f32>>> {
    match node.token_axis() {
        Some(axis) => {
            let extent = *stored.shape().get(axis)?;
            if rows.end > extent {
                return None;
            }
            if *rows == (0..extent) {
                return Some(stored.get());
            }
            Some(Cow::Owned(stored.slice(axis, rows.clone())))
        }
        None => Some(stored.get()),
    }
}
