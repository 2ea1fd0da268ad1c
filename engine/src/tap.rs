//! Taps: where an engine hands a stage's tensor out.

use crate::model::StageId;

/// Receives the tensors of a forward pass.
pub trait TapSink {
    /// Whether the stage is wanted; an engine may skip the copy if not.
    fn wants(&self, id: StageId) -> bool;

    /// One stage's output, row-major with `shape` outermost first. Entries of
    /// attention scores beyond the diagonal carry no meaning.
    fn tap(&mut self, id: StageId, shape: &[usize], data: &[f32]);
}

/// A sink that wants nothing.
pub struct NoTaps;

impl TapSink for NoTaps {
    fn wants(&self, _: StageId) -> bool {
        false
    }
    fn tap(&mut self, _: StageId, _: &[usize], _: &[f32]) {}
}
