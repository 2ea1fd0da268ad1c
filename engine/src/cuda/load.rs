//! Work for the card that nobody waits for, so that launches meet each other at other times than when alone.

use super::CudaError;
use super::device::Doing as _;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use std::sync::Arc;

/// Bytes that are filled at a time: more than the card's second cache holds.
const BYTES: usize = 64 << 20;
/// Times, for a step: some milliseconds on a large card.
const TIMES: usize = 128;

/// A stream of its own that fills memory.
pub struct Load {
    stream: Arc<CudaStream>,
    memory: CudaSlice<u8>,
}

impl Load {
    /// Takes the memory.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let stream = context.new_stream().doing("making a stream")?;
        let memory = stream.alloc_zeros::<u8>(BYTES).doing("taking device memory for a load")?;
        Ok(Self { stream, memory })
    }

    /// Queues work after the work that is not done yet.
    pub fn queue(&mut self) -> Result<(), CudaError> {
        self.stream.synchronize().doing("waiting for a load")?;
        (0..TIMES).try_for_each(|_| self.stream.memset_zeros(&mut self.memory).doing("loading the card"))
    }
}
