//! Linear layers through cuBLAS.
//!
//! To cuBLAS a GGUF weight, `m` rows of `n` contiguous elements, is a column-major `n × m` matrix with leading
//! dimension `n`, and so are the activations with `T` columns. `y = W x` is therefore `OP_T` on the weight with `lda =
//! n`, `OP_N` on the activations with `ldb = n`, and gives `m × T` with `ldc = m`.

use super::CudaError;
use super::device::Doing;
use super::layouts::Ptr;
use cudarc::cublas::{result, sys};
use cudarc::driver::CudaStream;

/// `y [T, m] = x [T, n] · Wᵀ`, W `[m, n]`, all row-major and f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// The weight.
    pub w: Ptr,
    /// The activations.
    pub x: Ptr,
    /// The result.
    pub y: Ptr,
    /// Length of the sums.
    pub n: usize,
    /// Outputs.
    pub m: usize,
    /// Tokens, T.
    pub tokens: usize,
}

/// A cuBLAS handle on a stream.
pub struct Blas {
    handle: sys::cublasHandle_t,
}

impl<T> Doing<T> for Result<T, result::CublasError> {
    fn doing(self, what: &'static str) -> Result<T, CudaError> {
        self.map_err(|e| CudaError::Failed(format!("cuBLAS: {:?} in {what}", e.0)))
    }
}

impl Blas {
    /// Opens cuBLAS.
    pub fn new(stream: &CudaStream) -> Result<Self, CudaError> {
        // SAFETY: only tries to open the library; without it cudarc would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoCublas);
        }
        let handle = result::create_handle().doing("opening cuBLAS")?;
        let blas = Self { handle };
        // SAFETY: handle and stream are alive. Pedantic: f32 throughout, no tf32.
        unsafe {
            result::set_stream(handle, stream.cu_stream().cast()).doing("giving cuBLAS its stream")?;
            sys::cublasSetMathMode(handle, sys::cublasMath_t::CUBLAS_PEDANTIC_MATH)
                .result()
                .doing("setting the math mode")?;
        }
        Ok(blas)
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The addresses must be good for the extents that the product names.
    pub unsafe fn multiply(&self, p: &Product) -> Result<(), CudaError> {
        let &Product { w, x, y, n, m, tokens } = p;
        let (n, m, tokens) = (n as i32, m as i32, tokens as i32);
        let (transposed, plain) = (sys::cublasOperation_t::CUBLAS_OP_T, sys::cublasOperation_t::CUBLAS_OP_N);
        let (one, zero): (*const f32, *const f32) = (&1.0, &0.0);
        let (w, x, y) = (w as *const f32, x as *const f32, y as *mut f32);
        // SAFETY: the caller vouches for the addresses.
        unsafe { result::sgemm(self.handle, transposed, plain, m, tokens, n, one, w, n, x, n, zero, y, m) }
            .doing("a matrix product")
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
