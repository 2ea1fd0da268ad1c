//! Bugs written into launches and kernels.
//!
//! The diagnosis knows those of `launches` by their definition in f64. Nothing here shares code with that: a fault changes
//! a parameter of a launch, leaves a launch out, takes another buffer, or runs a kernel of `kernels/faults` that has the
//! bug in it. Those of `tapped`, `fused` and `prefill` are outside the catalogue: most change lines of a kernel
//! (`bugs`).

mod bugs;
mod fused;
mod launches;
mod prefill;
mod ranks;
mod replayed;
mod site;
mod tapped;
#[cfg(test)]
mod tests;

pub use bugs::{Bug, bug, bugs};
pub use replayed::{REPLAYED, Replayed};
use site::{Extra, Site};
pub use site::{Fault, RankBug};

use super::CudaError;
use super::calls::{Calls, Launch};
use super::device::Doing as _;
use super::kernels::{AttnContextParams, AttnWeightsParams};
use crate::model::{Graph, Node};
use crate::ops::Op;
use cudarc::driver::{CudaStream, DevicePtr as _};
use std::sync::{Arc, LazyLock};

/// Every fault.
pub fn all() -> &'static [Fault] {
    launches::FAULTS
}

/// Every bug of a kernel outside the catalogue, of the tapped path.
pub fn tapped() -> &'static [Fault] {
    tapped::FAULTS
}

/// Every such bug of the fused path: of its decode steps, then of longer ones.
pub fn fused() -> &'static [Fault] {
    static BOTH: LazyLock<Vec<Fault>> = LazyLock::new(|| [fused::FAULTS, prefill::FAULTS].concat());
    &BOTH
}

/// The faults that an engine carries.
pub struct Planted {
    places: Vec<(usize, &'static Fault)>,
    extra: Extra,
}

impl Planted {
    /// Faults at nodes, by index.
    ///
    /// # Errors
    /// If CUDA fails.
    pub fn new(
        places: Vec<(usize, &'static Fault)>, graph: &Graph, stream: &Arc<CudaStream>,
    ) -> Result<Self, CudaError> {
        let config = &graph.config;
        let d = config.head_dim;
        let table: Vec<f32> = (0..d / 2).map(|i| (1e4f64).powf(-2.0 * i as f64 / d as f64) as f32).collect();
        let ones = vec![1f32; config.n_embd.max(d)];
        let bring = |values: &[f32]| stream.clone_htod(values).doing("planting a fault");
        let memory = vec![bring(&table)?, bring(&ones)?];
        let at = |i: usize| memory[i].device_ptr(stream).0;
        Ok(Self { places, extra: Extra { frequencies: at(0), ones: at(1), _memory: memory } })
    }

    /// Whether they are none of products of matrices that are kept as halves: the longer steps of the fused path then go as
    /// on a card that keeps none.
    pub fn narrow(&self) -> bool {
        !self.places.iter().any(|(_, fault)| fault.is_of_halves())
    }

    fn at(&self, index: usize) -> impl Iterator<Item = &'static Fault> {
        let here = self.places.iter().filter(move |(i, _)| *i == index);
        here.map(|(_, fault)| *fault)
    }

    /// Whether what node `index` reads or writes is a cache that does not advance: to it every step is the first.
    fn takes_step_for_first(&self, graph: &Graph, index: usize) -> bool {
        let node = &graph.nodes[index];
        let keys_of = |weights: usize| graph.nodes[graph.nodes[weights].inputs[0]].inputs[1];
        match &node.op {
            Op::KvCache(_) => self.stuck(index),
            Op::AttnScores(_) => self.stuck(node.inputs[1]),
            Op::AttnWeights(_) => self.stuck(keys_of(index)),
            // As many weights as there are scores.
            Op::AttnContext(_) => self.stuck(keys_of(node.inputs[0])),
            Op::Embed | Op::RmsNorm(_) | Op::Linear | Op::Bias | Op::Rope(_) | Op::Residual | Op::SwiGlu => false,
            Op::Collective(_) | Op::Defined(_) => false,
        }
    }

    fn stuck(&self, cache: usize) -> bool {
        self.at(cache).any(|f| f.cause == launches::STUCK)
    }

    /// Spoils the launch of node `index`.
    pub fn spoil(&self, calls: &Calls<'_>, index: usize, launch: &mut Launch) {
        if self.takes_step_for_first(calls.graph, index) {
            launch.span.first = 0;
            launch.jobs = calls.of(index, launch.span);
        }
        let mut site = Site { cause: "", calls, index, extra: &self.extra, launch };
        for fault in self.at(index) {
            site.cause = fault.cause;
            (fault.spoil)(&mut site);
        }
        let node = &calls.graph.nodes[index];
        if let Op::AttnContext(_) = node.op {
            self.go_along(&mut site, node);
        }
    }

    /// Spoils launches of the fused path that follow each other: that of each node, and the one before, which may have
    /// left the node's output in parts.
    pub fn spoil_fused(&self, calls: &Calls<'_>, launches: &mut [Launch]) {
        for at in 0..launches.len() {
            for index in launches[at].nodes.clone() {
                for fault in self.at(index) {
                    for launch in &mut launches[at.saturating_sub(1)..=at] {
                        (fault.spoil)(&mut Site { cause: fault.cause, calls, index, extra: &self.extra, launch });
                    }
                }
            }
        }
    }

    /// The context goes along with what its inputs are: it is no second fault that it sums the weights it is given.
    fn go_along(&self, site: &mut Site<'_>, node: &Node) {
        let span = site.launch.span;
        let &[weights, values] = node.inputs.as_slice() else { unreachable!("a context has two inputs") };
        let jobs = site.calls.of(weights, span);
        let mut of_weights = Launch { jobs, nodes: vec![weights], span, keeps: false };
        self.spoil(site.calls, weights, &mut of_weights);
        let stuck = self.stuck(values);
        let mut of_weights = Site { index: weights, launch: &mut of_weights, ..*site };
        let first = of_weights.params::<AttnWeightsParams>().first;
        let context: &mut AttnContextParams = site.params();
        // A query sees as many keys as there are before its step, and its own.
        context.first = if stuck { context.keys.min(span.tokens as i32) - 1 } else { first };
    }
}
