//! One allocation for everything an engine keeps on the device.

use super::CudaError;
use super::device::Doing as _;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr as _};
use std::sync::Arc;

/// Alignment of every part, in bytes: what `cudaMalloc` gives.
const ALIGN: u64 = 256;

/// A part of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub at: u64,
    /// Length in bytes.
    pub bytes: usize,
}

/// Hands out parts one after another, from an address on.
#[derive(Debug)]
pub struct Plan {
    start: u64,
    end: u64,
}

impl Plan {
    /// Nothing yet, from the aligned address `start` on.
    pub fn from(start: u64) -> Self {
        Self { start, end: start }
    }

    /// Room for `bytes`.
    pub fn take(&mut self, bytes: usize) -> Part {
        let at = self.end.next_multiple_of(ALIGN);
        self.end = at + bytes as u64;
        Part { at, bytes }
    }

    /// Bytes handed out, with what lies between them.
    pub fn bytes(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// The memory.
pub struct Arena {
    /// Where it begins.
    pub start: u64,
    _memory: CudaSlice<u8>,
}

impl Arena {
    /// Takes `bytes`, all zero.
    ///
    /// # Errors
    /// If the device has less memory free: how much is needed, and how much is there.
    pub fn take(bytes: usize, context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        let (free, _) = context.mem_get_info().doing("asking for free memory")?;
        if bytes > free {
            return Err(CudaError::Unsupported(format!(
                "the model and its buffers need {} MiB of device memory and {} MiB are free; shorten the prompt, lower \
                 -n or --ubatch, take --kv-type f16, or free the device",
                bytes.div_ceil(1 << 20),
                free >> 20
            )));
        }
        let memory = stream.alloc_zeros::<u8>(bytes.max(1)).doing("taking device memory")?;
        // The zeros are written in the stream's own time, and copies from the host are not ordered with it: without
        // this they may be written over weights already there (seen as zeros in `embed`: DIVERGENCES.md).
        stream.synchronize().doing("clearing device memory")?;
        let start = memory.device_ptr(stream).0;
        Ok(Self { start, _memory: memory })
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;

    #[test]
    fn parts_are_aligned_and_do_not_overlap() {
        let mut plan = Plan::from(512);
        let parts = [plan.take(1), plan.take(300), plan.take(0), plan.take(256)];
        for pair in parts.windows(2) {
            assert!(pair[0].at + pair[0].bytes as u64 <= pair[1].at);
        }
        assert!(parts.iter().all(|p| p.at % 256 == 0));
        assert_eq!(512 + plan.bytes() as u64, parts[3].at + 256);
    }
}
