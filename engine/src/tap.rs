//! Taps: where an engine hands a stage's tensor out, and where a test may put another in its place.

use crate::model::{Node, StageId};
use crate::ops::{Context, Tensor};
use std::sync::Arc;

/// Receives the tensors of a forward pass.
pub trait TapSink {
    /// Whether the stage is wanted; an engine may skip the copy if not.
    fn wants(&self, id: StageId) -> bool;

    /// Whether the stage of each of these nodes is wanted: of every step an engine asks for all at once.
    fn wanted(&self, nodes: &[Node]) -> Vec<bool> {
        nodes.iter().map(|node| self.wants(node.id)).collect()
    }

    /// One stage's output, which an engine may still read. Entries of attention scores beyond the diagonal carry no meaning.
    fn tap(&mut self, id: StageId, value: Arc<Tensor<f32>>);

    /// The same, part by part, where the values stand only for the length of the call. The parts of a stage come in their
    /// order, one after another.
    fn part(&mut self, part: Part<'_>);
}

/// Elements of a stage's output that follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The stage.
    pub id: StageId,
    /// Shape of the whole.
    pub shape: &'a [usize],
    /// Flat index of the first.
    pub first: usize,
    /// The elements.
    pub values: &'a [f32],
}

/// A sink that wants nothing.
pub struct NoTaps;

impl TapSink for NoTaps {
    fn wants(&self, _: StageId) -> bool {
        false
    }
    fn tap(&mut self, _: StageId, _: Arc<Tensor<f32>>) {}
    fn part(&mut self, _: Part<'_>) {}
}

/// A stage that has just been computed and that nothing has read yet. In a step of several sequences it holds the rows
/// of all, and the slots of their caches in the order in which rows took them.
pub struct Site<'a> {
    /// The stage.
    pub node: &'a Node,
    /// What it read, in the order of its inputs.
    pub inputs: &'a [Arc<Tensor<f32>>],
    /// Tokens, positions and weights of the step.
    pub context: &'a Context<'a>,
    /// What it gave; of a cache, the state that the next step goes on with.
    pub output: &'a mut Tensor<f32>,
}

/// Changes what stages give before anything reads it, as a bug in an engine
/// would. It is how faults enter the CPU engine that share no code with it.
pub trait Intervene: Send {
    /// Told of every stage of every step.
    fn change(&mut self, site: Site<'_>);
}
