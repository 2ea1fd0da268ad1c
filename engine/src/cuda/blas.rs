//! Linear layers through cuBLAS.
//!
//! To cuBLAS a GGUF weight, `m` rows of `n` contiguous elements, is a column-major
//! `n × m` matrix with leading dimension `n`, and so are the activations with
//! `T` columns. `y = W x` is therefore `OP_T` on the weight with `lda = n`,
//! `OP_N` on the activations with `ldb = n`, and gives `m × T` with `ldc = m`.

use super::CudaError;
use cudarc::cublas::{result, sys};
use cudarc::driver::CudaStream;

/// A matrix product as cuBLAS is told of it, column-major: `c = op(a) · op(b)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Whether `a` is transposed.
    pub transposed: bool,
    /// Rows of `c`.
    pub m: i32,
    /// Columns of `c`.
    pub n: i32,
    /// Length of the sums.
    pub k: i32,
    /// The weight and its leading dimension.
    pub a: (u64, i32),
    /// The activations and their leading dimension.
    pub b: (u64, i32),
    /// The result and its leading dimension.
    pub c: (u64, i32),
}

impl Product {
    /// `y [T, m] = x [T, n] · Wᵀ`, W `[m, n]`, all row-major.
    pub fn linear(w: u64, x: u64, y: u64, n: usize, m: usize, tokens: usize) -> Self {
        Self {
            transposed: true,
            m: m as i32,
            n: tokens as i32,
            k: n as i32,
            a: (w, n as i32),
            b: (x, n as i32),
            c: (y, m as i32),
        }
    }
}

/// A cuBLAS handle on a stream.
pub struct Blas {
    handle: sys::cublasHandle_t,
}

fn failed(what: &'static str) -> impl Fn(result::CublasError) -> CudaError {
    move |e| CudaError::Cublas(format!("{:?}", e.0), what)
}

impl Blas {
    /// Opens cuBLAS.
    ///
    /// # Errors
    /// If the library is missing or refuses.
    pub fn new(stream: &CudaStream) -> Result<Self, CudaError> {
        // SAFETY: only tries to open the library; without it cudarc would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoCublas);
        }
        let handle = result::create_handle().map_err(failed("opening cuBLAS"))?;
        let blas = Self { handle };
        // SAFETY: handle and stream are alive. Pedantic: f32 throughout, no tf32.
        unsafe {
            result::set_stream(handle, stream.cu_stream().cast()).map_err(failed("giving cuBLAS its stream"))?;
            sys::cublasSetMathMode(handle, sys::cublasMath_t::CUBLAS_PEDANTIC_MATH)
                .result()
                .map_err(failed("setting the math mode"))?;
        }
        Ok(blas)
    }

    /// Queues the product.
    ///
    /// # Errors
    /// If cuBLAS refuses it.
    ///
    /// # Safety
    /// The addresses must be good for the extents that the product names.
    pub unsafe fn multiply(&self, p: &Product) -> Result<(), CudaError> {
        let (one, zero) = (1f32, 0f32);
        let op = if p.transposed { sys::cublasOperation_t::CUBLAS_OP_T } else { sys::cublasOperation_t::CUBLAS_OP_N };
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            result::sgemm(
                self.handle,
                op,
                sys::cublasOperation_t::CUBLAS_OP_N,
                p.m,
                p.n,
                p.k,
                &raw const one,
                p.a.0 as *const f32,
                p.a.1,
                p.b.0 as *const f32,
                p.b.1,
                &raw const zero,
                p.c.0 as *mut f32,
                p.c.1,
            )
        }
        .map_err(failed("a matrix product"))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
