//! Products on a GPU: weights as ggml unpacks them, widened to f64 by a kernel of its own, and cuBLAS's `dgemm`.
//!
//! To cuBLAS weights of m rows of n are a column-major `n × m` matrix, and T rows of n a column-major `n × T` one: `y = x·Wᵀ`,
//! row by row `[T, m]`, is `OP_T` on the weights, `OP_N` on the rows, and `m` apart.

use anyhow::{Result, bail, ensure};
use cudarc::cublas::sys::{cublasMath_t, cublasOperation_t, cublasSetMathMode};
use cudarc::cublas::{self, CudaBlas, Gemm as _, GemmConfig};
use cudarc::driver::{
    self, CudaContext, CudaFunction, CudaSlice, CudaStream, CudaView, DevicePtr as _, LaunchConfig, PinnedHostSlice,
    PushKernelArg as _, result,
};
use cudarc::nvrtc::{self, Ptx};
use qdiff_engine::cuda::compile::{Source, cached, target};
use qdiff_engine::quant::WeightSource;
use rayon::prelude::*;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Weights that are widened at once: enough to fill a GPU together with other lanes.
const WIDENED: usize = 4 << 20;

/// Numbers of f64 that are copied at once.
const STAGED: usize = 1 << 20;

/// Most threads that use the device at once.
const LANES: usize = 16;

/// About how much device memory a lane takes: what it widens to, rows and their products, and what cuBLAS takes for itself.
const LANE: u64 = 8 * WIDENED as u64 + (64 << 20);

/// What a weight becomes in a product, as `widen.cu` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum As {
    Weight,
    Magnitude,
    Square,
}

/// The kernel.
pub(super) fn source() -> Source {
    Source { name: "widen", text: include_str!("widen.cu").to_owned(), kernels: vec!["widen".to_owned()] }
}

/// The first GPU, opened in a context of its own: what another one writes where it should not does not reach it.
pub(super) struct Device {
    pub(super) name: String,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    widen: CudaFunction,
    lanes: Mutex<Lanes>,
    returned: Condvar,
}

/// Lanes that nobody holds, and how many there are.
#[derive(Default)]
struct Lanes {
    free: Vec<Lane>,
    made: usize,
}

/// What a thread needs to have a product made.
struct Lane {
    stream: Arc<CudaStream>,
    blas: CudaBlas,
    widened: CudaSlice<f64>,
    /// Rows, and their products: they grow.
    rows: CudaSlice<f64>,
    products: CudaSlice<f64>,
    staged: PinnedHostSlice<f64>,
}

/// A lane that is given back.
struct Held<'a> {
    device: &'a Device,
    lane: Option<Lane>,
}

/// The weights of a layer on the device.
pub(super) struct Weights {
    slice: CudaSlice<f32>,
    extent: (usize, usize),
}

/// What is not there of what a GPU is used with, and the remedy; nothing is opened.
///
/// # Errors
/// If something is not.
pub(super) fn ready() -> Result<()> {
    // SAFETY: these only try to open the libraries; without them cudarc would panic.
    let (driver, blas, compiler) =
        unsafe { (driver::sys::is_culib_present(), cublas::sys::is_culib_present(), nvrtc::sys::is_culib_present()) };
    ensure!(driver, "no CUDA driver: libcuda.so.1 is not found; install the NVIDIA driver");
    let count = CudaContext::device_count().unwrap_or_default();
    ensure!(count > 0, "the CUDA driver finds no GPU; check `nvidia-smi` and CUDA_VISIBLE_DEVICES");
    let remedy = "install the CUDA 13 toolkit, or put on LD_LIBRARY_PATH the folder of what `pip install";
    ensure!(blas, "no cuBLAS: libcublas.so.13 is not found; {remedy} nvidia-cublas==13.*` brings");
    ensure!(compiler, "no NVRTC: libnvrtc.so.13 is not found; {remedy} nvidia-cuda-nvrtc==13.0.*` brings");
    Ok(())
}

/// Whether there is a GPU at all.
pub(super) fn present() -> bool {
    // SAFETY: only tries to open the library.
    let driver = unsafe { driver::sys::is_culib_present() };
    driver && CudaContext::device_count().is_ok_and(|count| count > 0)
}

impl Device {
    /// Opens the first GPU, which must have `room` bytes free besides what lanes take. In a thread of its own: opening leaves
    /// the context current, and llama.cpp on CUDA, which runs in this one, takes whichever is current for its own.
    ///
    /// # Errors
    /// What is missing, with its remedy.
    pub(super) fn open(room: u64) -> Result<Self> {
        ready()?;
        thread::scope(|scope| scope.spawn(|| Self::opened(room)).join()).unwrap_or_else(|e| resume_unwind(e))
    }

    fn opened(room: u64) -> Result<Self> {
        let context = CudaContext::new_non_primary(0, 0).map_err(|e| failed(e, "opening the device"))?;
        let free = context.mem_get_info().map_err(|e| failed(e, "asking for free memory"))?.0 as u64;
        let lanes = lanes() as u64 * LANE;
        if free < room + lanes {
            bail!("the GPU has {} MiB free, and judging may take {}", free >> 20, (room + lanes) >> 20);
        }
        // SAFETY: nothing is allocated yet, and whoever uses a lane waits for its stream before anybody else sees what it did.
        unsafe { context.disable_event_tracking() };
        let about = context.compute_capability().map_err(|e| failed(e, "asking for the compute capability"))?;
        let compiled = cached(&source(), &target(about))?;
        let module =
            context.load_module(Ptx::from_binary(compiled.cubin)).map_err(|e| failed(e, "loading a kernel"))?;
        let widen = module.load_function(&compiled.names[0]).map_err(|e| failed(e, "finding a kernel"))?;
        let name = context.name().map_err(|e| failed(e, "asking for the device's name"))?;
        let stream = context.new_stream().map_err(|e| failed(e, "making a stream"))?;
        Ok(Self { name, context, stream, widen, lanes: Mutex::default(), returned: Condvar::new() })
    }

    /// The weights `name` of `source`, unpacked in parallel and copied while others are unpacked.
    pub(super) fn upload(&self, source: &dyn WeightSource, name: &str) -> Result<Weights> {
        let (n, m) = source.extent(name);
        let at_once = 2 * STAGED / n;
        ensure!(at_once > 0, "{name} has rows of {n} weights, and the oracle copies {} at once", 2 * STAGED);
        // SAFETY: all of it is written below before it is read.
        let slice = unsafe { self.stream.alloc::<f32>(n * m) };
        let slice = slice.map_err(|e| failed(e, "taking device memory for weights"))?;
        // Other streams write it.
        self.stream.synchronize().map_err(|e| failed(e, "taking device memory for weights"))?;
        let base = slice.device_ptr(&self.stream).0;
        let firsts: Vec<usize> = (0..m).step_by(at_once).collect();
        firsts.into_par_iter().try_for_each(|first| {
            let mut lane = self.lane()?;
            let Lane { stream, staged, .. } = lane.get();
            let staged = staged.as_mut_slice().map_err(|e| failed(e, "waiting for a copy"))?;
            let rows = &mut bytemuck::cast_slice_mut::<f64, f32>(staged)[..at_once.min(m - first) * n];
            source.rows(name, first, rows);
            // SAFETY: within the slice, whose other parts others write; the rows stay until the copy is done.
            unsafe { result::memcpy_htod_async(base + 4 * (first * n) as u64, rows, stream.cu_stream()) }
                .and_then(|()| stream.synchronize())
                .map_err(|e| failed(e, "copying weights"))
        })?;
        Ok(Weights { slice, extent: (n, m) })
    }

    /// `[T, m]`: of every row of `x` `[T, n]` the sums of its products with the weights.
    pub(super) fn product(&self, weights: &Weights, as_what: As, x: &[f64]) -> Result<Vec<f64>> {
        let (n, m) = weights.extent;
        let (rows, outputs) = (x.len() / n, WIDENED / n);
        let mut lane = self.lane()?;
        let Lane { stream, blas, widened, rows: of_x, products: y, staged } = lane.get();
        for (has, needs) in [(&mut *of_x, x.len()), (&mut *y, rows * m)] {
            if has.len() < needs {
                // SAFETY: written before it is read.
                *has = unsafe { stream.alloc(needs) }.map_err(|e| failed(e, "taking device memory for rows"))?;
            }
        }
        for (part, first) in x.chunks(STAGED).zip((0..).step_by(STAGED)) {
            let staged = staged.as_mut_slice().map_err(|e| failed(e, "waiting for a copy"))?;
            staged[..part.len()].copy_from_slice(part);
            stream
                .memcpy_htod(&staged[..part.len()], &mut of_x.slice_mut(first..first + part.len()))
                .and_then(|()| stream.synchronize())
                .map_err(|e| failed(e, "copying rows"))?;
        }
        for first in (0..m).step_by(outputs) {
            let count = outputs.min(m - first);
            let from = weights.slice.slice(first * n..(first + count) * n);
            self.widened(stream, &from, as_what, widened)?;
            let config = GemmConfig {
                transa: cublasOperation_t::CUBLAS_OP_T,
                transb: cublasOperation_t::CUBLAS_OP_N,
                m: count as i32,
                n: rows as i32,
                k: n as i32,
                alpha: 1.0,
                lda: n as i32,
                ldb: n as i32,
                beta: 0.0,
                ldc: m as i32,
            };
            // SAFETY: the buffers hold `count` rows of n weights, T rows of n inputs, and T rows of m outputs; the call writes
            // `count` outputs of each row, from `first` on.
            unsafe { blas.gemm(config, widened, of_x, &mut y.slice_mut(first..)) }
                .map_err(|e| anyhow::anyhow!("cuBLAS: {:?} in a product", e.0))?;
        }
        let mut values = Vec::with_capacity(rows * m);
        while values.len() < rows * m {
            let part = values.len()..(values.len() + STAGED).min(rows * m);
            let staged = staged.as_mut_slice().map_err(|e| failed(e, "waiting for a copy"))?;
            let staged = &mut staged[..part.len()];
            stream
                .memcpy_dtoh(&y.slice(part), staged)
                .and_then(|()| stream.synchronize())
                .map_err(|e| failed(e, "copying a product"))?;
            values.extend_from_slice(staged);
        }
        Ok(values)
    }

    fn widened(
        &self, stream: &CudaStream, from: &CudaView<'_, f32>, as_what: As, to: &mut CudaSlice<f64>,
    ) -> Result<()> {
        let (count, as_what) = (from.len() as i64, as_what as i32);
        let config = LaunchConfig::for_num_elems(u32::try_from(from.len())?);
        let mut launch = stream.launch_builder(&self.widen);
        launch.arg(from).arg(to).arg(&count).arg(&as_what);
        // SAFETY: the parameters of `widen`; `to` has room for what a lane widens at once.
        unsafe { launch.launch(config) }.map_err(|e| failed(e, "starting a kernel"))?;
        Ok(())
    }

    /// A lane; waits where all are held. Whoever holds one waits for nobody else, and asks rayon for nothing, which might
    /// run here what waits for a lane.
    fn lane(&self) -> Result<Held<'_>> {
        self.context.bind_to_thread().map_err(|e| failed(e, "using the device"))?;
        let mut all = self.all();
        let lane = loop {
            if let Some(lane) = all.free.pop() {
                break lane;
            }
            if all.made < lanes() {
                all.made += 1;
                drop(all);
                match self.new_lane() {
                    Ok(lane) => break lane,
                    Err(e) => {
                        self.all().made -= 1;
                        self.returned.notify_one();
                        return Err(e);
                    }
                }
            }
            all = self.returned.wait(all).unwrap_or_else(PoisonError::into_inner);
        };
        Ok(Held { device: self, lane: Some(lane) })
    }

    fn new_lane(&self) -> Result<Lane> {
        let stream = self.context.new_stream().map_err(|e| failed(e, "making a stream"))?;
        let blas = CudaBlas::new(stream.clone()).map_err(|e| anyhow::anyhow!("cuBLAS: {:?} in opening it", e.0))?;
        // SAFETY: a live handle. Pedantic: f64 is f64 throughout, not put together of narrower numbers.
        unsafe { cublasSetMathMode(*blas.handle(), cublasMath_t::CUBLAS_PEDANTIC_MATH) }
            .result()
            .map_err(|e| anyhow::anyhow!("cuBLAS: {:?} in setting the math mode", e.0))?;
        // SAFETY: what is taken here is written before it is read.
        let take = |count| unsafe { stream.alloc(count) }.map_err(|e| failed(e, "taking device memory"));
        let (widened, rows, products) = (take(WIDENED)?, take(1)?, take(1)?);
        // SAFETY: as above.
        let staged = unsafe { self.context.alloc_pinned_with_flags(STAGED, 0) };
        let staged = staged.map_err(|e| failed(e, "taking memory for copies"))?;
        Ok(Lane { stream, blas, widened, rows, products, staged })
    }

    fn all(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lanes() -> usize {
    rayon::current_num_threads().min(LANES)
}

impl Held<'_> {
    fn get(&mut self) -> &mut Lane {
        self.lane.as_mut().expect("it is given back when it is dropped")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.device.all().free.extend(self.lane.take());
        self.device.returned.notify_one();
    }
}

fn failed(error: driver::DriverError, doing: &str) -> anyhow::Error {
    anyhow::anyhow!("CUDA: {:?} in {doing}", error.0)
}
