//! The mathematics of every stage: one file per op, each the definition that
//! the f32 engine runs and the f64 check holds everything against.
//!
//! An op file gives `forward`, generic over f32 and f64, and `bound`: how far
//! a correct evaluation in f32 may lie from the exact one on these very
//! operands, element by element, in units of [`UNIT`] already applied. The
//! verdict multiplies it by one factor; there are no constant floors.

pub mod attn_context;
pub mod attn_scores;
pub mod attn_weights;
pub mod bias;
pub mod embed;
pub mod kv_cache;
pub mod linear;
pub mod real;
pub mod residual;
pub mod rms_norm;
pub mod rope;
pub mod swiglu;
#[cfg(test)]
mod testing;

pub use attn_scores::Attention;
pub use attn_weights::{Mask, Softmax};
pub use kv_cache::KvCache;
pub use linear::{Layout, Linear};
pub use real::Real;
pub use rms_norm::{NormWeight, RmsNorm};
pub use rope::{Pairing, Rope};
pub use swiglu::Gate;

pub use crate::rounding::{TINY, UNIT};

use crate::quant::WeightSource;

/// A dense row-major tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensor<F> {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Elements, the last axis contiguous.
    pub data: Vec<F>,
}

impl<F: Real> Tensor<F> {
    /// A tensor of zeros.
    pub fn zeros(shape: Vec<usize>) -> Self {
        let len = shape.iter().product();
        Self { shape, data: vec![F::zero(); len] }
    }

    /// The first axis: tokens for most stages, cached rows for the cache.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Elements per entry of the first axis.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Entry `i` of the first axis.
    pub fn row(&self, i: usize) -> &[F] {
        let n = self.row_len();
        &self.data[i * n..(i + 1) * n]
    }
}

impl Tensor<f32> {
    /// The same values in f64, exactly.
    pub fn wide(&self) -> Tensor<f64> {
        Tensor { shape: self.shape.clone(), data: self.data.iter().map(|&v| f64::from(v)).collect() }
    }
}

impl Tensor<f64> {
    /// The nearest values in f32.
    pub fn narrow(&self) -> Tensor<f32> {
        Tensor { shape: self.shape.clone(), data: self.data.iter().map(|&v| v as f32).collect() }
    }
}

/// The mathematics of a stage, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Row of the embedding table per token.
    Embed {
        /// Whether the table is read across.
        transposed: bool,
    },
    /// Root mean square normalisation times a weight.
    RmsNorm(RmsNorm),
    /// Matrix times vector.
    Linear(Linear),
    /// Plus a vector.
    Bias,
    /// The input, unchanged: what a stage does when its op is left out.
    Copy,
    /// Rotary position embedding.
    Rope(Rope),
    /// The key or value cache after this step.
    KvCache(KvCache),
    /// Query times cached keys.
    AttnScores(Attention),
    /// Softmax of the scaled, masked scores.
    AttnWeights(Softmax),
    /// Attention weights times cached values.
    AttnContext(Attention),
    /// Sum of two tensors.
    Residual,
    /// The gate, through SiLU, times up.
    SwiGlu(Gate),
}

impl Op {
    /// Name of the op, which is the name of its file and of its kernel.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm(_) => "rms_norm",
            Op::Linear(_) => "linear",
            Op::Bias => "bias",
            Op::Copy => "copy",
            Op::Rope(_) => "rope",
            Op::KvCache(_) => "kv_cache",
            Op::AttnScores(_) => "attn_scores",
            Op::AttnWeights(_) => "attn_weights",
            Op::AttnContext(_) => "attn_context",
            Op::Residual => "residual",
            Op::SwiGlu(_) => "swiglu",
        }
    }
}

/// What an op reads besides its inputs.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Token ids of this step, `[T]`.
    pub tokens: &'a [u32],
    /// Positions of these tokens, `[T]`.
    pub positions: &'a [u32],
    /// Where weights come from.
    pub weights: &'a dyn WeightSource,
    /// Name of the op's own weight, empty where it has none.
    pub weight: &'a str,
}

impl Context<'_> {
    /// The op's weight as one vector.
    pub(crate) fn vector<F: Real>(&self) -> Vec<F> {
        let (len, rows) = self.weights.extent(self.weight);
        let mut raw = vec![0f32; len * rows];
        self.weights.rows(self.weight, 0, &mut raw);
        raw.iter().map(|&w| F::of(f64::from(w))).collect()
    }
}

/// Evaluates `op`, all but the cache, whose state the caller keeps (see
/// [`kv_cache::append`]).
///
/// # Panics
/// If the inputs do not have the shapes that the graph declares.
pub fn forward<F: Real>(op: &Op, inputs: &[&Tensor<F>], context: &Context<'_>) -> Tensor<F> {
    match op {
        Op::Embed { transposed } => embed::forward(*transposed, context),
        Op::RmsNorm(norm) => rms_norm::forward(norm, inputs[0], &context.vector::<F>()),
        Op::Linear(linear) => linear::forward(linear, inputs[0], context),
        Op::Bias => bias::forward(inputs[0], &context.vector::<F>()),
        Op::Copy => inputs[0].clone(),
        Op::Rope(rope) => rope::forward(rope, inputs[0], context.positions),
        Op::KvCache(_) => unreachable!("the cache has state: use kv_cache::append"),
        Op::AttnScores(a) => attn_scores::forward(a, inputs[0], inputs[1]),
        Op::AttnWeights(s) => attn_weights::forward(s, inputs[0], context.positions),
        Op::AttnContext(a) => attn_context::forward(a, inputs[0], inputs[1]),
        Op::Residual => residual::forward(inputs[0], inputs[1]),
        Op::SwiGlu(gate) => swiglu::forward(*gate, inputs[0], inputs[1]),
    }
}

/// How far operands that are themselves uncertain by `deltas` (element by
/// element; `None` where an operand is exact) make the result uncertain:
/// first order, `δy² = Σ (∂y/∂x · δx)²`. Squares are summed and not
/// magnitudes, as errors of different elements are independent roundings.
/// `y` is the result. The cache is the caller's, as in [`forward`].
///
/// # Panics
/// As [`forward`].
pub fn spread(
    op: &Op,
    inputs: &[&Tensor<f64>],
    deltas: &[Option<&[f32]>],
    y: &Tensor<f64>,
    context: &Context<'_>,
) -> Vec<f32> {
    if deltas.iter().all(Option::is_none) {
        return vec![0.0; y.data.len()];
    }
    let exact: Vec<Vec<f32>> =
        inputs.iter().zip(deltas).map(|(x, d)| vec![0.0; if d.is_some() { 0 } else { x.data.len() }]).collect();
    let d = |i: usize| deltas[i].unwrap_or(&exact[i]);
    match op {
        Op::Embed { .. } => vec![0.0; y.data.len()],
        Op::RmsNorm(norm) => rms_norm::spread(norm, inputs[0], d(0), &context.vector::<f64>()),
        Op::Linear(layer) => {
            let dx = Tensor { shape: inputs[0].shape.clone(), data: d(0).to_vec() };
            linear::spread(layer, &dx, context)
        }
        Op::Bias | Op::Copy => d(0).to_vec(),
        Op::Rope(rope) => rope::spread(rope, d(0), inputs[0].row_len(), context.positions),
        Op::KvCache(_) => unreachable!("the cache has state: its caller keeps it"),
        Op::AttnScores(a) => attn_scores::spread(a, (inputs[0], inputs[1]), (d(0), d(1))),
        Op::AttnWeights(s) => attn_weights::spread(s, y, d(0)),
        Op::AttnContext(a) => attn_context::spread(a, (inputs[0], inputs[1]), (d(0), d(1))),
        Op::Residual => d(0).iter().zip(d(1)).map(|(a, b)| a.hypot(*b)).collect(),
        Op::SwiGlu(gate) => swiglu::spread(*gate, (inputs[0], inputs[1]), (d(0), d(1))),
    }
}

/// Evaluates `op` in f64, with the forward error bound of f32 arithmetic on
/// these operands.
///
/// # Panics
/// As [`forward`].
pub fn forward_with_bound(op: &Op, inputs: &[&Tensor<f64>], context: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    if let Op::Linear(linear) = op {
        return linear::forward_with_bound(linear, inputs[0], context);
    }
    let y = forward(op, inputs, context);
    let bound = match op {
        Op::Embed { .. } => embed::bound(&y),
        Op::RmsNorm(norm) => rms_norm::bound(norm, inputs[0], &y),
        Op::Bias | Op::Residual => residual::bound(&y),
        Op::Rope(rope) => rope::bound(rope, &y, context.positions),
        Op::AttnScores(a) => attn_scores::bound(a, inputs[0], inputs[1]),
        Op::AttnWeights(s) => attn_weights::bound(s, inputs[0], &y),
        Op::AttnContext(a) => attn_context::bound(a, inputs[0], inputs[1]),
        Op::SwiGlu(gate) => swiglu::bound(*gate, inputs[0], inputs[1], &y),
        Op::Copy | Op::KvCache(_) | Op::Linear(_) => vec![0.0; y.data.len()],
    };
    (y, bound)
}
