//! Taps on their way to the host, while the next stages or the next step run.
//!
//! A ring of pinned host memory, and as much on the device. What travels is a parcel: of a longer step a tensor or a
//! piece of one, copied aside on the device, for its buffer is written again; of a decode step its whole slot
//! (`slots.rs`), as it stands. A second stream brings parcels to the host, where the reader looks at them in the ring
//! itself. A parcel's place is free again once that has been.

use super::CudaError;
use super::calls::Span;
use super::device::Doing as _;
use super::layouts::Ptr;
use super::memory::{Memory, RING_BYTES};
use super::mirror::Mirror;
use super::slots::Slots;
use crate::dtype::DType;
use crate::model::{Axis, Graph, StageId, row_len};
use crate::tap::{Part, TapSink};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, PinnedHostSlice, result, sys};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Elements of the ring.
const RING: usize = RING_BYTES / size_of::<f32>();
/// Elements of a parcel at most.
const PARCEL: usize = RING / 4;

/// The ring.
pub struct Readback {
    compute: Arc<CudaStream>,
    copies: Arc<CudaStream>,
    context: Arc<CudaContext>,
    device: Ptr,
    pinned: PinnedHostSlice<f32>,
    /// Whether nothing is brought to the host.
    keep: bool,
    /// Where the next parcel may stand.
    next: usize,
    /// Oldest first.
    flying: VecDeque<Parcel>,
    /// Events of parcels that have arrived.
    spare: Vec<Events>,
    /// Parcels sent, and those that were handed out.
    sent: usize,
    landed: usize,
    /// Bytes brought so far, by stage.
    pub moved: HashMap<&'static str, u64>,
}

/// What happens to a parcel.
struct Events {
    /// On the compute stream: what it brings was written.
    filled: CudaEvent,
    /// On the copy stream: it has arrived.
    arrived: CudaEvent,
}

/// What is on its way.
struct Parcel {
    at: usize,
    len: usize,
    events: Events,
    span: Span,
    contents: Contents,
}

/// What a parcel brings.
enum Contents {
    /// A node's output of so many elements, from a flat index on.
    Piece { node: usize, first: usize, of: usize },
    /// A slot, from an element on.
    Slot { slots: Arc<Slots>, start: usize },
}

/// Who takes what arrives.
pub struct Receiver<'a> {
    /// What was run.
    pub graph: &'a Graph,
    /// Where caches stand.
    pub memory: &'a Memory,
    /// What they hold.
    pub kv: DType,
    /// The caches on the host.
    pub mirror: &'a mut Mirror,
    /// Who is shown it.
    pub taps: &'a mut dyn TapSink,
}

impl Readback {
    /// A ring over the [`RING_BYTES`] of device memory at `device`, brought by `copies`; with `keep`, nothing is brought to
    /// the host.
    pub fn new(
        context: &Arc<CudaContext>, compute: &Arc<CudaStream>, copies: &Arc<CudaStream>, device: Ptr, keep: bool,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            compute: compute.clone(),
            copies: copies.clone(),
            context: context.clone(),
            device,
            // SAFETY: every element is written by a copy before it is read. Not write-combined: the host reads it.
            pinned: unsafe { context.alloc_pinned_with_flags(if keep { 1 } else { RING }, 0) }
                .doing("taking pinned memory")?,
            keep,
            next: 0,
            flying: VecDeque::new(),
            spare: Vec::new(),
            sent: 0,
            landed: 0,
            moved: HashMap::new(),
        })
    }

    /// Sends the output of node `node`, of `len` elements at `from`, on its way; hands out what has arrived where room is
    /// needed.
    pub fn send(
        &mut self, node: usize, len: usize, from: Ptr, span: Span, receiver: &mut Receiver<'_>,
    ) -> Result<(), CudaError> {
        for first in (0..len).step_by(PARCEL) {
            let count = PARCEL.min(len - first);
            let at = self.room(count, receiver)?;
            let aside = self.device + 4 * at as u64;
            // SAFETY: both addresses hold `count` elements, and the parcel that was there has been read.
            unsafe { result::memcpy_dtod_async(aside, from + 4 * first as u64, 4 * count, self.compute.cu_stream()) }
                .doing("copying a tap aside")?;
            if self.keep {
                self.next = at + count;
                continue;
            }
            let events = self.filled()?;
            self.bring(at, count, aside, events, span, Contents::Piece { node, first, of: len })?;
        }
        Ok(())
    }

    /// Sends what a decode step has written to its slot at `from`. `before` queues what must be done on the copy stream
    /// before that.
    pub fn send_slot(
        &mut self, slots: &Arc<Slots>, from: Ptr, span: Span, receiver: &mut Receiver<'_>,
        before: impl FnOnce(&CudaStream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let mut events = self.filled()?;
        before(&self.copies)?;
        for start in (0..slots.len).step_by(PARCEL) {
            let count = PARCEL.min(slots.len - start);
            let at = self.room(count, receiver)?;
            let contents = Contents::Slot { slots: slots.clone(), start };
            self.bring(at, count, from + 4 * start as u64, events, span, contents)?;
            if start + count == slots.len {
                break;
            }
            events = self.filled()?;
        }
        Ok(())
    }

    /// Has the copy stream wait for what the compute stream has been given so far.
    fn filled(&mut self) -> Result<Events, CudaError> {
        let events = match self.spare.pop() {
            Some(events) => events,
            None => {
                let untimed = Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
                let event = || self.context.new_event(untimed).doing("making an event");
                Events { filled: event()?, arrived: event()? }
            }
        };
        events.filled.record(&self.compute).doing("recording an event")?;
        self.copies.wait(&events.filled).doing("ordering a tap")?;
        Ok(events)
    }

    fn bring(
        &mut self, at: usize, len: usize, from: Ptr, events: Events, span: Span, contents: Contents,
    ) -> Result<(), CudaError> {
        let to = self.pinned.as_mut_slice().doing("reading a tap")?;
        // SAFETY: the ring's own pinned memory, and nothing reads this part before `arrived` has happened.
        unsafe { result::memcpy_dtoh_async(&mut to[at..at + len], from, self.copies.cu_stream()) }
            .doing("reading a tap")?;
        events.arrived.record(&self.copies).doing("recording an event")?;
        self.next = at + len;
        self.sent += 1;
        self.flying.push_back(Parcel { at, len, events, span, contents });
        Ok(())
    }

    /// Where `len` elements may stand, once enough has been handed out.
    fn room(&mut self, len: usize, receiver: &mut Receiver<'_>) -> Result<usize, CudaError> {
        loop {
            let oldest = self.flying.front().map(|parcel| parcel.at);
            if let Some(at) = place(self.next, oldest, len) {
                return Ok(at);
            }
            self.land(receiver)?;
        }
    }

    /// Parcels sent so far.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Hands out the first so many parcels of all that were ever sent.
    pub fn land_up_to(&mut self, sent: usize, receiver: &mut Receiver<'_>) -> Result<(), CudaError> {
        while self.landed < sent && !self.flying.is_empty() {
            self.land(receiver)?;
        }
        Ok(())
    }

    /// Hands out the oldest parcel.
    fn land(&mut self, receiver: &mut Receiver<'_>) -> Result<(), CudaError> {
        let Some(parcel) = self.flying.pop_front() else {
            return Ok(());
        };
        self.landed += 1; // for any result
        parcel.events.arrived.synchronize().doing("running a stage")?;
        let arrived = &self.pinned.as_slice().doing("reading a tap")?[parcel.at..parcel.at + parcel.len];
        self.spare.push(parcel.events);
        let Receiver { graph, memory, kv, mirror, taps } = receiver;
        let span = parcel.span;
        let shape_of = |node: usize| Graph::extent(&graph.nodes[node], span.tokens, span.keys());
        let mut give = |id: StageId, shape: &[usize], first, values: &[f32], moved: usize| {
            *self.moved.entry(id.name).or_default() += 4 * moved as u64;
            taps.part(Part { id, shape, first, values });
        };
        match parcel.contents {
            Contents::Piece { node, first, of } => {
                let mut shape = shape_of(node);
                if graph.nodes[node].shape.first() == Some(&Axis::Last) {
                    // A state of each sequence.
                    shape[0] = of / row_len(&graph.nodes[node]).max(1);
                }
                give(graph.nodes[node].id, &shape, first, arrived, arrived.len());
            }
            Contents::Slot { slots, start } => {
                let from = slots.places.partition_point(|place| place.at + place.room <= start);
                for (i, place) in slots.places.iter().enumerate().skip(from) {
                    if place.at >= start + arrived.len() {
                        break;
                    }
                    let node = &graph.nodes[place.node];
                    let shape = shape_of(place.node);
                    if i < slots.caches {
                        // The caches stand first, and all in the first parcel.
                        let width = row_len(node);
                        let row = &arrived[place.at - start..][..width];
                        let changed = arrived[place.at - start + width].to_bits() as usize;
                        let cache = memory.outputs[place.node].at;
                        let rows = mirror.take(place.node, cache, *kv, row, span.first, changed)?;
                        give(node.id, &shape, 0, rows, width);
                        continue;
                    }
                    let end = place.at + shape.iter().product::<usize>();
                    let here = place.at.max(start)..end.min(start + arrived.len());
                    if !here.is_empty() {
                        let values = &arrived[here.start - start..here.end - start];
                        give(node.id, &shape, here.start - place.at, values, values.len());
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for Readback {
    fn drop(&mut self) {
        // Nothing may arrive in memory that is given back. An error has no receiver, and nothing arrives then.
        let _ = self.copies.synchronize();
    }
}

/// The place for `len` elements in the ring, `next` being the end of the newest parcel and `oldest` the begin of the
/// oldest.
fn place(next: usize, oldest: Option<usize>, len: usize) -> Option<usize> {
    match oldest {
        None => Some(if next + len <= RING { next } else { 0 }),
        // What is free lies behind the newest and before the oldest; a ring that is full would look empty.
        Some(oldest) if oldest < next => {
            if next + len <= RING {
                Some(next)
            } else {
                (len < oldest).then_some(0)
            }
        }
        Some(oldest) => (next + len < oldest).then_some(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Parcels of any lengths, handed out in any rhythm, never overlap.
        #[test]
        fn a_parcel_is_given_room_that_no_other_has(parcels in proptest::collection::vec((1usize..=PARCEL, 0usize..4), 1..60)) {
            let mut flying: VecDeque<(usize, usize)> = VecDeque::new();
            let mut next = 0;
            for (len, land) in parcels {
                flying.drain(..land.min(flying.len()));
                let at = loop {
                    match place(next, flying.front().map(|f| f.0), len) {
                        Some(at) => break at,
                        None => prop_assert!(flying.pop_front().is_some(), "an empty ring has no room"),
                    }
                };
                prop_assert!(at + len <= RING);
                prop_assert!(flying.iter().all(|&(a, n)| at + len <= a || a + n <= at));
                flying.push_back((at, len));
                next = at + len;
            }
        }
    }
}
