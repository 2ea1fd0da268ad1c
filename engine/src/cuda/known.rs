//! Which ops that are known by their definitions there is a kernel for, and how states are kept.

use crate::model::Node;
use crate::ops::anatomy::{Columns, Contraction, Decision, Elementwise, Gather, Picked};
use crate::ops::{
    Anatomy, BlockScores, ChosenWeights, Convolution, Curve, Defined, Definition, DeltaNet, DeltaState, ExpertFactor,
    Factors, Function, GatedMean, L2Norm, Ngrams, Plain, RowShares, RowSoftmax, Sigmoid, SigmoidGate, Silu, Softplus,
    StreamDots, StreamFactors, StreamNorm, StreamSum, VectorFactor, Window,
};
use std::any::Any;

/// An op that there is a kernel for.
#[derive(Clone, Copy, Debug)]
pub enum Known<'a> {
    /// Places of the largest values.
    TopK(Decision),
    /// Elements at chosen places.
    Gather,
    /// The same elements of every row.
    Columns(Columns),
    /// Products with the rows of chosen experts.
    ExpertLinear(Picked),
    /// Rows of a token, each times a factor: so many.
    WeightedSum(usize),
    /// See [`RowSoftmax`].
    RowSoftmax,
    /// See [`RowShares`].
    RowShares,
    /// A function of each element, as `unary.cu` calls it.
    Unary(&'static str),
    /// See [`Softplus`].
    Softplus,
    /// See [`Factors`].
    Factors,
    /// See [`VectorFactor`].
    VectorFactor,
    /// See [`ExpertFactor`].
    ExpertFactor,
    /// See [`L2Norm`].
    L2Norm(&'a L2Norm),
    /// See [`Convolution`].
    Convolution(&'a Convolution),
    /// See [`Window`].
    Window(&'a Window),
    /// See [`DeltaNet`].
    DeltaNet(&'a DeltaNet),
    /// See [`DeltaState`].
    DeltaState(&'a DeltaState),
    /// See [`StreamNorm`].
    StreamNorm(&'a StreamNorm),
    /// See [`GatedMean`].
    GatedMean(&'a GatedMean),
    /// See [`StreamSum`].
    StreamSum(&'a StreamSum),
    /// See [`StreamFactors`].
    StreamFactors(&'a StreamFactors),
    /// See [`StreamDots`].
    StreamDots(&'a StreamDots),
    /// See [`Curve`].
    Curve(Function),
    /// See [`SigmoidGate`].
    SigmoidGate,
    /// Sums of three.
    Total,
    /// See [`Ngrams`].
    Ngrams(&'a Ngrams),
    /// See [`BlockScores`].
    BlockScores(&'a BlockScores),
    /// Keys of the blocks of the largest values.
    TopBlocks(Decision),
    /// See [`ChosenWeights`].
    ChosenWeights(&'a ChosenWeights),
}

impl Known<'_> {
    /// Whether a fused kernel computes it, where it is in a mixture of experts as `decoder.rs` knows it.
    pub fn is_fused(self) -> bool {
        use Known::{ExpertLinear, Gather, RowShares, RowSoftmax, TopK, WeightedSum};
        matches!(self, TopK(_) | Gather | ExpertLinear(_) | WeightedSum(_) | RowSoftmax | RowShares)
    }
}

/// Which kernel computes `op`; `None` where none does.
pub fn known(op: &Defined) -> Option<Known<'_>> {
    match op.anatomy() {
        Anatomy::Decision(decision) if decision.block.is_none() => return Some(Known::TopK(decision)),
        Anatomy::Decision(decision) => return Some(Known::TopBlocks(decision)),
        Anatomy::Gather(Gather::Elements) => return Some(Known::Gather),
        Anatomy::Gather(Gather::Columns(columns)) => return Some(Known::Columns(columns)),
        Anatomy::Contraction(Contraction::Weight(Some(picked))) => return Some(Known::ExpertLinear(picked)),
        Anatomy::Contraction(Contraction::Rows(terms)) => return Some(Known::WeightedSum(terms)),
        Anatomy::Gather(_)
        | Anatomy::Contraction(_)
        | Anatomy::RowReduction(_)
        | Anatomy::Elementwise(_)
        | Anatomy::State(_)
        | Anatomy::Collective(_) => {}
    }
    let definition: &dyn Definition = &**op;
    let definition: &dyn Any = definition;
    let is = |known, there: bool| there.then_some(known);
    let sums = op.anatomy() == Anatomy::Elementwise(Elementwise::Sum);
    is(Known::RowSoftmax, definition.is::<RowSoftmax>())
        .or_else(|| is(Known::RowShares, definition.is::<RowShares>()))
        .or_else(|| is(Known::Unary("Sigmoid"), definition.is::<Sigmoid>()))
        .or_else(|| is(Known::Unary("Silu"), definition.is::<Silu>()))
        .or_else(|| is(Known::Softplus, definition.is::<Softplus>()))
        .or_else(|| is(Known::Factors, definition.is::<Factors>()))
        .or_else(|| is(Known::VectorFactor, definition.is::<VectorFactor>()))
        .or_else(|| is(Known::ExpertFactor, definition.is::<ExpertFactor>()))
        .or_else(|| definition.downcast_ref().map(Known::L2Norm))
        .or_else(|| definition.downcast_ref().map(Known::Convolution))
        .or_else(|| definition.downcast_ref().map(Known::Window))
        .or_else(|| definition.downcast_ref().map(Known::DeltaNet))
        .or_else(|| definition.downcast_ref().map(Known::DeltaState))
        .or_else(|| definition.downcast_ref().map(Known::StreamNorm))
        .or_else(|| definition.downcast_ref().map(Known::GatedMean))
        .or_else(|| definition.downcast_ref().map(Known::StreamSum))
        .or_else(|| definition.downcast_ref().map(Known::StreamFactors))
        .or_else(|| definition.downcast_ref().map(Known::StreamDots))
        .or_else(|| definition.downcast_ref().map(|curve: &Curve| Known::Curve(curve.of)))
        .or_else(|| is(Known::SigmoidGate, definition.is::<SigmoidGate>()))
        .or_else(|| is(Known::Total, definition.is::<Plain>() && sums))
        .or_else(|| definition.downcast_ref().map(Known::Ngrams))
        .or_else(|| definition.downcast_ref().map(Known::BlockScores))
        .or_else(|| definition.downcast_ref().map(Known::ChosenWeights))
}

/// Whether it is kept row by row.
pub fn is_cache(node: &Node) -> bool {
    node.op.has_state() && !is_own_state(node)
}

/// Whether it is a state of another kind than the rows of a cache.
pub fn is_own_state(node: &Node) -> bool {
    node.is_own_state()
}
