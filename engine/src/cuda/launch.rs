//! A kernel launch as data: built from the graph, looked at or changed, then run.

use super::CudaError;
#[cfg(any(test, feature = "faults"))]
use super::faults::Bug;
use super::kernel::Kernel;
use super::kernels::Params;
use cudarc::driver::{CudaFunction, CudaStream, DriverError, sys};
use std::ffi::c_void;
use std::fmt::Display;

/// Threads of a block that makes an element each.
const FLAT_THREADS: u32 = 256;

/// A launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Parameters, which say which file's kernel it is.
    pub params: Params,
    /// Arguments of the kernel's template.
    arguments: String,
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// A bug that is written into the kernel.
    #[cfg(any(test, feature = "faults"))]
    pub bug: Option<&'static Bug>,
}

impl Call {
    /// A launch over a grid of blocks of `threads`.
    pub fn new(params: impl Into<Params>, grid: (u32, u32, u32), threads: u32) -> Self {
        Self {
            params: params.into(),
            arguments: String::new(),
            grid,
            block: (threads, 1, 1),
            shared: 0,
            #[cfg(any(test, feature = "faults"))]
            bug: None,
        }
    }

    /// A launch of one thread per element.
    pub fn flat(params: impl Into<Params>, elements: usize) -> Self {
        let blocks = (elements as u32).div_ceil(FLAT_THREADS).max(1);
        Self::new(params, (blocks, 1, 1), FLAT_THREADS)
    }

    /// Chooses the template's kernel for these formats, types and numbers.
    #[must_use]
    pub fn of(mut self, arguments: &[&dyn Display]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        self
    }

    /// With dynamic shared memory.
    #[must_use]
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    /// The kernel that it launches.
    pub fn kernel(&self) -> Kernel {
        Kernel {
            #[cfg(any(test, feature = "faults"))]
            bug: self.bug,
            ..Kernel::new(self.params.file(), self.arguments.clone())
        }
    }

    fn failed(&self, error: DriverError) -> CudaError {
        CudaError::Failed(format!("CUDA: {error:?} in launching {}", self.kernel()))
    }

    /// Gives the parameters to `node`, a launch of the same kernel in a captured graph, or of the same with taps or
    /// without, for the launches of the graph to come.
    ///
    /// # Safety
    /// As [`Self::launch`]; and the node must belong to `graph`.
    pub unsafe fn update(
        &self, function: &CudaFunction, graph: sys::CUgraphExec, node: sys::CUgraphNode,
    ) -> Result<(), CudaError> {
        let mut params: *mut c_void = self.params.address().cast_mut();
        let launch = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.cu_function(),
            gridDimX: self.grid.0,
            gridDimY: self.grid.1,
            gridDimZ: self.grid.2,
            blockDimX: self.block.0,
            blockDimY: self.block.1,
            blockDimZ: self.block.2,
            sharedMemBytes: self.shared,
            kernelParams: &raw mut params,
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the caller vouches for parameters and node; CUDA only reads the parameters, before it returns.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(graph, node, &raw const launch) }
            .result()
            .map_err(|e| self.failed(e))
    }

    /// Runs it. `early` lets it begin while the kernel before it ends; it must then wait for that kernel itself (see
    /// `decode.cuh`).
    ///
    /// # Safety
    /// The function must be that of [`Self::kernel`], and every address among the parameters must be good for what the
    /// kernel reads and writes.
    pub unsafe fn launch(&self, function: &CudaFunction, stream: &CudaStream, early: bool) -> Result<(), CudaError> {
        let mut params: *mut c_void = self.params.address().cast_mut();
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: self.grid.0,
            gridDimY: self.grid.1,
            gridDimZ: self.grid.2,
            blockDimX: self.block.0,
            blockDimY: self.block.1,
            blockDimZ: self.block.2,
            sharedMemBytes: self.shared,
            hStream: stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(early),
        };
        // SAFETY: the caller vouches for the parameters, which CUDA only reads; they and the configuration live until
        // the call returns.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function.cu_function(), &raw mut params, std::ptr::null_mut())
        }
        .result()
        .map_err(|e| self.failed(e))
    }
}
