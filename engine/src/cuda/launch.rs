//! A kernel launch as data: built from the graph, looked at or changed, then run.

use super::CudaError;
use bytemuck::Pod;
use cudarc::driver::{CudaFunction, CudaStream, sys};
use std::ffi::c_void;

/// Parameters of a kernel, each in the bytes the kernel reads.
#[derive(Clone, Debug, Default)]
pub struct Args {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Args {
    /// With one more parameter.
    #[must_use]
    pub fn with<T: Pod>(mut self, value: T) -> Self {
        self.starts.push(self.words.len());
        let words = size_of::<T>().div_ceil(8).max(1);
        self.words.resize(self.words.len() + words, 0);
        self.set(self.starts.len() - 1, value);
        self
    }

    /// Where each parameter is, as CUDA wants to be told.
    fn pointers(&self) -> Vec<*mut c_void> {
        self.starts.iter().map(|&at| std::ptr::from_ref(&self.words[at]).cast_mut().cast()).collect()
    }

    /// Replaces parameter `i` by another of the same type.
    pub fn set<T: Pod>(&mut self, i: usize, value: T) {
        let start = self.starts[i];
        let bytes = bytemuck::bytes_of(&value);
        bytemuck::cast_slice_mut::<u64, u8>(&mut self.words[start..])[..bytes.len()].copy_from_slice(bytes);
    }

    #[cfg(any(test, feature = "faults"))]
    /// Parameter `i`, read as what it was given as.
    pub fn get<T: Pod>(&self, i: usize) -> T {
        let bytes = bytemuck::cast_slice::<u64, u8>(&self.words[self.starts[i]..]);
        bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()])
    }
}

/// A launch.
#[derive(Clone, Debug)]
pub struct Call {
    /// Name of the kernel.
    pub kernel: String,
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Parameters.
    pub args: Args,
}

impl Call {
    /// A launch over a grid of blocks of `threads`.
    pub fn new(kernel: impl Into<String>, grid: (u32, u32, u32), threads: u32, args: Args) -> Self {
        Self { kernel: kernel.into(), grid, block: (threads, 1, 1), shared: 0, args }
    }

    /// A launch of one thread per element.
    pub fn flat(kernel: impl Into<String>, elements: usize, args: Args) -> Self {
        let blocks = (elements as u32).div_ceil(256).max(1);
        Self::new(kernel, (blocks, 1, 1), 256, args)
    }

    /// With dynamic shared memory.
    #[must_use]
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }

    /// Gives the parameters to `node`, a launch of the same kernel in a captured
    /// graph, for the launches of the graph to come.
    ///
    /// # Errors
    /// If CUDA refuses them.
    ///
    /// # Safety
    /// As [`Self::launch`]; and the node must belong to `graph`.
    pub unsafe fn update(
        &self,
        function: &CudaFunction,
        graph: sys::CUgraphExec,
        node: sys::CUgraphNode,
    ) -> Result<(), CudaError> {
        let mut pointers = self.args.pointers();
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.cu_function(),
            gridDimX: self.grid.0,
            gridDimY: self.grid.1,
            gridDimZ: self.grid.2,
            blockDimX: self.block.0,
            blockDimY: self.block.1,
            blockDimZ: self.block.2,
            sharedMemBytes: self.shared,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the caller vouches for parameters and node; the pointers live
        // until the call returns.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(graph, node, &raw const params) }
            .result()
            .map_err(|e| CudaError::Launch(e, self.kernel.clone()))
    }

    /// Runs it. `early` lets it begin while the kernel before it ends; it must
    /// then wait for that kernel itself (see `decode.cuh`).
    ///
    /// # Errors
    /// If CUDA refuses the launch.
    ///
    /// # Safety
    /// The parameters must be those of the kernel, in type and order, and every
    /// address among them must be good for what the kernel reads and writes.
    pub unsafe fn launch(&self, function: &CudaFunction, stream: &CudaStream, early: bool) -> Result<(), CudaError> {
        let mut pointers = self.args.pointers();
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
        // SAFETY: the caller vouches for the parameters; the configuration and
        // the pointers to them live until the call returns.
        unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                function.cu_function(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(|e| CudaError::Launch(e, self.kernel.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::Args;

    #[test]
    fn parameters_keep_their_bytes() {
        let mut args = Args::default().with(7i32).with([1u64, 2, 3]).with(0.5f32);
        assert_eq!(args.get::<i32>(0), 7);
        assert_eq!(args.get::<[u64; 3]>(1), [1, 2, 3]);
        args.set(0, -1i32);
        args.set(1, [4u64, 5, 6]);
        assert_eq!(args.get::<i32>(0), -1);
        assert_eq!(args.get::<[u64; 3]>(1), [4, 5, 6]);
        assert_eq!(args.get::<f32>(2), 0.5);
    }
}
