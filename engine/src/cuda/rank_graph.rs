//! A decode step of a rank as one captured graph: the kernels of its nodes, what the ranks give each other between them, and its
//! taps. Layers share the buffers of their stages, so a tapped stage is copied to a slot of its own as soon as it is made.
//!
//! The graph is captured once for as many keys as the slot has room for. From step to step only parameters of kernels change.

use super::CudaError;
use super::calls::{Job, Launch, Span};
use super::captured::clear;
use super::device::Doing as _;
use super::engine::{CudaEngine, receiving};
use super::launch::Call;
use super::layouts::Ptr;
use super::nccl::ended;
use super::rank_step::RankGraph;
use super::slots::{Place, Slots};
use crate::tap::TapSink;
use cudarc::driver::{CudaStream, result, sys};
use std::ptr;
use std::sync::Arc;

impl CudaEngine {
    /// Whether a step of so many tokens, of which these nodes are wanted, runs as a captured graph: a decode step of a rank. The
    /// first step is another one, in which NCCL also connects the ranks.
    pub(super) fn captures(&self, tokens: usize, wanted: &[bool]) -> bool {
        let room = self.options.taps || !wanted.contains(&true);
        self.communicator.is_some() && tokens == 1 && self.position > 0 && room && !self.apart
    }

    /// A decode step of a rank: one launch of its graph.
    ///
    /// # Errors
    /// If CUDA or NCCL fails, or another rank has ended.
    pub(super) fn step_of_rank(
        &mut self, token: u32, wanted: &[bool], taps: &mut dyn TapSink,
    ) -> Result<(), CudaError> {
        let of_step = self.launched(token, wanted);
        if of_step.is_err() || self.communicator.as_ref().is_some_and(|ranks| ranks.has_ended()) {
            // NCCL ends no communicator while a graph is left that was captured with it.
            self.rank_graph = None;
            of_step?;
            return Err(ended());
        }
        let span = Span { tokens: 1, first: self.position };
        if let Some(slots) = self.rank_graph.as_ref().map(|graph| graph.slots.clone()) {
            let slot = self.memory.slot_memory;
            let (readback, mut receiver) = receiving!(self, taps);
            if slots.len > 0 {
                readback.send_slot(&slots, slot, span, &mut receiver, |_| Ok(()))?;
            }
        }
        // A state has a buffer of its own, which the rest of the step leaves as it is.
        let states: Vec<usize> =
            (0..wanted.len()).filter(|&i| wanted[i] && self.graph.nodes[i].op.has_state()).collect();
        states.into_iter().try_for_each(|i| self.send(i, span, taps))?;
        self.finish(taps)
    }

    /// Runs the step, and waits for its end.
    fn launched(&mut self, token: u32, wanted: &[bool]) -> Result<(), CudaError> {
        // SAFETY: the buffer holds `options.step` ids, one at least; the source outlives the copy, which the step waits for.
        unsafe { result::memcpy_htod_async(self.memory.tokens, &[token], self.stream.cu_stream()) }
            .doing("copying tokens to the device")?;
        let keys = self.position + 1;
        let fits = |graph: &RankGraph| graph.wanted == wanted && graph.slots.fit(&graph.copied(&self.graph), keys);
        let graph = match self.rank_graph.take().filter(fits) {
            Some(graph) => self.renewed(graph, token)?,
            None => self.captured_rank(token, wanted)?,
        };
        let launched = graph.graph.launch().doing("launching a decode step");
        self.rank_graph = Some(graph);
        launched?;
        self.stream.synchronize().doing("running a step")
    }

    /// The graph with the parameters of the step of this token.
    fn renewed(&self, mut graph: RankGraph, token: u32) -> Result<RankGraph, CudaError> {
        let launches = self.launches(token);
        let calls = launches.iter().filter(|launch| !self.is_planted(launch)).flat_map(|launch| &launch.jobs);
        let calls = calls.filter_map(|job| if let Job::Kernel(call) = job { Some(call) } else { None });
        for ((before, node), call) in graph.kernels.iter_mut().zip(calls) {
            if before != call {
                let function = self.functions.get(&call.kernel());
                // SAFETY: the launch that was captured as this node, of this graph, but for numbers and blocks.
                unsafe { call.update(function, graph.graph.cu_graph_exec(), *node)? };
                before.clone_from(call);
            }
        }
        Ok(graph)
    }

    fn launches(&self, token: u32) -> Vec<Launch> {
        self.schedule_of(None, &|_| false).step(&[token], self.position)
    }

    /// Captures the step.
    fn captured_rank(&self, token: u32, wanted: &[bool]) -> Result<RankGraph, CudaError> {
        let copied: Vec<bool> =
            wanted.iter().zip(&self.graph.nodes).map(|(w, node)| *w && !node.op.has_state()).collect();
        let slots = Arc::new(Slots::new(&self.graph, &copied, self.position + 1, self.options.context));
        self.stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .doing("capturing a decode step")?;
        let queued = self.queue_captured(token, (wanted, &slots));
        // A capture must end, also of a step that failed.
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0)).doing("capturing a decode step");
        let kernels = queued?;
        let graph = graph?.ok_or_else(|| CudaError::Unsupported("CUDA captured nothing".to_owned()))?;
        Ok(RankGraph { graph, kernels, wanted: wanted.to_vec(), slots })
    }

    fn queue_captured(
        &self, token: u32, (wanted, slots): (&[bool], &Slots),
    ) -> Result<Vec<(Call, sys::CUgraphNode)>, CudaError> {
        let mut kernels = Vec::new();
        for launch in self.launches(token) {
            for place in launch.nodes.iter().filter_map(|&i| slots.place(i)).filter(|_| !self.is_planted(&launch)) {
                let buffer = self.memory.outputs[place.node];
                clear(buffer.at, buffer.bytes.min(4 * place.room), &self.stream)?;
            }
            #[cfg(any(test, feature = "faults"))]
            let planted = self.run_planted(&launch)?;
            #[cfg(not(any(test, feature = "faults")))]
            let planted = false;
            for job in launch.jobs.iter().filter(|_| !planted) {
                self.run(job)?;
                if let Job::Kernel(call) = job {
                    kernels.push((call.clone(), captured_last(&self.stream)?));
                }
            }
            for place in launch.nodes.iter().filter(|&&i| wanted[i]).filter_map(|&i| slots.place(i)) {
                self.copy_to_slot(place)?;
            }
        }
        #[cfg(any(test, feature = "faults"))]
        self.join_copies()?;
        Ok(kernels)
    }

    /// Copies a stage to its place in the slot, for all keys that the slot has room for.
    fn copy_to_slot(&self, place: &Place) -> Result<(), CudaError> {
        let (from, to): (_, Ptr) = (self.memory.outputs[place.node], self.memory.slot_memory + 4 * place.at as u64);
        // SAFETY: the slot was planned with this room, and the buffer is as long as is copied.
        unsafe { result::memcpy_dtod_async(to, from.at, from.bytes.min(4 * place.room), self.stream.cu_stream()) }
            .doing("copying a tap aside")
    }

    /// Whether a bug of ranks makes this launch otherwise: the old content of its buffers stays there, as in an engine that does not fill
    /// them with NaN.
    pub(super) fn is_planted(&self, launch: &Launch) -> bool {
        #[cfg(any(test, feature = "faults"))]
        return self.changes(launch);
        #[cfg(not(any(test, feature = "faults")))]
        {
            let _ = launch;
            false
        }
    }
}

/// The node that was captured last on the stream, which the next one waits for.
fn captured_last(stream: &CudaStream) -> Result<sys::CUgraphNode, CudaError> {
    let (mut status, mut nodes, mut count) =
        (sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, ptr::null(), 0);
    // SAFETY: a live stream that is being captured; what is not asked for may be null.
    unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream.cu_stream(),
            &raw mut status,
            ptr::null_mut(),
            ptr::null_mut(),
            &raw mut nodes,
            ptr::null_mut(),
            &raw mut count,
        )
    }
    .result()
    .doing("capturing a decode step")?;
    if count != 1 || nodes.is_null() {
        return Err(CudaError::Unsupported(format!("CUDA captured a launch that ends in {count} nodes")));
    }
    // SAFETY: CUDA gives an array of so many nodes, good until the next call on the stream.
    Ok(unsafe { *nodes })
}
