//! Taps on their way to the host: copied aside on the device, then read through
//! pinned memory while the next stages run.
//!
//! A ring of slots, each a piece of device memory and as much pinned host memory. The compute stream copies a tensor
//! into free slots, piece by piece; a second stream brings each slot to the host. A slot is free again once the host
//! has taken its piece.

use super::CudaError;
use super::device::Doing as _;
use crate::model::StageId;
use crate::ops::Tensor;
use crate::tap::TapSink;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, PinnedHostSlice, result, sys};
use std::collections::VecDeque;
use std::sync::Arc;

/// Elements of a slot.
const SLOT: usize = 4 << 20;
/// Slots of the ring.
const SLOTS: usize = 4;

/// Bytes of the ring on the device.
pub const RING_BYTES: usize = 4 * SLOT * SLOTS;

/// The ring.
pub struct Readback {
    compute: Arc<CudaStream>,
    copies: Arc<CudaStream>,
    device: u64,
    pinned: Vec<PinnedHostSlice<f32>>,
    /// Recorded on the compute stream when a slot is filled.
    filled: Vec<CudaEvent>,
    /// Recorded on the copy stream when a slot has arrived.
    arrived: Vec<CudaEvent>,
    keep: bool,
    next: usize,
    flying: VecDeque<(usize, usize)>,
    tensors: VecDeque<Arriving>,
}

/// A tensor of which not all has arrived.
struct Arriving {
    id: StageId,
    value: Tensor<f32>,
    len: usize,
}

impl Readback {
    /// A ring over the [`RING_BYTES`] of device memory at `device`; with `keep`, nothing is brought to the host.
    pub fn new(
        context: &Arc<CudaContext>, compute: &Arc<CudaStream>, device: u64, keep: bool,
    ) -> Result<Self, CudaError> {
        let event = |_| context.new_event(Some(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)).doing("making an event");
        let pinned = |_| {
            // SAFETY: every element is written by a copy before it is read. Not write-combined: the host reads it.
            unsafe { context.alloc_pinned_with_flags::<f32>(SLOT, 0) }.doing("taking pinned memory")
        };
        Ok(Self {
            compute: compute.clone(),
            copies: context.new_stream().doing("making a stream")?,
            device,
            keep,
            pinned: (0..SLOTS).map(pinned).collect::<Result<_, _>>()?,
            filled: (0..SLOTS).map(event).collect::<Result<_, _>>()?,
            arrived: (0..SLOTS).map(event).collect::<Result<_, _>>()?,
            next: 0,
            flying: VecDeque::new(),
            tensors: VecDeque::new(),
        })
    }

    /// Sends the tensor at `from`, of f32, on its way; hands out whatever has arrived if room is needed.
    pub fn send(&mut self, id: StageId, shape: Vec<usize>, from: u64, taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let len = shape.iter().product();
        if !self.keep {
            self.tensors.push_back(Arriving { id, value: Tensor { shape, data: Vec::with_capacity(len) }, len });
        }
        for start in (0..len).step_by(SLOT) {
            if self.flying.len() == SLOTS {
                self.land(taps)?;
            }
            let (slot, count) = (self.next, SLOT.min(len - start));
            self.next = (slot + 1) % SLOTS;
            let aside = self.device + (4 * slot * SLOT) as u64;
            // SAFETY: both addresses are good for `count` elements, and the slot is not in flight.
            unsafe { result::memcpy_dtod_async(aside, from + 4 * start as u64, 4 * count, self.compute.cu_stream()) }
                .doing("copying a tap aside")?;
            if self.keep {
                continue;
            }
            self.filled[slot].record(&self.compute).doing("recording an event")?;
            self.copies.wait(&self.filled[slot]).doing("ordering a tap")?;
            let to = self.pinned[slot].as_mut_slice().doing("reading a tap")?;
            // SAFETY: the slot's own pinned memory, which nobody reads before `arrived` has happened.
            unsafe { result::memcpy_dtoh_async(&mut to[..count], aside, self.copies.cu_stream()) }
                .doing("reading a tap")?;
            self.arrived[slot].record(&self.copies).doing("recording an event")?;
            self.flying.push_back((slot, count));
        }
        Ok(())
    }

    /// Hands out all that was sent.
    pub fn finish(&mut self, taps: &mut dyn TapSink) -> Result<(), CudaError> {
        while !self.flying.is_empty() {
            self.land(taps)?;
        }
        self.tensors.clear();
        Ok(())
    }

    /// Takes the oldest slot's piece; hands its tensor out if that was the last.
    fn land(&mut self, taps: &mut dyn TapSink) -> Result<(), CudaError> {
        let Some((slot, count)) = self.flying.pop_front() else {
            return Ok(());
        };
        self.arrived[slot].synchronize().doing("running a stage")?;
        let piece = self.pinned[slot].as_slice().doing("reading a tap")?;
        let tensor = self.tensors.front_mut().expect("a piece has its tensor");
        tensor.value.data.extend_from_slice(&piece[..count]);
        if tensor.value.data.len() == tensor.len {
            let tensor = self.tensors.pop_front().expect("just seen");
            taps.tap(tensor.id, tensor.value);
        }
        Ok(())
    }
}
