//! The CUDA engine: always compiled in, loaded at run time.
//!
//! `device` finds out what there is and says what is missing; `kernels`
//! compiles the `.cu` files of `engine/kernels` with NVRTC; `engine` runs the
//! stages, each materialised and tappable.

mod device;
mod engine;
pub mod kernels;

pub use device::{CudaError, Device, devices};
pub use engine::CudaEngine;
