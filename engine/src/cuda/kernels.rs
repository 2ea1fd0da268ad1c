//! The kernels: one `.cu` per op, compiled by NVRTC to a cubin for the card
//! at hand, and kept on disk by what they were compiled from.

use super::CudaError;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;

/// A kernel file: the op's name and its whole source.
#[derive(Debug)]
pub struct Source {
    /// Name of the op, and of the file without `.cu`.
    pub name: &'static str,
    /// What is compiled: shared parts, then the file.
    pub text: &'static str,
}

macro_rules! source {
    ($name:literal $(, $part:literal)*) => {
        Source {
            name: $name,
            text: concat!(
                $(include_str!(concat!("../../kernels/", $part)),)*
                include_str!(concat!("../../kernels/", $name, ".cu"))
            ),
        }
    };
}

/// Every kernel file.
pub const SOURCES: &[Source] = &[
    source!("embed", "blocks.cuh"),
    source!("rms_norm", "reduce.cuh"),
    source!("linear", "blocks.cuh"),
    source!("bias"),
    source!("rope"),
    source!("kv_cache"),
    source!("attn_scores"),
    source!("attn_weights", "reduce.cuh"),
    source!("attn_context"),
    source!("residual"),
    source!("swiglu"),
];

/// A compiled kernel file.
#[derive(Debug)]
pub struct Compiled {
    /// Machine code.
    pub cubin: Vec<u8>,
    /// The compiler's words: registers and spills with `-v` to ptxas.
    pub log: String,
}

/// Compiles one file for `arch`, e.g. `sm_90a`.
///
/// # Errors
/// If NVRTC is missing or refuses the source.
pub fn compile(source: &Source, arch: &str) -> Result<Compiled, CudaError> {
    // SAFETY: only tries to open the library; without it cudarc would panic.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoNvrtc);
    }
    let problem = |log: String| CudaError::Compile {
        name: source.name,
        arch: arch.to_owned(),
        log,
    };
    let text = CString::new(source.text).expect("sources hold no NUL");
    let name = CString::new(format!("{}.cu", source.name)).expect("names hold no NUL");
    let options = [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        "--ptxas-options=-v".to_owned(),
    ];
    let program =
        result::create_program(&text, Some(&name)).map_err(|e| problem(format!("{e:?}")))?;
    // SAFETY: the program was created above and is destroyed below; every
    // buffer has the size that was asked for.
    unsafe {
        let compiled = result::compile_program(program, &options);
        let log = log_of(program);
        let cubin = compiled.map_err(|_| problem(log.clone())).and_then(|()| {
            let mut size = 0;
            let mut cubin = Vec::new();
            let mut code = sys::nvrtcGetCUBINSize(program, &mut size);
            if code == sys::nvrtcResult::NVRTC_SUCCESS {
                cubin = vec![0u8; size];
                code = sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast());
            }
            match code {
                sys::nvrtcResult::NVRTC_SUCCESS => Ok(cubin),
                code => Err(problem(format!("{code:?}"))),
            }
        });
        let _ = result::destroy_program(program);
        Ok(Compiled { cubin: cubin?, log })
    }
}

unsafe fn log_of(program: sys::nvrtcProgram) -> String {
    let mut size = 0;
    // SAFETY: as the caller's; the buffer has the size that was asked for.
    unsafe {
        if sys::nvrtcGetProgramLogSize(program, &mut size) != sys::nvrtcResult::NVRTC_SUCCESS
            || size == 0
        {
            return String::new();
        }
        let mut log = vec![0u8; size];
        sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
        CStr::from_bytes_until_nul(&log)
            .map_or_else(|_| String::new(), |s| s.to_string_lossy().into_owned())
    }
}

/// As [`compile`], from the cache on disk where it has been compiled before by
/// the same compiler. A cache that cannot be used is no error.
///
/// # Errors
/// As [`compile`].
pub fn cached(source: &Source, arch: &str) -> Result<Vec<u8>, CudaError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: only tries to open the library, then asks for two integers.
    unsafe {
        if !sys::is_culib_present() {
            return Err(CudaError::NoNvrtc);
        }
        sys::nvrtcVersion(&mut major, &mut minor);
    }
    let mut hash = DefaultHasher::new();
    (source.text, arch, major, minor, env!("CARGO_PKG_VERSION")).hash(&mut hash);
    let file = cache_folder().map(|f| {
        f.join(format!(
            "{}-{arch}-{:016x}.cubin",
            source.name,
            hash.finish()
        ))
    });
    if let Some(cubin) = file.as_ref().and_then(|f| std::fs::read(f).ok()) {
        return Ok(cubin);
    }
    let cubin = compile(source, arch)?.cubin;
    if let Some(file) = file {
        // Written beside and renamed: a reader never sees half a cubin.
        let part = file.with_extension(format!("{}.part", std::process::id()));
        let _ = std::fs::write(&part, &cubin).and_then(|()| std::fs::rename(&part, &file));
    }
    Ok(cubin)
}

fn cache_folder() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache")))?;
    let folder = base.join("qdiff").join("kernels");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder)
}
