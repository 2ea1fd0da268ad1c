//! What a stage should be: its op in f64 on the operands that a runner itself
//! captured, in blocks of rows, so that memory stays bounded however long the
//! run is.

use super::local::Side;
use crate::capture::{Step, Stored, token_axis};
use qdiff_engine::model::{Graph, Node, StageId, WeightSource};
use qdiff_engine::ops::{self, Context, Linear, Op, Tensor, kv_cache, linear};
use qdiff_engine::quant::{self, ActivationFormat};
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

/// Rows that a linear layer evaluates at once: enough to amortise
/// dequantisation, few enough to bound memory for a vocabulary of 150,000.
const ROWS_AT_ONCE: usize = 64;

/// Elements that any other stage evaluates at once, unless one row has more.
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
    /// Forward error bound of each element.
    pub bound: Vec<f32>,
    /// Whether an operand of these rows is not finite.
    pub poisoned: bool,
}

/// Takes blocks, in order of side, step and row, until it breaks off.
pub type Sink<'s> = dyn FnMut(Block<'_>) -> ControlFlow<()> + 's;

/// Evaluates `node` in f64 on the captured operands of every side, all steps.
/// Steps whose operands were not captured are left out.
pub fn evaluate(
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    sides: &[Side<'_>],
    sink: &mut Sink<'_>,
) {
    let _ = match &node.op {
        Op::Linear(layer) => linear_layers(layer, node, graph, weights, sides, sink),
        Op::KvCache(cache) => sides
            .iter()
            .enumerate()
            .try_for_each(|(i, side)| caches(cache, node, graph, (i, side), sink)),
        _ => sides.iter().enumerate().try_for_each(|(i, side)| {
            side.capture
                .steps
                .iter()
                .enumerate()
                .try_for_each(|step| pointwise(node, graph, weights, (i, step), sink))
        }),
    };
}

/// The rows `rows` of a stage's tensor; all of it where no axis counts tokens.
pub(super) fn rows_of<'a>(
    node: &Node,
    stored: &'a Stored,
    rows: &Range<usize>,
) -> Option<Cow<'a, Tensor<f32>>> {
    match token_axis(node) {
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

fn input(node: &Node, graph: &Graph, i: usize) -> StageId {
    graph.nodes[node.inputs[i]].id
}

fn widen(t: &Tensor<f32>) -> Tensor<f64> {
    Tensor {
        shape: t.shape.clone(),
        data: t.data.iter().map(|&v| f64::from(v)).collect(),
    }
}

fn finite(t: &Tensor<f32>) -> bool {
    t.data.iter().all(|v| v.is_finite())
}

fn pointwise(
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    (side, (index, step)): (usize, (usize, &Step)),
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let all = step.rows();
    let width = step.extent(node).iter().product::<usize>() / all.max(1);
    let at_once = (ELEMENTS_AT_ONCE / width.max(1)).max(1);
    let (positions, tokens) = (step.positions(), step.kept_tokens());
    for from in (0..all).step_by(at_once) {
        let rows = from..all.min(from + at_once);
        let mut poisoned = false;
        let inputs: Option<Vec<Tensor<f64>>> = node
            .inputs
            .iter()
            .map(|&i| {
                let input = &graph.nodes[i];
                let t = rows_of(input, step.stages.get(&input.id)?, &rows)?;
                poisoned |= !finite(&t);
                Some(widen(&t))
            })
            .collect();
        let Some(inputs) = inputs else {
            return ControlFlow::Continue(());
        };
        let context = Context {
            tokens: &tokens[rows.clone()],
            positions: &positions[rows.clone()],
            weights,
            weight: node.weight.as_deref().unwrap_or(""),
        };
        let operands: Vec<&Tensor<f64>> = inputs.iter().collect();
        // An operand of a shape that the op cannot take has been reported at
        // its own stage.
        let shapes_fit = match (&node.op, operands.as_slice()) {
            (Op::AttnContext(_), [w, v]) => w.shape.get(2) == v.shape.first(),
            (Op::Residual | Op::SwiGlu(_), [a, b]) => a.shape == b.shape,
            _ => true,
        };
        if !shapes_fit {
            return ControlFlow::Continue(());
        }
        let (value, bound) = ops::forward_with_bound(&node.op, &operands, &context);
        sink(Block {
            side,
            step,
            index,
            rows,
            known: None,
            value,
            bound,
            poisoned,
        })?;
    }
    ControlFlow::Continue(())
}

/// The cache after each step, from all rows captured so far. A row that was
/// not captured is not known; without a step's rows, no later cache is.
fn caches(
    op: &ops::KvCache,
    node: &Node,
    graph: &Graph,
    (side, of): (usize, &Side<'_>),
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let row_shape: Vec<usize> = Graph::extent(node, 0, 0)[1..].to_vec();
    let width: usize = row_shape.iter().product();
    let mut cache = Tensor::<f64>::default();
    let mut known: Vec<bool> = Vec::new();
    for (index, step) in of.capture.steps.iter().enumerate() {
        let count = step.tokens.len();
        let mut rows = Tensor {
            shape: [&[count], row_shape.as_slice()].concat(),
            data: vec![f64::NAN; count * width],
        };
        let mut fresh = vec![false; count];
        let mut poisoned = false;
        match step.get(input(node, graph, 0)) {
            Some(given) if given.data.len() == step.rows() * width => {
                poisoned = !finite(&given);
                for (r, row) in given.data.chunks_exact(width).enumerate() {
                    let at = step.offset(r);
                    fresh[at] = true;
                    for (to, v) in rows.data[at * width..].iter_mut().zip(row) {
                        *to = f64::from(*v);
                    }
                }
            }
            _ if step.rows() > 0 => return ControlFlow::Continue(()),
            _ => {}
        }
        kv_cache::append(op, &mut cache, &rows, &row_shape);
        if !op.advance {
            known.clear();
        }
        known.extend(fresh);
        if step.rows() == 0 {
            continue;
        }
        sink(Block {
            side,
            step,
            index,
            rows: 0..cache.rows(),
            known: Some(&known),
            value: cache.clone(),
            // A cache is a copy: no rounding is allowed.
            bound: vec![0.0; cache.data.len()],
            poisoned,
        })?;
    }
    ControlFlow::Continue(())
}

/// Rows of one step that wait to be evaluated with others.
struct Segment<'a> {
    side: usize,
    index: usize,
    step: &'a Step,
    rows: Range<usize>,
    poisoned: bool,
}

/// A batch of rows of any steps and sides, for one pass over the weights.
struct Batch<'a> {
    layer: &'a Linear,
    weights: &'a dyn WeightSource,
    name: &'a str,
    /// Inputs and outputs of the layer.
    extent: (usize, usize),
    rows: Vec<f64>,
    /// For q8_1 activations: the row, and what rounding took from its sums.
    sums: Vec<(usize, Vec<f64>)>,
    segments: Vec<Segment<'a>>,
}

impl<'a> Batch<'a> {
    fn room(&self) -> usize {
        ROWS_AT_ONCE - self.rows.len() / self.extent.0
    }

    fn add(&mut self, format: ActivationFormat, x: &Tensor<f32>, segment: Segment<'a>) {
        let n = self.extent.0;
        for x in x.data.chunks_exact(n) {
            let at = self.rows.len();
            self.rows.resize(at + n, 0.0);
            quant::emulate(format, x, &mut self.rows[at..]);
            if format == ActivationFormat::Q8_1 {
                let mut residuals = Vec::new();
                quant::q8_1_sum_residuals(x, &self.rows[at..], &mut residuals);
                self.sums.push((at / n, residuals));
            }
        }
        self.segments.push(segment);
    }

    fn flush(&mut self, sink: &mut Sink<'_>) -> ControlFlow<()> {
        let (n, m) = self.extent;
        if self.segments.is_empty() {
            return ControlFlow::Continue(());
        }
        let x = Tensor {
            shape: vec![self.rows.len() / n, n],
            data: std::mem::take(&mut self.rows),
        };
        let context = Context {
            tokens: &[],
            positions: &[],
            weights: self.weights,
            weight: self.name,
        };
        let (mut y, bound) = linear::forward_with_bound(self.layer, &x, &context);
        let sums = std::mem::take(&mut self.sums);
        add_min_sums(&mut y.data, &sums, m, self.name, self.weights);
        let mut done = 0;
        for segment in self.segments.drain(..) {
            let count = segment.rows.len();
            let part = done * m..(done + count) * m;
            done += count;
            sink(Block {
                side: segment.side,
                step: segment.step,
                index: segment.index,
                rows: segment.rows,
                known: None,
                value: Tensor {
                    shape: vec![count, m],
                    data: y.data[part.clone()].to_vec(),
                },
                bound: bound[part].to_vec(),
                poisoned: segment.poisoned,
            })?;
        }
        ControlFlow::Continue(())
    }
}

fn linear_layers(
    layer: &Linear,
    node: &Node,
    graph: &Graph,
    weights: &dyn WeightSource,
    sides: &[Side<'_>],
    sink: &mut Sink<'_>,
) -> ControlFlow<()> {
    let name = node.weight.as_deref().unwrap_or("");
    let extent = weights.extent(name);
    let source = &graph.nodes[node.inputs[0]];
    let mut batch = Batch {
        layer,
        weights,
        name,
        extent,
        rows: Vec::new(),
        sums: Vec::new(),
        segments: Vec::new(),
    };
    for (side, of) in sides.iter().enumerate() {
        let format = of.arithmetic.activation(weights.ggml_type(name));
        for (index, step) in of.capture.steps.iter().enumerate() {
            let Some(stored) = step.stages.get(&source.id) else {
                continue;
            };
            if stored.shape().iter().product::<usize>() != step.rows() * extent.0 {
                continue;
            }
            let mut from = 0;
            while from < step.rows() {
                let rows = from..step.rows().min(from + batch.room());
                from = rows.end;
                let Some(x) = rows_of(source, stored, &rows) else {
                    break;
                };
                let segment = Segment {
                    side,
                    index,
                    step,
                    rows,
                    poisoned: !finite(&x),
                };
                batch.add(format, &x, segment);
                if batch.room() == 0 {
                    batch.flush(sink)?;
                }
            }
        }
    }
    batch.flush(sink)
}

/// Q4_1 and Q5_1 weights are `d·q + m`; against q8_1 activations ggml takes
/// `m` times the block's sum of activations, which is stored rounded to f16.
fn add_min_sums(
    y: &mut [f64],
    sums: &[(usize, Vec<f64>)],
    m: usize,
    name: &str,
    weights: &dyn WeightSource,
) {
    if sums.is_empty() {
        return;
    }
    let ty = weights.ggml_type(name);
    let mut mins = Vec::new();
    for o in 0..m {
        mins.clear();
        quant::block_mins(ty, weights.row_bytes(name, o), &mut mins);
        for (row, residuals) in sums {
            let extra: f64 = mins
                .iter()
                .zip(residuals)
                .map(|(&m, r)| f64::from(m) * r)
                .sum();
            y[row * m + o] += extra;
        }
    }
}
