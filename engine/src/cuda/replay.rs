//! A decode step of the fast path as one captured graph, tapped or not: its taps are written to a slot of
//! device memory, one of two that take turns, while the other travels to the host.
//!
//! A graph for each slot, since the addresses of a slot are parameters of its nodes.

use super::CudaError;
use super::calls::{Span, calls_of};
use super::captured::{Captured, Fast, chain, clear};
use super::device::Doing as _;
use super::engine::{CudaEngine, receiving};
use super::fast::Fused;
#[cfg(any(test, feature = "faults"))]
use super::kernels::Params;
use super::launch::Call;
use super::layouts::Ptr;
use super::mirror::Mirror;
use super::options::Gemm;
use super::slots::{Place, Slots};
use super::walk::Ffn;
use crate::model::row_len;
use crate::tap::TapSink;
use cudarc::driver::{CudaStream, result, sys};
use std::sync::Arc;

impl CudaEngine {
    /// A decode step: one launch of a captured graph. What is wanted of it is written to the next slot.
    pub(super) fn replay(&mut self, fast: &mut Fast, token: u32, wanted: &[bool]) -> Result<(), CudaError> {
        if self.position == 0 {
            self.forget()?;
        }
        let tapped = wanted.contains(&true);
        if tapped {
            self.next_slot(fast, wanted)?;
        }
        let captured = fast.turns[fast.turn].captured.take();
        // What the card and the model are made for stays; to ask again takes microseconds of every step.
        let deep = match &captured {
            Some(captured) if captured.deep => Fused::may_be_deep(self.position),
            _ => self.fused(fast, &|_| false).deep(self.position),
        };
        let wants = |i: usize| wanted[i];
        if tapped {
            self.memory.slots.clone_from(&fast.turns[fast.turn].addresses);
        }
        let given: &[Ptr] = if tapped { &self.memory.slots } else { &[] };
        let mut captured = match captured.filter(|captured| captured.deep == deep) {
            Some(captured) => captured,
            // With the taps of this step: a graph whose nodes are all set before its first launch stays slower.
            None => Captured { deep, given: given.to_vec(), ..self.capture(fast, &wants)? },
        };
        #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
        let mut calls: Vec<Call> = if captured.given == given && !self.apart {
            vec![self.fused(fast, &wants).embed_token(token, self.position)]
        } else {
            calls_of(self.schedule_of(Some(fast), &wants).step(&[token], self.position)).collect()
        };
        #[cfg(any(test, feature = "faults"))]
        if let Some(planted) = fast.planted {
            let before = fast.before.take().map(|call| writing_where(call, &calls[0]));
            planted.spoil(&mut calls, before.as_ref(), &fast.decoder);
            fast.before = calls.first().cloned();
        }
        if self.apart {
            calls.iter().try_for_each(|call| self.launch(call, false))?;
        } else {
            for (call, &node) in calls.iter().zip(&captured.nodes) {
                let function = self.functions.get(&call.kernel());
                // SAFETY: the launch that was captured as this node, of this graph, but for numbers, blocks, whether its
                // kernel has taps, and addresses in slots, which have room for what is written there.
                unsafe { call.update(function, captured.graph.cu_graph_exec(), node)? };
            }
            captured.given.clear();
            captured.given.extend_from_slice(given);
            captured.graph.launch().doing("launching a decode step")?;
        }
        let turn = fast.turn;
        fast.turns[turn].captured = Some(captured);
        if tapped {
            // The slot of the step before has been brought by then, or stays where it is.
            self.clear_next(fast)?;
        }
        Ok(())
    }

    /// Goes on to the next slot, laid out for the taps of this position, and free and clear in the compute stream's
    /// time.
    fn next_slot(&mut self, fast: &mut Fast, wanted: &[bool]) -> Result<(), CudaError> {
        let keys = self.position + 1;
        if !fast.slots.fit(wanted, keys) {
            let slots = Slots::new(&self.graph, wanted, keys, self.options.context);
            // The caches stand first, wherever the keys leave the others.
            if !fast.slots.are_of(wanted) {
                self.mirror = Mirror::default();
                self.list_caches(&slots)?;
            }
            for turn in &mut fast.turns {
                (turn.addresses, turn.clear) = (slots.addresses(turn.start), false);
            }
            fast.slots = Arc::new(slots);
        }
        fast.turn = (fast.turn + 1) % fast.turns.len();
        let turn = &mut fast.turns[fast.turn];
        if turn.clear {
            // It mostly has been long ago, and a wait in the stream would hold up the step's first kernel.
            if !turn.cleared.try_is_complete().doing("ordering a tap")? {
                self.stream.wait(&turn.cleared).doing("ordering a tap")?;
            }
        } else {
            turn.cleared.record(&self.copies).doing("recording an event")?;
            self.stream.wait(&turn.cleared).doing("ordering a tap")?;
            clear(turn.start, 4 * fast.slots.len, &self.stream)?;
        }
        turn.clear = false;
        Ok(())
    }

    /// Clears the slot of the next step while this one runs.
    fn clear_next(&self, fast: &mut Fast) -> Result<(), CudaError> {
        let (next, bytes) = ((fast.turn + 1) % fast.turns.len(), 4 * fast.slots.len);
        if next != fast.turn && !fast.turns[next].clear {
            let turn = &mut fast.turns[next];
            clear(turn.start, bytes, &self.copies)?;
            turn.cleared.record(&self.copies).doing("recording an event")?;
            turn.clear = true;
        }
        Ok(())
    }

    /// Tells `cache_rows` where the caches are, their checksums, and their places in a slot.
    fn list_caches(&self, slots: &Slots) -> Result<(), CudaError> {
        let entry = |(i, place): (usize, &Place)| {
            let sums = self.memory.row_sums + (8 * i * self.options.context) as u64;
            [self.memory.outputs[place.node].at, sums, place.at as u64]
        };
        if slots.caches == 0 {
            return Ok(());
        }
        let table: Vec<u64> = slots.places[..slots.caches].iter().enumerate().flat_map(entry).collect();
        // A step before may still be read.
        self.copies.synchronize().doing("reading a tap")?;
        // SAFETY: the table has room for every cache.
        unsafe { result::memcpy_htod_sync(self.memory.cache_table, &table) }.doing("copying a table to the device")
    }

    /// Sends the taps of the decode step that was launched last.
    pub(super) fn send_slots(&mut self, wanted: &[bool], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        // What stays on the device stands where it shall.
        let Some(fast) = self.fast.as_ref().filter(|_| !self.options.keep_taps && wanted.contains(&true)) else {
            return Ok(());
        };
        let (slots, slot, span) = (fast.slots.clone(), fast.slot(), Span { tokens: 1, first: self.position });
        let known = self.mirror.rows.min(span.first);
        let gather = slots.places[..slots.caches].first().map(|place| {
            let width = row_len(&self.graph.nodes[place.node]);
            let fused = self.fused(fast, &|_| false);
            fused.cache_rows(self.memory.cache_table, slots.caches, slot, width, known, span.first)
        });
        if gather.is_some() && known < span.first {
            self.stream.synchronize().doing("running a step")?;
            for place in &slots.places[..slots.caches] {
                let (cache, width) = (self.memory.outputs[place.node].at, row_len(&self.graph.nodes[place.node]));
                self.mirror.bring(place.node, cache, self.options.kv_number(), width, known, span.first)?;
            }
        }
        if gather.is_some() {
            self.mirror.rows = span.keys();
        }
        let function = gather.as_ref().map(|call| self.functions.get(&call.kernel()));
        let before = |stream: &CudaStream| match (&gather, function) {
            // SAFETY: as `CudaEngine::launch`; the table lists caches with so many rows.
            (Some(call), Some(function)) => unsafe { call.launch(function, stream, false) },
            _ => Ok(()),
        };
        let (readback, mut receiver) = receiving!(self, taps);
        readback.send_slot(&slots, slot, span, &mut receiver, before)
    }

    /// Captures a decode step that writes to the slot what `wants` says.
    fn capture(&self, fast: &Fast, wants: &dyn Fn(usize) -> bool) -> Result<Captured, CudaError> {
        #[cfg_attr(not(any(test, feature = "faults")), expect(unused_mut))]
        let mut calls: Vec<Call> = calls_of(self.schedule_of(Some(fast), wants).step(&[0], self.position)).collect();
        #[cfg(any(test, feature = "faults"))]
        if let Some(planted) = fast.planted {
            planted.spoil(&mut calls, None, &fast.decoder);
        }
        self.capture_of(&calls)
    }

    /// A pass of several sequences. If each of its rows is attended to alone, and no stage of a layer is wanted, it is one launch of
    /// a graph, which is captured when the first pass of so many rows runs: what differs from pass to pass is in device memory.
    pub(super) fn by_rows(&mut self, tokens: &[u32], taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let wanted = self.wanted(taps);
        // Layers share the buffers of their stages, and each would have to travel before the next writes.
        let of_layers = self.graph.nodes.iter().zip(&wanted).any(|(node, &wanted)| wanted && node.id.layer.is_some());
        let Some(mut fast) = self.fast.take_if(|fast| {
            let dense = fast.decoder.layers.iter().all(|layer| matches!(layer.ffn, Ffn::Dense(_)));
            dense && !of_layers && !self.apart && self.options.gemm == Gemm::Own && self.rows.together.is_empty()
        }) else {
            return self.by_nodes(tokens, taps);
        };
        self.finish(taps)?;
        let span = Span { tokens: tokens.len(), first: self.position };
        let launched = self.launch_rows(&mut fast, tokens, &wanted, span);
        self.fast = Some(fast);
        launched?;
        for index in (0..wanted.len()).filter(|&i| wanted[i]) {
            self.send(index, span, taps)?;
        }
        self.finish(taps)?;
        self.stream.synchronize().doing("running a step")?;
        self.position += tokens.len();
        Ok(())
    }

    /// Launches a pass of rows that are attended to one by one.
    fn launch_rows(&self, fast: &mut Fast, tokens: &[u32], wanted: &[bool], span: Span) -> Result<(), CudaError> {
        let key = (tokens.len(), wanted.to_vec());
        if !fast.rows.contains_key(&key) {
            let wants = |i: usize| wanted[i];
            let calls: Vec<Call> = calls_of(self.schedule_of(Some(fast), &wants).longer(span)).collect();
            let captured = self.capture_where(&calls, |_, call| call.params.file().waits())?;
            fast.rows.insert(key.clone(), captured);
        }
        self.bring_tokens(tokens)?;
        self.poison((0..wanted.len()).filter(|&i| wanted[i]), span)?;
        fast.rows[&key].graph.launch().doing("launching a pass")
    }

    /// Captures these launches, each of which begins while the one before ends.
    pub(super) fn capture_of(&self, calls: &[Call]) -> Result<Captured, CudaError> {
        // The second waits for the first to end: what comes after reads the step's position before it waits.
        self.capture_where(calls, |i, _| i != 1)
    }

    /// Captures these launches, of which those that are `early` begin while the one before ends.
    fn capture_where(&self, calls: &[Call], early: impl Fn(usize, &Call) -> bool) -> Result<Captured, CudaError> {
        self.stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .doing("capturing a decode step")?;
        for (i, call) in calls.iter().enumerate() {
            self.launch(call, early(i, call))?;
        }
        let graph = self
            .stream
            .end_capture(sys::CUgraphInstantiate_flags(0))
            .doing("capturing a decode step")?
            .ok_or_else(|| CudaError::Unsupported("CUDA captured nothing".to_owned()))?;
        let nodes = chain(&graph)?;
        if nodes.len() != calls.len() {
            let (nodes, calls) = (nodes.len(), calls.len());
            return Err(CudaError::Unsupported(format!("CUDA captured {nodes} of {calls} launches in a row")));
        }
        Ok(Captured { graph, nodes, given: Vec::new(), deep: false })
    }
}

/// The first launch of a step before, but for where it writes: that goes with the slot.
#[cfg(any(test, feature = "faults"))]
fn writing_where(mut before: Call, now: &Call) -> Call {
    if let (Params::EmbedToken(before), Params::EmbedToken(now)) = (&mut before.params, &now.params) {
        before.x = now.x;
    }
    before
}
