//! llama.cpp, wrapped as narrowly as qdiff needs it: a model, a context with
//! taps, tokens, and ggml's own view of a GGUF file.
//!
//! This folder is the only place of the harness that calls C.

pub mod gguf;
pub mod sampler;
pub mod session;
mod taps;
pub mod vocab;

use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static VERBOSE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn log(_: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if VERBOSE.load(Ordering::Relaxed) && !text.is_null() {
        // SAFETY: llama.cpp passes a NUL-terminated string.
        let text = unsafe { CStr::from_ptr(text) };
        eprint!("{}", text.to_string_lossy());
    }
}

/// Starts the library once; its chatter goes to stderr only if `verbose`.
pub fn start(verbose: bool) {
    static START: Once = Once::new();
    VERBOSE.store(verbose, Ordering::Relaxed);
    START.call_once(|| {
        // SAFETY: called once, before any other call; `log` lives for ever.
        unsafe {
            sys::llama_log_set(Some(log), std::ptr::null_mut());
            sys::llama_backend_init();
        }
    });
}

/// A loaded model.
pub struct Model {
    pub(crate) raw: *mut sys::llama_model,
}

impl Model {
    /// Loads `path` for the CPU, weights mapped and not repacked.
    ///
    /// # Errors
    /// If llama.cpp refuses the file.
    pub fn load(path: &Path) -> Result<Self> {
        Self::open(path, false)
    }

    /// Loads only the vocabulary of `path`: for tokens, without weights.
    ///
    /// # Errors
    /// If llama.cpp refuses the file.
    pub fn load_vocabulary(path: &Path) -> Result<Self> {
        Self::open(path, true)
    }

    fn open(path: &Path, vocab_only: bool) -> Result<Self> {
        start(VERBOSE.load(Ordering::Relaxed));
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: plain C calls on a NUL-terminated path; the result is checked.
        let raw = unsafe {
            let mut params = sys::llama_model_default_params();
            params.n_gpu_layers = 0;
            params.use_extra_bufts = false;
            params.vocab_only = vocab_only;
            sys::llama_model_load_from_file(name.as_ptr(), params)
        };
        if raw.is_null() {
            bail!(
                "llama.cpp cannot load {}; run again with -v to see why",
                path.display()
            );
        }
        Ok(Self { raw })
    }

    /// A metadata value as llama.cpp prints it.
    pub fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut buffer = vec![0u8; 1 << 16];
        // SAFETY: the buffer's length is passed along.
        let n = unsafe {
            sys::llama_model_meta_val_str(
                self.raw,
                key.as_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            )
        };
        let n = usize::try_from(n).ok()?;
        buffer.truncate(n.min((1 << 16) - 1));
        Some(String::from_utf8_lossy(&buffer).into_owned())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: loaded by us, freed once.
        unsafe { sys::llama_model_free(self.raw) };
    }
}

// SAFETY: a loaded model is read-only; llama.cpp documents sharing it between
// contexts on several threads.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}
