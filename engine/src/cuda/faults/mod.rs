//! Bugs written into launches and kernels, to be injected into the tapped path.
//!
//! The diagnosis knows each by its definition in f64. Nothing here shares code
//! with that: a fault changes a parameter of a launch, leaves a launch out, takes
//! another buffer, or runs a kernel of `kernels/faults` that has the bug in it.

mod launches;

use super::CudaError;
use super::calls::{Calls, Span, Work};
use crate::model::{Graph, Node};
use crate::ops::Op;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _};
use std::sync::Arc;

/// A bug that can be injected.
#[derive(Debug)]
pub struct Fault {
    /// The mutation that a diagnosis should name, with its parameters.
    pub cause: &'static str,
    /// Stages of a model that it can be planted in.
    pub fits: fn(&Graph, &Node) -> bool,
    /// Does it.
    spoil: fn(&mut Site<'_>),
}

impl Fault {
    /// Whether it gives weight to keys that a query must not see.
    fn unmasks(&self) -> bool {
        self.cause.starts_with("mask-")
    }
}

/// Every fault.
pub fn all() -> &'static [Fault] {
    launches::FAULTS
}

/// A launch in the hands of a fault.
struct Site<'a> {
    calls: Calls<'a>,
    index: usize,
    span: Span,
    extra: &'a Extra,
    work: &'a mut Work,
}

impl Site<'_> {
    fn node(&self) -> &Node {
        &self.calls.graph.nodes[self.index]
    }
}

/// Device memory that only faults need.
struct Extra {
    /// Frequencies of RoPE with base 10,000.
    frequencies: CudaSlice<f32>,
    /// Ones.
    ones: CudaSlice<f32>,
    stream: Arc<CudaStream>,
}

impl Extra {
    fn frequencies(&self) -> u64 {
        self.frequencies.device_ptr(&self.stream).0
    }

    fn ones(&self) -> u64 {
        self.ones.device_ptr(&self.stream).0
    }
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
        places: Vec<(usize, &'static Fault)>,
        calls: &Calls<'_>,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, CudaError> {
        let config = &calls.graph.config;
        let d = config.head_dim;
        let table: Vec<f32> = (0..d / 2).map(|i| (1e4f64).powf(-2.0 * i as f64 / d as f64) as f32).collect();
        let ones = vec![1f32; config.n_embd.max(d)];
        let bring = |values: &[f32]| stream.clone_htod(values).map_err(|e| CudaError::Driver(e, "planting a fault"));
        Ok(Self { places, extra: Extra { frequencies: bring(&table)?, ones: bring(&ones)?, stream: stream.clone() } })
    }

    fn at(&self, index: usize) -> impl Iterator<Item = &'static Fault> {
        let here = self.places.iter().filter(move |(i, _)| *i == index);
        here.map(|(_, fault)| *fault)
    }

    /// The span that node `index` takes itself to run over: with a cache that
    /// does not advance, every step is the first to whoever reads it.
    pub fn span(&self, calls: &Calls<'_>, index: usize, span: Span) -> Span {
        let node = &calls.graph.nodes[index];
        let nodes = &calls.graph.nodes;
        let keys_of = |weights: usize| nodes[nodes[weights].inputs[0]].inputs[1];
        let reads = match &node.op {
            Op::KvCache(_) => self.stuck(index),
            Op::AttnScores(_) => self.stuck(node.inputs[1]),
            Op::AttnWeights(_) => self.stuck(keys_of(index)),
            // As many weights as there are scores.
            Op::AttnContext(_) => self.stuck(keys_of(node.inputs[0])),
            _ => false,
        };
        Span { first: if reads { 0 } else { span.first }, ..span }
    }

    fn stuck(&self, cache: usize) -> bool {
        self.at(cache).any(|f| f.cause == launches::STUCK)
    }

    /// Whether the output of node `index` keeps what the step before left.
    pub fn keeps(&self, index: usize) -> bool {
        self.at(index).any(|f| f.cause == launches::STALE)
    }

    /// Spoils the work of node `index`. The context goes along with what its
    /// inputs are: it is no second fault that it sums the weights it is given.
    pub fn spoil(&self, calls: Calls<'_>, index: usize, span: Span, work: &mut Work) {
        let mut site = Site { calls, index, span, extra: &self.extra, work };
        for fault in self.at(index) {
            (fault.spoil)(&mut site);
        }
        let node = &calls.graph.nodes[index];
        if matches!(node.op, Op::AttnContext(_)) {
            if self.stuck(node.inputs[1]) {
                site.sum_keys(span.tokens);
            } else if self.at(node.inputs[0]).any(|f| f.unmasks()) {
                site.sum_keys(span.keys());
            }
        }
    }
}
