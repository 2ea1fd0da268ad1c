//! The CUDA engine: always compiled in, loaded at run time.
//!
//! `device` finds out what there is and says what is missing; `kernels` declares the `.cu` files of `engine/kernels` with
//! their parameters, `compile` has NVRTC compile them, `functions` loads them; `memory` lays out one `arena` and brings
//! the weights, taken apart by `weights`; `calls` makes the launches of single nodes, `fast` those of the fused path,
//! `schedule` puts them in order; `engine` runs them and `readback` brings taps to the host.

mod arena;
mod blas;
mod calls;
pub mod compile;
mod decoder;
mod device;
mod engine;
mod fast;
#[cfg(any(test, feature = "faults"))]
pub mod faults;
mod functions;
pub mod kernels;
mod launch;
mod load;
mod memory;
mod options;
pub mod prefill;
mod readback;
mod schedule;
#[cfg(test)]
mod testing;
mod tiles;
mod weights;

pub use device::{CudaError, Device, bandwidth, devices, free_memory};
pub use engine::CudaEngine;
pub use options::{Circumstances, Gemm, KvType, Options, Path};
