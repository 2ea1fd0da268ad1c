//! What CUDA there is on this machine.

use cudarc::driver::{CudaContext, CudaStream, DriverError};
use cudarc::{driver, nvrtc};
use serde::Serialize;
use std::sync::Arc;
use thiserror::Error;

/// Why CUDA cannot be used, with the remedy.
#[derive(Debug, Error)]
pub enum CudaError {
    /// No driver library.
    #[error("no CUDA driver: libcuda.so.1 is not found; install the NVIDIA driver, or use --subject cpu")]
    NoDriver,
    /// A driver without a device.
    #[error("the CUDA driver finds no GPU; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use --subject cpu")]
    NoDevice,
    /// No run-time compiler.
    #[error(
        "no NVRTC: libnvrtc.so.13 is not found; install the CUDA 13 toolkit or `pip install nvidia-cuda-nvrtc==13.0.*` \
         and put its folder on LD_LIBRARY_PATH"
    )]
    NoNvrtc,
    /// A kernel that does not compile.
    #[error("kernel {name} does not compile for {arch}: {log}")]
    Compile {
        /// File of `engine/kernels`.
        name: &'static str,
        /// Target.
        arch: String,
        /// The compiler's words.
        log: String,
    },
    /// No cuBLAS, and it was requested.
    #[error(
        "no cuBLAS: libcublas.so.13 is not found; install the CUDA 13 toolkit or `pip install nvidia-cublas==13.*` and put \
         its folder on LD_LIBRARY_PATH, or leave --gemm at own"
    )]
    NoCublas,
    /// No NCCL, and several ranks were requested.
    #[error(
        "no NCCL: libnccl.so.2 is not found; `pip install nvidia-nccl-cu13` and put its folder on LD_LIBRARY_PATH, or use \
         --subject cpu"
    )]
    NoNccl,
    /// A model, a step or a device that the kernels were not made for: what stands against it, and the remedy.
    #[error("{0}")]
    Unsupported(String),
    /// A call that failed.
    #[error("{0}")]
    Failed(String),
}

/// Says of a call that failed what it was for.
pub(super) trait Doing<T> {
    /// `what` reads on from "in", e.g. `making a stream`.
    fn doing(self, what: &'static str) -> Result<T, CudaError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, what: &'static str) -> Result<T, CudaError> {
        self.map_err(|e| CudaError::Failed(format!("CUDA: {e:?} in {what}")))
    }
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Index for CUDA.
    pub ordinal: usize,
    /// Name, e.g. `NVIDIA H200`.
    pub name: String,
    /// Compute capability, e.g. (9, 0).
    pub capability: (i32, i32),
    /// Memory in MiB.
    #[serde(rename = "memory_mib")]
    pub memory: usize,
}

/// The compute capability of Hopper.
pub const HOPPER: (i32, i32) = (9, 0);

/// Lists the GPUs, with NVRTC known to be there.
///
/// # Errors
/// What is missing, named with its remedy.
pub fn devices() -> Result<Vec<Device>, CudaError> {
    // SAFETY: these only try to open the libraries.
    let (driver, compiler) = unsafe { (driver::sys::is_culib_present(), nvrtc::sys::is_culib_present()) };
    if !driver {
        return Err(CudaError::NoDriver);
    }
    let count = CudaContext::device_count().map_err(|_| CudaError::NoDevice)?;
    if count < 1 {
        return Err(CudaError::NoDevice);
    }
    if !compiler {
        return Err(CudaError::NoNvrtc);
    }
    (0..count as usize)
        .map(|ordinal| {
            let context = CudaContext::new(ordinal).doing("opening the device")?;
            Ok(Device {
                ordinal,
                name: context.name().doing("asking for the device's name")?,
                capability: context.compute_capability().doing("asking for the compute capability")?,
                memory: context.total_mem().doing("asking for the device's memory")? >> 20,
            })
        })
        .collect()
}

/// What the first GPU's memory gives: bytes read and written per second by a copy of 1 GiB within it, best of several.
///
/// # Errors
/// If CUDA fails.
pub fn bandwidth() -> Result<f64, CudaError> {
    const BYTES: usize = 1 << 30;
    let device = devices()?.swap_remove(0);
    let context = CudaContext::new(device.ordinal).doing("opening the device")?;
    let stream = context.new_stream().doing("making a stream")?;
    let take = || stream.alloc_zeros::<u8>(BYTES).doing("taking device memory");
    let (from, mut to) = (take()?, take()?);
    let mut best = f64::INFINITY;
    for _ in 0..8 {
        let copy = || stream.memcpy_dtod(&from, &mut to).doing("copying device memory");
        best = best.min(time(&context, &stream, copy)?);
    }
    Ok(2.0 * BYTES as f64 / best)
}

/// What the link from the first GPU to the host gives: bytes per second of a copy of 256 MiB to pinned memory, best of
/// several.
///
/// # Errors
/// If CUDA fails.
pub fn link() -> Result<f64, CudaError> {
    const BYTES: usize = 256 << 20;
    let device = devices()?.swap_remove(0);
    let context = CudaContext::new(device.ordinal).doing("opening the device")?;
    let stream = context.new_stream().doing("making a stream")?;
    let from = stream.alloc_zeros::<u8>(BYTES).doing("taking device memory")?;
    // SAFETY: written by the copies alone, and never read.
    let mut to = unsafe { context.alloc_pinned_with_flags::<u8>(BYTES, 0) }.doing("taking pinned memory")?;
    let mut best = f64::INFINITY;
    for _ in 0..4 {
        let copy = || stream.memcpy_dtoh(&from, &mut to).doing("copying to the host");
        best = best.min(time(&context, &stream, copy)?);
    }
    Ok(BYTES as f64 / best)
}

/// Seconds that `stream` takes for what `queue` gives it to do.
pub(super) fn time(
    context: &Arc<CudaContext>, stream: &CudaStream, queue: impl FnOnce() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let timed = Some(driver::sys::CUevent_flags::CU_EVENT_DEFAULT);
    let event = || context.new_event(timed).doing("making an event");
    let (start, end) = (event()?, event()?);
    start.record(stream).doing("recording an event")?;
    queue()?;
    end.record(stream).doing("recording an event")?;
    end.synchronize().doing("timing what was queued")?;
    Ok(f64::from(start.elapsed_ms(&end).doing("reading a time")?) / 1e3)
}

/// Bytes of the first GPU's memory that are free.
///
/// # Errors
/// If CUDA fails.
pub fn free_memory() -> Result<u64, CudaError> {
    let context = CudaContext::new(0).doing("opening the device")?;
    let (free, _) = context.mem_get_info().doing("asking for free memory")?;
    Ok(free as u64)
}
