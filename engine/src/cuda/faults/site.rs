//! What a fault is, and the launch that it changes.

use super::bug;
use crate::cuda::calls::{Calls, Launch};
use crate::cuda::kernels::File;
use crate::cuda::layouts::Ptr;
use crate::model::{Graph, Node};
use cudarc::driver::CudaSlice;

/// A bug that can be injected.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The mutation that a diagnosis should name, with its parameters; for a bug outside the catalogue, its own name.
    pub cause: &'static str,
    /// Whether it can be planted at a node of a graph.
    pub fits: fn(&Graph, &Node) -> bool,
    /// Does it.
    pub(super) spoil: fn(&mut Site<'_>),
}

impl Fault {
    /// Whether it is in products of matrices that are kept as halves: a card that keeps none has no place for it.
    pub fn is_of_halves(&self) -> bool {
        bug(self.cause).is_some_and(|bug| bug.files.contains(&File::WideProducts))
    }
}

/// What goes wrong where a rank puts parts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankBug {
    /// The rank goes on with its own part.
    NotReduced,
    /// The rank adds its own part once more.
    OwnTwice,
    /// The rank adds the whole sum once more.
    SumTwice,
    /// The exchange begins before the rank has written its part: it sends what the layer before left there.
    BeforeItsPart,
    /// The exchange is queued on another stream, and nothing waits for it.
    NotAwaited,
    /// The rank puts the parts together in the reverse order.
    Reversed,
    /// The rank fails, and never asks for the exchange.
    Fails,
}

/// A launch in the hands of a fault.
pub(super) struct Site<'a> {
    /// The fault's cause.
    pub(super) cause: &'static str,
    pub(super) calls: &'a Calls<'a>,
    pub(super) index: usize,
    pub(super) extra: &'a Extra,
    pub(super) launch: &'a mut Launch,
}

/// Device memory that only faults need.
pub(super) struct Extra {
    /// Frequencies of RoPE with base 10,000.
    pub(super) frequencies: Ptr,
    /// Ones.
    pub(super) ones: Ptr,
    pub(super) _memory: Vec<CudaSlice<f32>>,
}
