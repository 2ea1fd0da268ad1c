//! Kernels loaded on a card, and how many blocks of each it holds at once.

use super::CudaError;
use super::compile::{Source, cached};
use super::device::{Doing as _, HOPPER};
use super::kernel::Kernel;
use super::launch::Call;
use cudarc::driver::{CudaContext, CudaFunction, sys};
use cudarc::nvrtc::Ptx;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The driver that can say how large a kernel's parameters are, as CUDA counts versions.
const FIRST_DRIVER: i32 = 12_040;

/// The card's multiprocessors, and the kernels loaded on it.
#[derive(Debug)]
pub struct Functions {
    /// Multiprocessors.
    pub processors: u32,
    /// Threads that a multiprocessor holds at most.
    threads: u32,
    /// Bytes of shared memory that a block may have.
    pub shared: u32,
    /// Whether blocks may be launched in clusters.
    pub clusters: bool,
    /// Whether four warps multiply together: on Hopper alone.
    pub warpgroups: bool,
    loaded: HashMap<Kernel, CudaFunction>,
    /// Blocks that a multiprocessor holds of a loaded kernel, or clusters that the card does, by threads and shared memory
    /// of a block: asked for once.
    held: Mutex<HashMap<(Kernel, u32, u32), u32>>,
}

impl Functions {
    /// None yet, for the card of `context`.
    ///
    /// # Errors
    /// If CUDA does not say what the card has, or the driver is too old.
    pub fn new(context: &CudaContext) -> Result<Self, CudaError> {
        use sys::CUdevice_attribute as About;
        let mut driver = 0;
        // SAFETY: room for one number.
        unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result().doing("asking for the driver's version")?;
        if driver < FIRST_DRIVER {
            let (major, minor) = (driver / 1000, driver % 1000 / 10);
            return Err(CudaError::Unsupported(format!(
                "the CUDA driver is for CUDA {major}.{minor}, and qdiff needs that of CUDA 13; update the NVIDIA driver"
            )));
        }
        let about = |what| context.attribute(what).doing("asking what the device has");
        let clusters = about(About::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? != 0;
        let bare = Self::bare(
            about(About::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            about(About::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)? as u32,
            about(About::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        );
        let capability = context.compute_capability().doing("asking what the device has")?;
        Ok(Self { clusters, warpgroups: capability == HOPPER, ..bare })
    }

    /// None, for a card with this many multiprocessors that hold `threads` threads each, blocks of `shared` bytes of
    /// shared memory, and clusters.
    pub fn bare(processors: u32, threads: u32, shared: u32) -> Self {
        Self {
            processors,
            threads,
            shared,
            clusters: true,
            warpgroups: true,
            loaded: HashMap::new(),
            held: Mutex::default(),
        }
    }

    /// Blocks of a launch that the card holds at once. For a kernel that is not loaded, as many as its threads alone
    /// would allow, which is never fewer.
    pub fn resident(&self, call: &Call) -> u32 {
        let threads = call.block.0 * call.block.1 * call.block.2;
        let kernel = call.kernel();
        // A grid of any size is right, this one only fills the card.
        let Some(function) = self.loaded.get(&kernel) else {
            return self.processors * (self.threads / threads).max(1);
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = held.entry((kernel, threads, call.shared)).or_insert_with(|| {
            let asked = function.occupancy_max_active_blocks_per_multiprocessor(threads, call.shared as usize, None);
            asked.unwrap_or(self.threads / threads)
        });
        self.processors * (*blocks).max(1)
    }

    /// Clusters of `cluster` blocks that the card holds at once of a launch of one kernel that is made of them: fewer than
    /// its multiprocessors would allow, which are in groups. For a kernel that is not loaded as many as these.
    pub fn resident_clusters(&self, call: &Call, cluster: u32) -> u32 {
        let kernel = call.kernel();
        let Some(function) = self.loaded.get(&kernel) else {
            return self.processors / cluster;
        };
        let threads = call.block.0 * call.block.1 * call.block.2;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        *held.entry((kernel, threads, call.shared)).or_insert_with(|| {
            let config = sys::CUlaunchConfig {
                gridDimX: call.grid.0,
                gridDimY: call.grid.1,
                gridDimZ: call.grid.2,
                blockDimX: call.block.0,
                blockDimY: call.block.1,
                blockDimZ: call.block.2,
                sharedMemBytes: call.shared,
                hStream: std::ptr::null_mut(),
                attrs: std::ptr::null_mut(),
                numAttrs: 0,
            };
            let mut clusters = 0;
            // SAFETY: a live function, which says its clusters' size itself, and room for one number.
            let asked = unsafe {
                sys::cuOccupancyMaxActiveClusters(&raw mut clusters, function.cu_function(), &raw const config)
            };
            asked.result().map_or(self.processors / cluster, |()| clusters as u32)
        })
    }

    /// Compiles and loads the kernels of `calls` that are not there yet, and allows each the most shared memory that
    /// any of them asks for.
    ///
    /// # Errors
    /// If a kernel does not compile or load, takes other parameters than are declared, or wants more shared memory
    /// than the card has.
    pub fn load(&mut self, context: &Arc<CudaContext>, arch: &str, calls: &[Call]) -> Result<(), CudaError> {
        let mut shared: HashMap<Kernel, u32> = HashMap::new();
        for call in calls {
            let most = shared.entry(call.kernel()).or_default();
            *most = call.shared.max(*most);
        }
        let mut missing: Vec<&Kernel> = shared.keys().filter(|k| !self.loaded.contains_key(k)).collect();
        // In an order of their own, so that the cache finds them again.
        missing.sort_by_cached_key(|kernel| (kernel.program(), kernel.arguments.clone()));
        let of_one_text = missing.chunk_by(|a, b| a.program() == b.program());
        let sources: Vec<(Source, &[&Kernel])> =
            of_one_text.map(|kernels| (Source::new(kernels[0], kernels.iter().copied()), kernels)).collect();
        let compiled = sources.par_iter().map(|(source, _)| cached(source, arch)).collect::<Result<Vec<_>, _>>()?;
        for ((_, kernels), compiled) in sources.iter().zip(compiled) {
            let module = context.load_module(Ptx::from_binary(compiled.cubin)).doing("loading a kernel")?;
            for (&kernel, name) in kernels.iter().zip(&compiled.names) {
                let function = module.load_function(name).doing("finding a kernel")?;
                check_params(&function, kernel)?;
                self.loaded.insert(kernel.clone(), function);
            }
        }
        for (kernel, bytes) in shared {
            if bytes > self.shared {
                return Err(CudaError::Unsupported(format!(
                    "the kernel {kernel} needs {} KiB of shared memory a block for this model, and this GPU has {}; use \
                     --subject cuda",
                    bytes.div_ceil(1024),
                    self.shared / 1024
                )));
            }
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let function = self.get(&kernel);
            let has = function.get_attribute(attribute).doing("asking for a kernel's shared memory")?;
            if bytes as i32 > has {
                function.set_attribute(attribute, bytes as i32).doing("asking for shared memory")?;
            }
        }
        // Answers from before the kernel was allowed as much.
        self.held = Mutex::default();
        Ok(())
    }

    /// A kernel that was loaded.
    ///
    /// # Panics
    /// If it was not: all that a schedule may launch is loaded before its first launch.
    pub fn get(&self, kernel: &Kernel) -> &CudaFunction {
        self.loaded.get(kernel).unwrap_or_else(|| panic!("{kernel} was not loaded"))
    }
}

/// That the parameters of the compiled kernel have the size that is declared. (Asking for a second one would tell that
/// there is none by an error, which memory checkers count.)
fn check_params(function: &CudaFunction, kernel: &Kernel) -> Result<(), CudaError> {
    let (mut offset, mut compiled) = (0, 0);
    // SAFETY: a live function, and room for two numbers.
    unsafe { sys::cuFuncGetParamInfo(function.cu_function(), 0, &raw mut offset, &raw mut compiled) }
        .result()
        .doing("asking for a kernel's parameters")?;
    let (_, declared, _) = kernel.file.params();
    if compiled != declared {
        return Err(CudaError::Failed(format!(
            "kernel {kernel} takes parameters of {compiled} bytes, and is given {declared}: a bug in qdiff"
        )));
    }
    Ok(())
}
