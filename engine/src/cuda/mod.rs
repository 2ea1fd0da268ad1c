//! The CUDA engine: always compiled in, loaded at run time.
//!
//! `device` finds the devices and reports missing parts; `kernels` declares the `.cu` files of `engine/kernels` with
//! their parameters, `compile` has NVRTC compile them, `functions` loads them; `memory` lays out one `arena` and brings
//! the weights, taken apart by `weights`; `calls` makes the launches of single nodes (`defined` those of ops that are known by their definitions), of the rows of several sequences with what `batch` brings; `fast` those of the fused path, `several` its attention where rows are of several sequences,
//! `schedule` puts them in order; `engine` runs them, decode steps of the fast path as `replay` captures them; taps of
//! these go to `slots`, and `readback` brings taps to the host, where `mirror` has the caches; `timing` measures where
//! the time of a step goes; `nccl` is what ranks on several cards give each other.

mod adapted;
mod arena;
mod attend;
mod attend_several;
mod batch;
mod blas;
mod calls;
mod captured;
pub mod compile;
mod decoder;
mod defined;
mod device;
mod engine;
mod fast;
#[cfg(any(test, feature = "faults"))]
pub mod faults;
mod functions;
mod hybrid;
mod in_step;
pub mod kernel;
pub mod kernels;
mod known;
mod launch;
pub mod layouts;
mod load;
mod memory;
mod mirror;
mod mixer;
mod mixture;
mod nccl;
pub mod operand;
mod options;
pub mod prefill;
mod rank_graph;
mod rank_step;
mod readback;
mod replay;
mod schedule;
mod several;
mod slots;
mod span;
mod states;
#[cfg(test)]
mod testing;
pub mod tiles;
mod timing;
mod walk;
mod weights;
pub mod wide;

pub use device::{CudaError, Device, bandwidth, devices, free_memory, link};
pub use engine::{CudaEngine, unsupported};
pub use options::{Circumstances, Gemm, Options, Path};
pub use timing::{Timed, TimedStep, Work};
pub use weights::{kept_as, read_by_kernels};
