//! The CUDA engine: always compiled in, loaded at run time.
//!
//! `device` finds out what there is and says what is missing; `kernels`
//! compiles the `.cu` files of `engine/kernels` with NVRTC; `memory` takes one
//! arena and brings the weights, taken apart by `weights`; `calls` makes the
//! launches of single nodes, `fast` those of the fused path; `engine` runs them
//! and `readback` brings taps to the host.

mod arena;
mod blas;
mod calls;
mod decoder;
mod device;
mod engine;
mod fast;
#[cfg(feature = "faults")]
pub mod faults;
pub mod kernels;
mod launch;
mod memory;
mod options;
mod readback;
mod weights;

pub use device::{CudaError, Device, bandwidth, devices, free_memory};
pub use engine::CudaEngine;
pub use options::{Gemm, KvType, Options, Path};
