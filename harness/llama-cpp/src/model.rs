//! The library, and a model that it has loaded.

use crate::said::{complaint, gives_up, tell, why};
use crate::variant;
use anyhow::{Result, bail};
use llama_cpp_sys_2 as sys;
use qdiff_capture::arithmetic::LinearRule;
use qdiff_capture::supervisor;
use qdiff_engine::quant::{ActivationFormat, GgmlType};
use qdiff_llama::llama::Load;
use std::ffi::CString;
use std::path::Path;
use std::sync::OnceLock;

/// Starts the library once. Gives the variant of ggml that it runs, if it is not the program's own.
pub(crate) fn start() -> Option<&'static str> {
    static VARIANT: OnceLock<Option<&'static str>> = OnceLock::new();
    *VARIANT.get_or_init(|| {
        // SAFETY: called once, before any other call; `tell` lives for ever.
        unsafe {
            sys::llama_log_set(Some(tell), std::ptr::null_mut());
            sys::ggml_set_abort_callback(Some(gives_up));
            sys::llama_backend_init();
        }
        variant::load()
    })
}

/// What llama.cpp's CPU turns activations into, per weight format: asked of the very library that runs.
pub(crate) fn dot_types() -> Vec<LinearRule> {
    let format = |ty: sys::ggml_type| match ty {
        sys::GGML_TYPE_F16 => Some(ActivationFormat::F16),
        sys::GGML_TYPE_BF16 => Some(ActivationFormat::Bf16),
        sys::GGML_TYPE_Q8_0 => Some(ActivationFormat::Q8_0),
        sys::GGML_TYPE_Q8_1 => Some(ActivationFormat::Q8_1),
        sys::GGML_TYPE_Q8_K => Some(ActivationFormat::Q8K),
        _ => None,
    };
    GgmlType::ALL_SUPPORTED
        .iter()
        .filter_map(|ty| {
            // SAFETY: the table is static and covers every type id.
            let dot = unsafe { (*sys::ggml_get_type_traits_cpu(ty.id() as _)).vec_dot_type };
            format(dot).map(|activations| LinearRule {
                weights: ty.name().to_owned(),
                activations,
                ..LinearRule::default()
            })
        })
        .collect()
}

/// Loads ggml's CUDA backend once, from the library that `QDIFF_GGML_CUDA`
/// names: the ordinary build of llama.cpp has none.
///
/// # Errors
/// If none is named, or ggml cannot load it.
pub(crate) fn cuda_backend() -> Result<()> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let remedy = "build it with scripts/build-ggml-cuda OUT and set QDIFF_GGML_CUDA=OUT/libggml-cuda.so";
        let Some(library) = std::env::var_os("QDIFF_GGML_CUDA") else {
            return Err(format!("llama.cpp on CUDA needs ggml's CUDA backend: {remedy}"));
        };
        let library = Path::new(&library);
        let shown = library.display();
        if !library.is_file() {
            return Err(format!("QDIFF_GGML_CUDA: {shown} is no file; {remedy}"));
        }
        let name = CString::new(library.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: a NUL-terminated path; null means failure.
        if unsafe { sys::ggml_backend_load(name.as_ptr()) }.is_null() {
            return Err(format!(
                "ggml cannot load {shown}, or it finds no GPU; it must be built from the same ggml: {remedy}"
            ));
        }
        Ok(())
    });
    loaded.clone().map_err(anyhow::Error::msg)
}

/// A loaded model.
pub(crate) struct Model {
    pub(crate) raw: *mut sys::llama_model,
    pub(crate) on_gpu: bool,
}

impl Model {
    /// Loads `path`.
    ///
    /// # Errors
    /// If llama.cpp refuses the file, or there is no CUDA backend and it takes one.
    pub(crate) fn load(path: &Path, what: Load) -> Result<Self> {
        start();
        let on_gpu = what == Load::Cuda;
        if on_gpu {
            cuda_backend()?;
        }
        // An empty list: no device, even where a CUDA backend has been loaded.
        let mut none = [std::ptr::null_mut()];
        // SAFETY: a call that only fills a structure.
        let mut params = unsafe { sys::llama_model_default_params() };
        if !on_gpu {
            params.devices = none.as_mut_ptr();
        }
        params.n_gpu_layers = if on_gpu { 999 } else { 0 };
        params.vocab_only = what == Load::Vocabulary;
        params.use_extra_bufts = false;
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        let _doing = supervisor::doing(|| format!("llama.cpp was loading {}", path.display()));
        complaint().take();
        // SAFETY: a NUL-terminated path; the result is checked.
        let raw = unsafe { sys::llama_model_load_from_file(name.as_ptr(), params) };
        if raw.is_null() {
            bail!("llama.cpp cannot load {}: {}", path.display(), why());
        }
        Ok(Self { raw, on_gpu })
    }
}

impl Model {
    /// A metadata value as llama.cpp prints it.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut buffer = vec![0u8; 1 << 16];
        // SAFETY: the buffer's length is passed along.
        let n =
            unsafe { sys::llama_model_meta_val_str(self.raw, key.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
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

// SAFETY: a loaded model is read-only; llama.cpp documents sharing it between contexts on several threads.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}
