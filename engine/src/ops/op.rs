//! The ops, and what each is evaluated by.

use super::anatomy::{Activation, Anatomy, Collective, Contraction, Elementwise, Gather, RowReduction, State};
use super::{
    Attention, Context, Defined, Definition, KvCache, Real, RmsNorm, Rope, Softmax, Tensor, attn_context, attn_scores,
    attn_weights, bias, by_anatomy, collective, embed, kv_cache, linear, residual, rms_norm, rope, swiglu,
};

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

impl Defined {
    /// An op of this definition.
    pub fn op(definition: impl Definition + 'static) -> Op {
        Op::Defined(Self::new(definition))
    }
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

    /// See [`Definition::kept_rounded`].
    pub fn kept_rounded(&self, unit: f64, inputs: &[&Tensor<f64>], c: &Context<'_>) -> Option<Vec<f32>> {
        if let Self::Defined(op) = self { op.kept_rounded(unit, inputs, c) } else { None }
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
        Op::Defined(op) => F::by_type(inputs, &|inputs| op.forward32(inputs, c), &|inputs| op.forward64(inputs, c)),
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
            by_anatomy::propagate_error(op.anatomy(), inputs, deltas, y, c, &|inputs| forward(op, inputs, c))
        }
        Op::Residual => d(0).iter().zip(d(1)).map(|(a, b)| a.hypot(*b)).collect(),
        Op::SwiGlu => swiglu::propagate_error((inputs[0], inputs[1]), (d(0), d(1))),
        Op::Collective(of) => collective::propagate_error(*of, inputs, deltas),
        Op::Defined(op) => {
            let mut carried = op.propagate_error(inputs, deltas, y, c);
            // A value of unknown uncertainty may be anything.
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
