//! Captured graphs of a decode step, one for each slot of taps.

use super::CudaError;
use super::decoder::Decoder;
use super::device::Doing as _;
#[cfg(any(test, feature = "faults"))]
use super::faults::Replayed;
#[cfg(any(test, feature = "faults"))]
use super::launch::Call;
use super::layouts::Ptr;
use super::slots::{Slots, taken};
use crate::model::Graph;
use cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream, PinnedHostSlice, result, sys};
use std::collections::HashMap;
use std::sync::Arc;

/// What the fast path takes.
pub struct Fast {
    /// Which node is which.
    pub decoder: Decoder,
    /// The token that the last decode step chose.
    pub next_token: PinnedHostSlice<u32>,
    /// What is tapped of a decode step, and where in a slot.
    pub slots: Arc<Slots>,
    /// The slots, as many as are taken.
    pub(super) turns: Vec<Turn>,
    /// Which of them the last step wrote.
    pub(super) turn: usize,
    /// Passes of several sequences as graphs, by their rows and what is wanted of them.
    pub(super) rows: HashMap<(usize, Vec<bool>), Captured>,
    /// The first launch of the step before.
    #[cfg(any(test, feature = "faults"))]
    pub(super) before: Option<Call>,
    #[cfg(any(test, feature = "faults"))]
    pub(super) planted: Option<&'static Replayed>,
}

/// A slot, and the graph that writes it.
pub(super) struct Turn {
    /// Where it begins.
    pub(super) start: Ptr,
    /// Addresses of the nodes in it, as it is laid out now.
    pub(super) addresses: Vec<Ptr>,
    /// Whether nothing was written since it was cleared on the copy stream.
    pub(super) clear: bool,
    /// When it had been.
    pub(super) cleared: CudaEvent,
    pub(super) captured: Option<Captured>,
}

/// A decode step as one graph. Its first node takes token and position, and its parameters say which stages are written
/// to the slot.
pub struct Captured {
    /// The graph, ready to be launched.
    pub graph: CudaGraph,
    /// One after the other, as they were launched.
    pub nodes: Vec<sys::CUgraphNode>,
    /// The addresses that its nodes were given.
    pub(super) given: Vec<Ptr>,
    /// Whether its attention is that of a long context.
    pub(super) deep: bool,
}

impl Fast {
    /// With slots of `bytes` each, one after another from `start` on.
    pub fn new(
        decoder: Decoder, context: &Arc<CudaContext>, graph: &Graph, length: usize, start: Ptr,
    ) -> Result<Self, CudaError> {
        let (count, bytes) = taken(graph, length);
        let turn = |i| {
            let untimed = Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
            Ok(Turn {
                start: start + (i * bytes) as u64,
                addresses: Vec::new(),
                clear: false,
                cleared: context.new_event(untimed).doing("making an event")?,
                captured: None,
            })
        };
        Ok(Self {
            decoder,
            // SAFETY: written by `lm_head` or `argmax` alone; not read before a step has ended.
            next_token: unsafe { context.alloc_pinned_with_flags::<u32>(1, 0) }.doing("taking pinned memory")?,
            slots: Arc::default(),
            turns: (0..count).map(turn).collect::<Result<_, _>>()?,
            turn: 0,
            rows: HashMap::new(),
            #[cfg(any(test, feature = "faults"))]
            before: None,
            #[cfg(any(test, feature = "faults"))]
            planted: None,
        })
    }

    /// The slot that the last step wrote.
    pub fn slot(&self) -> Ptr {
        self.turns[self.turn].start
    }

    /// The graph that ran last.
    pub fn captured(&self) -> Option<&Captured> {
        self.turns[self.turn].captured.as_ref()
    }

    /// Takes a bug into the graph; the captured graph has none.
    #[cfg(any(test, feature = "faults"))]
    pub fn plant(&mut self, fault: &'static Replayed) {
        self.planted = Some(fault);
        self.turns.iter_mut().for_each(|turn| turn.captured = None);
    }

    /// The bug in it.
    #[cfg(any(test, feature = "faults"))]
    pub fn planted(&self) -> Option<&'static Replayed> {
        self.planted
    }
}

/// Fills memory with NaN, so that what a kernel leaves unwritten shows.
pub fn clear(at: Ptr, bytes: usize, stream: &CudaStream) -> Result<(), CudaError> {
    // SAFETY: a buffer's own address, and no more than its length; the stream orders it before the kernel that writes.
    unsafe { result::memset_d8_async(at, 0xFF, bytes, stream.cu_stream()) }.doing("clearing a buffer")
}

/// The nodes of a graph that is one chain, first first.
pub(super) fn chain(graph: &CudaGraph) -> Result<Vec<sys::CUgraphNode>, CudaError> {
    let doing = "reading a captured graph";
    let (mut at, mut count) = (std::ptr::null_mut(), 1);
    // SAFETY: a live graph, and room for the one node it begins with.
    unsafe { sys::cuGraphGetRootNodes(graph.cu_graph(), &raw mut at, &raw mut count) }.result().doing(doing)?;
    let mut nodes = Vec::new();
    while count == 1 {
        nodes.push(at);
        // SAFETY: as above; an edge's data is requested, since CUDA does not return an edge of a programmatic launch
        // without it.
        unsafe {
            let mut edge = std::mem::zeroed::<sys::CUgraphEdgeData>();
            sys::cuGraphNodeGetDependentNodes_v2(nodes[nodes.len() - 1], &raw mut at, &raw mut edge, &raw mut count)
        }
        .result()
        .doing(doing)?;
    }
    Ok(nodes)
}
