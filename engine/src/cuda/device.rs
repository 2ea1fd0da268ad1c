//! What CUDA there is on this machine.

use cudarc::driver::{CudaContext, DriverError};
use cudarc::{driver, nvrtc};
use serde::Serialize;
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
    /// A driver from before what is asked of it.
    #[error("the CUDA driver is for CUDA {major}.{minor}, and qdiff needs that of CUDA 13; update the NVIDIA driver")]
    OldDriver {
        /// Version of CUDA.
        major: i32,
        /// Its second number.
        minor: i32,
    },
    /// A kernel whose compiled parameters are not those that launches give.
    #[error("kernel {kernel} takes parameters of {compiled} bytes, and is given {declared}: a bug in qdiff")]
    Params {
        /// The kernel.
        kernel: String,
        /// Bytes in the machine code.
        compiled: usize,
        /// Bytes of the struct in Rust.
        declared: usize,
    },
    /// A token that the model does not know.
    #[error("token {token} is not in the model's vocabulary of {vocabulary} tokens")]
    Token {
        /// Id.
        token: u32,
        /// Number of ids.
        vocabulary: usize,
    },
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
    /// More memory than the device has free.
    #[error(
        "the model and its buffers need {needed} MiB of device memory and {free} MiB are free; shorten the prompt, lower \
         -n or --ubatch, take --kv-type f16, or free the device"
    )]
    Memory {
        /// MiB needed.
        needed: usize,
        /// MiB free.
        free: usize,
    },
    /// No cuBLAS, and it was asked for.
    #[error(
        "no cuBLAS: libcublas.so.13 is not found; install the CUDA 13 toolkit or `pip install nvidia-cublas==13.*` and put \
         its folder on LD_LIBRARY_PATH, or leave --gemm at own"
    )]
    NoCublas,
    /// A cuBLAS call that failed.
    #[error("cuBLAS: {0} in {1}")]
    Cublas(String, &'static str),
    /// A model that the kernels were not made for.
    #[error("{0}")]
    Unsupported(String),
    /// A kernel that could not be launched.
    #[error("CUDA: {0:?} in launching {1}")]
    Launch(DriverError, String),
    /// A call that failed.
    #[error("CUDA: {0:?} in {1}")]
    Driver(DriverError, &'static str),
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
            let failed = |what| move |e| CudaError::Driver(e, what);
            let context = CudaContext::new(ordinal).map_err(failed("opening the device"))?;
            Ok(Device {
                ordinal,
                name: context.name().map_err(failed("asking for the device's name"))?,
                capability: context.compute_capability().map_err(failed("asking for the compute capability"))?,
                memory: context.total_mem().map_err(failed("asking for the device's memory"))? >> 20,
            })
        })
        .collect()
}

/// What the first GPU's memory gives: bytes read and written per second by a
/// copy of 1 GiB within it, best of several.
///
/// # Errors
/// If CUDA fails.
pub fn bandwidth() -> Result<f64, CudaError> {
    const BYTES: usize = 1 << 30;
    let failed = |what| move |e| CudaError::Driver(e, what);
    let device = devices()?.swap_remove(0);
    let context = CudaContext::new(device.ordinal).map_err(failed("opening the device"))?;
    let stream = context.new_stream().map_err(failed("making a stream"))?;
    let take = || stream.alloc_zeros::<u8>(BYTES).map_err(failed("taking device memory"));
    let (from, mut to) = (take()?, take()?);
    let timed = Some(driver::sys::CUevent_flags::CU_EVENT_DEFAULT);
    let event = || context.new_event(timed).map_err(failed("making an event"));
    let (start, end) = (event()?, event()?);
    let mut best = f64::INFINITY;
    for _ in 0..8 {
        start.record(&stream).map_err(failed("recording an event"))?;
        stream.memcpy_dtod(&from, &mut to).map_err(failed("copying device memory"))?;
        end.record(&stream).map_err(failed("recording an event"))?;
        end.synchronize().map_err(failed("copying device memory"))?;
        let ms = start.elapsed_ms(&end).map_err(failed("reading a time"))?;
        best = best.min(f64::from(ms) / 1e3);
    }
    Ok(2.0 * BYTES as f64 / best)
}

/// Bytes of the first GPU's memory that are free.
///
/// # Errors
/// If CUDA fails.
pub fn free_memory() -> Result<u64, CudaError> {
    let failed = |what| move |e| CudaError::Driver(e, what);
    let context = CudaContext::new(0).map_err(failed("opening the device"))?;
    let (free, _) = context.mem_get_info().map_err(failed("asking for free memory"))?;
    Ok(free as u64)
}
