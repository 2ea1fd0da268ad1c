//! The mathematics of every stage: one file per op, each the definition that
//! the f32 engine runs and the f64 check holds everything against.
//!
//! An op file gives `forward`, generic over f32 and f64, and `bound`: how far a correct evaluation in f32 may lie from
//! the exact one on these very operands, element by element, in units of [`UNIT`] already applied. The verdict
//! multiplies it by one factor; there are no constant floors.

pub mod anatomy;
pub mod attn_context;
pub mod attn_scores;
pub mod attn_weights;
pub mod bias;
mod bounded;
pub mod collective;
mod convolution;
mod definition;
mod delta_net;
pub mod embed;
mod factors;
pub mod kv_cache;
mod l2_norm;
pub mod linear;
mod plain;
pub mod real;
pub mod residual;
pub mod rms_norm;
pub mod rope;
mod row_shares;
mod row_softmax;
mod sigmoid;
mod silu;
mod softplus;
pub mod swiglu;
#[cfg(test)]
mod testing;

pub use anatomy::Anatomy;
pub use attn_scores::Attention;
pub use attn_weights::Softmax;
pub use convolution::{Convolution, Window};
pub use definition::{Defined, Definition};
pub use delta_net::{DeltaNet, DeltaState};
pub use factors::{Factors, VectorFactor};
pub use kv_cache::KvCache;
pub use l2_norm::L2Norm;
pub use plain::Plain;
pub use real::Real;
pub use rms_norm::RmsNorm;
pub use rope::{Pairing, Rope, Scaling};
pub use row_shares::RowShares;
pub use row_softmax::RowSoftmax;
pub use sigmoid::Sigmoid;
pub use silu::Silu;
pub use softplus::Softplus;

pub use crate::rounding::{TINY, UNIT, half_sum};

use crate::quant::WeightSource;
use anatomy::{Activation, Collective, Contraction, Elementwise, Gather, RowReduction, State};

/// Elements that a thread makes at least: fewer are not worth handing out.
const AT_ONCE: usize = 1 << 15;

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

impl<F: Copy> Tensor<F> {
    /// `f` of every element.
    pub fn map<G>(&self, f: impl Fn(F) -> G) -> Tensor<G> {
        Tensor { shape: self.shape.clone(), data: self.data.iter().map(|&v| f(v)).collect() }
    }
}

impl Tensor<f32> {
    /// The same values in f64, exactly.
    pub fn wide(&self) -> Tensor<f64> {
        self.map(f64::from)
    }
}

impl Tensor<f64> {
    /// The nearest values in f32.
    pub fn narrow(&self) -> Tensor<f32> {
        self.map(|v| v as f32)
    }
}

/// The mathematics of a stage, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Row of the embedding table per token.
    Embed,
    /// Root mean square normalisation times a weight.
    RmsNorm(RmsNorm),
    /// Matrix times vector.
    Linear,
    /// Plus a vector.
    Bias,
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
    SwiGlu,
    /// The values of all ranks.
    Collective(Collective),
    /// What a definition says.
    Defined(Defined),
}

impl Op {
    /// Name of the op, which is the name of its file and of its kernel.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::RmsNorm(_) => "rms_norm",
            Op::Linear => "linear",
            Op::Bias => "bias",
            Op::Rope(_) => "rope",
            Op::KvCache(_) => "kv_cache",
            Op::AttnScores(_) => "attn_scores",
            Op::AttnWeights(_) => "attn_weights",
            Op::AttnContext(_) => "attn_context",
            Op::Residual => "residual",
            Op::SwiGlu => "swiglu",
            Op::Collective(_) => "collective",
            Op::Defined(op) => op.name(),
        }
    }

    /// What an output is made of, by which everything outside this folder treats the op.
    pub fn anatomy(&self) -> Anatomy<'_> {
        match self {
            Op::Embed => Anatomy::Gather(Gather::Rows),
            Op::RmsNorm(norm) => Anatomy::RowReduction(RowReduction::MeanSquare(norm)),
            Op::Linear => Anatomy::Contraction(Contraction::Weight(None)),
            Op::Bias => Anatomy::Elementwise(Elementwise::Offset),
            Op::Residual => Anatomy::Elementwise(Elementwise::Sum),
            Op::Rope(rope) => Anatomy::Elementwise(Elementwise::Rotation(rope)),
            Op::KvCache(cache) => Anatomy::State(State::Rows(cache)),
            Op::AttnScores(a) => Anatomy::Contraction(Contraction::Scores(a)),
            Op::AttnWeights(softmax) => Anatomy::RowReduction(RowReduction::Exponentials(softmax)),
            Op::AttnContext(a) => Anatomy::Contraction(Contraction::Context(a)),
            Op::SwiGlu => Anatomy::Elementwise(Elementwise::Gated(Activation::Silu)),
            Op::Collective(of) => Anatomy::Collective(*of),
            Op::Defined(op) => op.anatomy(),
        }
    }

    /// Whether its value is a state: what it gave a step before goes into what it gives next ([`advance`]). All other
    /// ops are functions of their inputs ([`forward`]).
    pub fn has_state(&self) -> bool {
        matches!(self.anatomy(), Anatomy::State(_))
    }

    /// How many of the `n` elements of a row mean something, the first ones: all,
    /// but of attention scores at `position` those of keys it may see.
    pub fn meaningful(&self, position: u32, n: usize) -> usize {
        match self.anatomy() {
            Anatomy::Contraction(Contraction::Scores(_)) => attn_scores::causal(position, n),
            Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => n,
            Anatomy::Gather(_) | Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => n,
        }
    }
}

/// A tensor of the model file that an op reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Its name.
    pub name: String,
    /// Its extent in ggml's order: the contiguous axis first. Axes beyond the
    /// second (experts) are further rows to whoever reads row by row.
    pub extent: Vec<usize>,
}

/// What an op reads besides its inputs.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Token ids of this step, `[T]`.
    pub tokens: &'a [u32],
    /// Positions of these tokens, `[T]`.
    pub positions: &'a [u32],
    /// Where the values of weights come from.
    pub source: &'a dyn WeightSource,
    /// The op's own weights, in the order that it takes them.
    pub weights: &'a [Weight],
}

impl Context<'_> {
    /// Length of a row and number of rows of the op's weight `i`.
    pub fn extent(&self, i: usize) -> (usize, usize) {
        self.source.extent(&self.weights[i].name)
    }

    /// Dequantises rows of the op's weight `i`, as many as `out` has room for.
    pub fn rows(&self, i: usize, first: usize, out: &mut [f32]) {
        self.source.rows(&self.weights[i].name, first, out);
    }

    /// The op's weight `i` as one vector.
    pub fn vector<F: Real>(&self, i: usize) -> Vec<F> {
        let (len, rows) = self.extent(i);
        let mut raw = vec![0f32; len * rows];
        self.rows(i, 0, &mut raw);
        raw.iter().map(|&w| F::of(f64::from(w))).collect()
    }
}

fn reals(positions: &[u32]) -> Vec<f64> {
    positions.iter().map(|&p| f64::from(p)).collect()
}

/// Evaluates `op`, one without a state.
///
/// # Panics
/// If the inputs do not have the shapes that the graph declares.
pub fn forward<F: Real>(op: &Op, inputs: &[&Tensor<F>], c: &Context<'_>) -> Tensor<F> {
    match op {
        Op::Embed => embed::forward(c),
        Op::RmsNorm(norm) => rms_norm::forward(norm, inputs[0], &c.vector::<F>(0)),
        Op::Linear => linear::forward(inputs[0], c),
        Op::Bias => bias::forward(inputs[0], &c.vector::<F>(0)),
        Op::Rope(rope) => rope::forward(rope, inputs[0], &reals(c.positions)),
        Op::KvCache(_) => unreachable!("a state is not forwarded but advanced"),
        Op::AttnScores(a) => attn_scores::forward(a, inputs[0], inputs[1]),
        Op::AttnWeights(s) => attn_weights::forward(s, inputs[0], c.positions),
        Op::AttnContext(a) => attn_context::forward(a, inputs[0], inputs[1]),
        Op::Residual => residual::forward(inputs[0], inputs[1]),
        Op::SwiGlu => swiglu::forward(inputs[0], inputs[1]),
        Op::Collective(of) => collective::forward(*of, inputs),
        Op::Defined(op) => F::defined(&**op, inputs, c),
    }
}

/// Evaluates `op`, one with a state. `state` is what it gave a step before,
/// empty before the first of a cache, else zeros of its shape, and becomes what it gives now.
///
/// # Panics
/// As [`forward`].
pub fn advance<F: Real>(op: &Op, state: &mut Tensor<F>, inputs: &[&Tensor<F>], c: &Context<'_>) {
    match op {
        Op::KvCache(cache) => kv_cache::append(cache, state, inputs[0]),
        op => *state = forward(op, &[inputs, &[state]].concat(), c),
    }
}

/// How far operands that are themselves uncertain by `deltas` (element by element; `None` where an operand is exact)
/// make the result uncertain: first order, `δy² = Σ (∂y/∂x · δx)²`. Squares are summed and not magnitudes, as errors of
/// different elements are independent roundings. `y` is the result. Of ops without a state, as [`forward`].
///
/// # Panics
/// As [`forward`].
pub fn propagate_error(
    op: &Op, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, c: &Context<'_>,
) -> Vec<f32> {
    if deltas.iter().all(Option::is_none) {
        return vec![0.0; y.data.len()];
    }
    let exact: Vec<Vec<f32>> =
        inputs.iter().zip(deltas).map(|(x, d)| vec![0.0; if d.is_some() { 0 } else { x.data.len() }]).collect();
    let d = |i: usize| deltas[i].unwrap_or(&exact[i]);
    match op {
        Op::Embed => vec![0.0; y.data.len()],
        Op::RmsNorm(norm) => rms_norm::propagate_error(norm, inputs[0], d(0), &c.vector::<f64>(0)),
        Op::Linear => {
            let dx = Tensor { shape: inputs[0].shape.clone(), data: d(0).to_vec() };
            linear::propagate_error(&dx, c)
        }
        Op::Bias => d(0).to_vec(),
        Op::Rope(rope) => rope::propagate_error(rope, d(0), inputs[0].row_len(), &reals(c.positions)),
        Op::KvCache(_) => unreachable!("the uncertainty of a state is its caller's"),
        Op::AttnWeights(s) => attn_weights::propagate_error(s, y, d(0)),
        Op::AttnScores(_) | Op::AttnContext(_) => {
            anatomy::propagate_error(op.anatomy(), inputs, deltas, y, c, &|inputs| forward(op, inputs, c))
        }
        Op::Residual => d(0).iter().zip(d(1)).map(|(a, b)| a.hypot(*b)).collect(),
        Op::SwiGlu => swiglu::propagate_error((inputs[0], inputs[1]), (d(0), d(1))),
        Op::Collective(of) => collective::propagate_error(*of, inputs, deltas),
        Op::Defined(op) => {
            let mut carried = op.propagate_error(inputs, deltas, y, c);
            // What cannot be said how uncertain it is may be anything.
            carried.iter_mut().filter(|d| d.is_nan()).for_each(|d| *d = f32::INFINITY);
            carried
        }
    }
}

/// Evaluates `op`, one without a state, in f64, with the forward error bound of f32 arithmetic on these operands.
///
/// # Panics
/// As [`forward`].
pub fn forward_with_bound(op: &Op, inputs: &[&Tensor<f64>], c: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    if matches!(op, Op::Linear) {
        // Value and bound in one pass over the weight.
        return linear::forward_with_bound(inputs[0], c);
    }
    let y = forward(op, inputs, c);
    let bound = match op {
        Op::Embed => embed::bound(&y),
        Op::RmsNorm(norm) => rms_norm::bound(norm, &y),
        Op::Bias | Op::Residual => residual::bound(&y),
        Op::Rope(rope) => rope::bound(rope, &y, &reals(c.positions)),
        Op::AttnScores(a) => attn_scores::bound(a, inputs[0], inputs[1]),
        Op::AttnWeights(s) => attn_weights::bound(s, inputs[0], &y),
        Op::AttnContext(a) => attn_context::bound(a, inputs[0], inputs[1]),
        Op::SwiGlu => swiglu::bound((inputs[0], inputs[1]), &y),
        Op::Collective(of) => collective::bound(*of, inputs, &y),
        Op::Defined(op) => op.bound(inputs, &y, c),
        Op::KvCache(_) | Op::Linear => unreachable!("evaluated before"),
    };
    (y, bound)
}
