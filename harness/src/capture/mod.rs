//! Captures: all taps of one run, with what identifies the run.

mod filter;
pub mod npz;

pub(crate) use filter::matches;
pub use filter::{Filter, FilterError};

use qdiff_engine::model::StageId;
use qdiff_engine::ops::Tensor;
use qdiff_engine::tap::TapSink;
use std::collections::{HashMap, HashSet};

/// The stages of one step: the prefill, or one decoded token.
#[derive(Clone, Debug)]
pub struct Step {
    /// 0 for the prefill, then 1 for the first decoded token.
    pub index: usize,
    /// Position of the first token.
    pub first: usize,
    /// Tokens the step was forced on, `[T]`.
    pub tokens: Vec<u32>,
    /// Output of each captured stage, shaped as the graph says.
    pub stages: HashMap<StageId, Tensor<f32>>,
}

impl Step {
    /// Positions of the tokens.
    pub fn positions(&self) -> Vec<u32> {
        (self.first..self.first + self.tokens.len())
            .map(|p| p as u32)
            .collect()
    }

    /// Tokens so far, those of this step included.
    pub fn keys(&self) -> usize {
        self.first + self.tokens.len()
    }

    /// `prefill` or `step3`, as captures on disk name it.
    pub fn label(&self) -> String {
        label(self.index)
    }
}

/// Name of the step `index`.
pub fn label(index: usize) -> String {
    match index {
        0 => "prefill".to_owned(),
        n => format!("step{n}"),
    }
}

/// All steps of one runner.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    /// Steps in order.
    pub steps: Vec<Step>,
}

/// Collects the wanted stages of one step.
pub struct Collector<'a> {
    wanted: &'a HashSet<StageId>,
    /// What was tapped so far.
    pub stages: HashMap<StageId, Tensor<f32>>,
}

impl<'a> Collector<'a> {
    /// A collector of `wanted`.
    pub fn new(wanted: &'a HashSet<StageId>) -> Self {
        Self {
            wanted,
            stages: HashMap::new(),
        }
    }
}

impl TapSink for Collector<'_> {
    fn wants(&self, id: StageId) -> bool {
        self.wanted.contains(&id)
    }

    fn tap(&mut self, id: StageId, shape: &[usize], data: &[f32]) {
        let tensor = Tensor {
            shape: shape.to_vec(),
            data: data.to_vec(),
        };
        self.stages.insert(id, tensor);
    }
}
