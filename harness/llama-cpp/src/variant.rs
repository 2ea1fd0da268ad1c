//! Kernels of llama.cpp for more than AVX2, which the packages have beside the program: modules that
//! `scripts/build-ggml-cpu` builds.

use crate::said::{complaint, gives_up};
use llama_cpp_sys_2 as sys;
use qdiff_capture::log::{self, Level};
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The variants of ggml, the one that fits fewest processors first.
const VARIANTS: [&str; 2] = ["cascadelake", "skylakex"];

/// The folder of the modules: the one that `QDIFF_GGML_CPU` names, or the one beside the program, if it belongs to whom the program
/// belongs to, or to root. The current folder has no say in it.
fn folder() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("QDIFF_GGML_CPU").map(PathBuf::from) {
        if named.is_relative() {
            log::line(Level::Notable, "QDIFF_GGML_CPU names no absolute path: llama.cpp runs no module");
        }
        return Some(named).filter(|named| named.is_absolute());
    }
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?.parent()?.join("lib/qdiff");
    let (owner, own) = (beside.metadata().ok()?.uid(), program.metadata().ok()?.uid());
    (owner == own || owner == 0).then_some(beside)
}

/// Loads the best module that this processor can run, in place of the kernels that the program holds. Gives its name; without a
/// module the program keeps its own.
pub(crate) fn load() -> Option<&'static str> {
    // A module asks the processor alone; this also asks whether the system keeps the registers.
    #[cfg(target_arch = "x86_64")]
    let wide = std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    let wide = false;
    let folder = folder().filter(|folder| wide && folder.join("libggml-base.so.0").is_file())?;
    let without =
        |what: &str, why: String| log::line(Level::Notable, &format!("llama.cpp goes on without {what}: {why}"));
    base(&folder).map_err(|why| without(&folder.to_string_lossy(), why)).ok()?;
    let chosen = VARIANTS.into_iter().find(|name| {
        let module = folder.join(format!("libggml-cpu-{name}.so"));
        let Some(path) = text(&module).filter(|_| module.is_file()) else { return false };
        complaint().take();
        // SAFETY: a NUL-terminated path; null means failure.
        let loaded = !unsafe { sys::ggml_backend_load(path.as_ptr()) }.is_null();
        if let Some(why) = complaint().take() {
            without(&module.to_string_lossy(), why);
        }
        loaded
    })?;
    // SAFETY: nothing has used the backend of the program yet; the one that stays is the module's.
    unsafe { sys::ggml_backend_unload(sys::ggml_backend_cpu_reg()) };
    log::line(Level::Notable, &format!("llama.cpp runs the variant {chosen} of {}", folder.display()));
    Some(chosen)
}

fn text(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

/// Loads the part of ggml that the modules have in common. It must be of the version of the program's own; what it says before it
/// aborts is kept.
fn base(folder: &Path) -> Result<(), String> {
    type Version = extern "C" fn() -> *const c_char;
    type Set = extern "C" fn(sys::ggml_abort_callback_t) -> sys::ggml_abort_callback_t;
    let path = text(&folder.join("libggml-base.so.0")).ok_or("its name")?;
    // SAFETY: NUL-terminated names. The functions are those of ggml that `sys` declares, and their library stays loaded.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return Err(CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned());
        }
        let version = libc::dlsym(library, c"ggml_version".as_ptr());
        let set = libc::dlsym(library, c"ggml_set_abort_callback".as_ptr());
        if version.is_null() || set.is_null() {
            return Err("it is no ggml".to_owned());
        }
        let version = CStr::from_ptr(std::mem::transmute::<*mut c_void, Version>(version)());
        if version != CStr::from_ptr(sys::ggml_version()) {
            return Err(format!("it is ggml {}", version.to_string_lossy()));
        }
        std::mem::transmute::<*mut c_void, Set>(set)(Some(gives_up));
    }
    Ok(())
}
