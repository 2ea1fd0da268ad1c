//! The CPU engine: an interpreter of the graph.
//!
//! It walks the nodes in order, evaluates each with its op's definition and
//! hands the result to the taps. A fault injected by rewriting a node is
//! therefore run like any other node.

use crate::model::{Graph, Node, WeightSource, Write};
use crate::ops::{self, Context, Op, Real, Tensor, kv_cache};
use crate::quant::{self, ActivationFormat};
use crate::tap::TapSink;
use std::sync::Arc;

/// State of a running model: the graph, and what survives a step.
pub struct CpuEngine<'a, F> {
    graph: Graph,
    weights: &'a dyn WeightSource,
    last_use: Vec<usize>,
    /// Per node, for the caches and for stages that keep stale elements.
    kept: Vec<Option<Arc<Tensor<F>>>>,
    position: usize,
    /// What rows become on their way into a cache.
    kv: ActivationFormat,
}

impl<'a, F: Real> CpuEngine<'a, F> {
    /// An engine at position 0. The graph must fit `weights`.
    pub fn new(graph: Graph, weights: &'a dyn WeightSource) -> Self {
        Self {
            last_use: graph.last_use(),
            kept: vec![None; graph.nodes.len()],
            graph,
            weights,
            position: 0,
            kv: ActivationFormat::F32,
        }
    }

    /// The same engine with its caches in `format`, one without blocks.
    pub fn with_kv(self, format: ActivationFormat) -> Self {
        Self { kv: format, ..self }
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Forgets everything: the next step begins at position 0.
    pub fn reset(&mut self) {
        self.position = 0;
        self.kept.fill(None);
    }

    /// Runs `tokens` at the next positions through all stages and gives the
    /// logits `[T, V]`.
    ///
    /// # Panics
    /// If `tokens` is empty or holds an id beyond the vocabulary.
    pub fn step(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Arc<Tensor<F>> {
        assert!(!tokens.is_empty(), "a step needs at least one token");
        let first = self.position as u32;
        let positions: Vec<u32> = (first..first + tokens.len() as u32).collect();
        let mut values: Vec<Option<Arc<Tensor<F>>>> = vec![None; self.graph.nodes.len()];
        let mut output = None;
        for index in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[index];
            let context = Context {
                tokens,
                positions: &positions,
                weights: self.weights,
                weight: node.weight.as_deref().unwrap_or(""),
            };
            let value = evaluate(node, &values, &context, self.kv, &mut self.kept[index]);
            if taps.wants(node.id) {
                taps.tap(node.id, &value.shape, &F::narrow(&value.data));
            }
            for input in node.reads() {
                if self.last_use[input] == index {
                    values[input] = None;
                }
            }
            output = Some(value.clone());
            values[index] = (self.last_use[index] > index).then_some(value);
        }
        self.position += tokens.len();
        output.expect("a graph has stages")
    }
}

fn evaluate<F: Real>(
    node: &Node,
    values: &[Option<Arc<Tensor<F>>>],
    context: &Context<'_>,
    kv: ActivationFormat,
    kept: &mut Option<Arc<Tensor<F>>>,
) -> Arc<Tensor<F>> {
    if let Some(before) = &node.before {
        let since = before.since as u32;
        let earlier = context.positions.iter().filter(|&&p| p < since).count();
        if earlier > 0 {
            let old = evaluate(&before.node, values, context, kv, kept);
            let mixed = match node.token_axis() {
                Some(axis) if earlier < context.tokens.len() => {
                    let mut value = Arc::unwrap_or_clone(itself(node, values, context, kv, kept));
                    copy_rows(&mut value, &old, axis, earlier);
                    Arc::new(value)
                }
                _ => old,
            };
            if node.write != Write::All {
                // What the next step finds in the buffer.
                *kept = Some(mixed.clone());
            }
            return mixed;
        }
    }
    itself(node, values, context, kv, kept)
}

/// The node, whatever it was before some position.
fn itself<F: Real>(
    node: &Node,
    values: &[Option<Arc<Tensor<F>>>],
    context: &Context<'_>,
    kv: ActivationFormat,
    kept: &mut Option<Arc<Tensor<F>>>,
) -> Arc<Tensor<F>> {
    let operands: Vec<&Tensor<F>> = node
        .inputs
        .iter()
        .map(|&i| {
            values[i]
                .as_deref()
                .expect("inputs come before their readers")
        })
        .collect();
    if let Op::KvCache(cache) = &node.op {
        let row_shape: Vec<usize> = Graph::extent(node, 0, 0)[1..].to_vec();
        let state = kept.get_or_insert_with(Arc::default);
        // No reader of the last step holds the cache any more: appended in place.
        let state_now = Arc::make_mut(state);
        if kv == ActivationFormat::F32 {
            kv_cache::append(cache, state_now, operands[0], &row_shape);
        } else {
            let rows = rounded(operands[0], kv);
            kv_cache::append(cache, state_now, &rows, &row_shape);
        }
        return state.clone();
    }
    let mut value = ops::forward(&node.op, &operands, context);
    if node.write == Write::All {
        return Arc::new(value);
    }
    let old = kept.as_ref().map(|t| t.data.as_slice());
    node.write.leave(&mut value, old);
    let value = Arc::new(value);
    *kept = Some(value.clone());
    value
}

/// Copies the first `count` entries along `axis` from one tensor to another of
/// the same shape.
fn copy_rows<F: Real>(to: &mut Tensor<F>, from: &Tensor<F>, axis: usize, count: usize) {
    let inner: usize = to.shape[axis + 1..].iter().product();
    let plane = (to.shape[axis] * inner).max(1);
    let planes = to.data.chunks_mut(plane).zip(from.data.chunks(plane));
    for (to, from) in planes {
        to[..count * inner].copy_from_slice(&from[..count * inner]);
    }
}

/// The rows as a cache of this format holds them.
fn rounded<F: Real>(rows: &Tensor<F>, format: ActivationFormat) -> Tensor<F> {
    let mut wide = vec![0f64; rows.data.len()];
    quant::emulate(format, &F::narrow(&rows.data), &mut wide);
    Tensor {
        shape: rows.shape.clone(),
        data: wide.into_iter().map(F::of).collect(),
    }
}
