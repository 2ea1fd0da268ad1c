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
mod by_anatomy;
mod chosen_keys;
pub mod collective;
mod context;
mod convolution;
mod definition;
mod delta_net;
pub mod embed;
mod factors;
pub mod kv_cache;
mod l2_norm;
pub mod linear;
mod ngrams;
mod op;
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
mod streams;
pub mod swiglu;
mod tensor;
#[cfg(test)]
mod testing;

pub use anatomy::Anatomy;
pub use attn_scores::Attention;
pub use attn_weights::Softmax;
pub use chosen_keys::{BlockScores, ChosenWeights};
pub use context::{Context, Weight};
pub use convolution::{Convolution, Window};
pub use definition::{Defined, Definition};
pub use delta_net::{DeltaNet, DeltaState};
pub use factors::{ExpertFactor, Factors, VectorFactor};
pub use kv_cache::KvCache;
pub use l2_norm::L2Norm;
pub use ngrams::Ngrams;
pub use op::{Op, advance, forward, forward_with_bound, propagate_error};
pub use plain::Plain;
pub use real::Real;
pub use rms_norm::RmsNorm;
pub use rope::{Pairing, Rope, Scaling};
pub use row_shares::RowShares;
pub use row_softmax::RowSoftmax;
pub use sigmoid::Sigmoid;
pub use silu::Silu;
pub use softplus::Softplus;
pub use streams::{Curve, Function, GatedMean, SigmoidGate, StreamDots, StreamFactors, StreamNorm, StreamSum};
use tensor::AT_ONCE;
pub use tensor::Tensor;

pub use crate::rounding::{TINY, UNIT, half_sum};
pub(crate) use crate::rounding::{at_least_zero, deviation};
