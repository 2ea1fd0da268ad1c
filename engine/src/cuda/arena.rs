//! One allocation for everything an engine keeps on the device.

use super::CudaError;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr as _, DriverError};
use std::sync::Arc;

/// Alignment of every part, in bytes: what `cudaMalloc` gives.
const ALIGN: usize = 256;

/// A part of the arena: where it begins, and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// Adds up what will be needed, before anything is taken.
#[derive(Debug, Default)]
pub struct Plan {
    total: usize,
}

impl Plan {
    /// Room for `bytes`.
    pub fn take(&mut self, bytes: usize) -> Part {
        let offset = self.total.next_multiple_of(ALIGN);
        self.total = offset + bytes;
        Part { offset, bytes }
    }

    /// Takes it all at once.
    ///
    /// # Errors
    /// If the device has less memory free: how much is needed, and how much is
    /// there.
    pub fn allocate(self, context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Result<Arena, CudaError> {
        let failed = |what| move |e: DriverError| CudaError::Driver(e, what);
        let (free, _) = context.mem_get_info().map_err(failed("asking for free memory"))?;
        if self.total > free {
            return Err(CudaError::Memory { needed: self.total.div_ceil(1 << 20), free: free >> 20 });
        }
        let memory = stream.alloc_zeros::<u8>(self.total.max(1)).map_err(failed("taking device memory"))?;
        // The zeros are written in the stream's own time, and copies from the host
        // are not ordered with it: without this they may be written over weights
        // already there (seen as zeros in `embed`: DIVERGENCES.md).
        stream.synchronize().map_err(failed("clearing device memory"))?;
        let base = memory.device_ptr(stream).0;
        Ok(Arena { base, _memory: memory })
    }
}

/// The memory.
pub struct Arena {
    base: u64,
    _memory: CudaSlice<u8>,
}

impl Arena {
    /// Device address of a part.
    pub fn at(&self, part: Part) -> u64 {
        self.base + part.offset as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;

    #[test]
    fn parts_are_aligned_and_do_not_overlap() {
        let mut plan = Plan::default();
        let parts = [plan.take(1), plan.take(300), plan.take(0), plan.take(256)];
        for pair in parts.windows(2) {
            assert!(pair[0].offset + pair[0].bytes <= pair[1].offset);
        }
        assert!(parts.iter().all(|p| p.offset % 256 == 0));
        assert_eq!(plan.total, parts[3].offset + 256);
    }
}
