//! The kernels: one `.cu` per op, compiled by NVRTC to a cubin for the card
//! at hand, and kept on disk by what they were compiled from.

use super::CudaError;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;

/// A file of `engine/kernels` with the shared parts it needs.
#[derive(Debug)]
pub struct Template {
    /// Name of the op, and of the file without `.cu`.
    pub name: &'static str,
    /// Shared parts, then the file.
    text: &'static str,
    /// What its kernels are made for.
    pub instances: Instances,
    /// Folder of `engine/kernels`, with the slash: `fused/` for the fused path,
    /// `faults/` for kernels with bugs in them.
    pub folder: &'static str,
}

/// What the kernels of a file are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instances {
    /// One kernel, named as the file.
    One,
    /// A kernel per weight format.
    Formats,
    /// A kernel per type of the KV cache.
    Caches,
    /// A kernel per combination of formats, types and numbers that a model has.
    Chosen,
}

/// What is compiled: a template with its kernels spelled out.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the op.
    pub name: &'static str,
    /// The whole text.
    pub text: String,
    /// Names of the kernels.
    pub entries: Vec<String>,
}

/// Name of the kernel that `file` makes for these arguments.
pub fn entry(file: &str, arguments: &[&str]) -> String {
    let mut name = file.to_owned();
    for argument in arguments {
        name.push('_');
        name.push_str(argument);
    }
    name
}

impl Template {
    /// The file with a kernel for each list of arguments.
    pub fn source<'a>(&self, wanted: impl IntoIterator<Item = &'a [&'a str]>) -> Source {
        let mut source = Source { name: self.name, text: self.text.to_owned(), entries: Vec::new() };
        if self.instances == Instances::One {
            source.entries.push(self.name.to_owned());
            return source;
        }
        for arguments in wanted {
            let name = entry(self.name, arguments);
            if source.entries.contains(&name) {
                continue;
            }
            let list = arguments.join(", ");
            // One argument is pasted to the name by the macro itself.
            let line = match arguments.len() {
                1 => format!("INSTANCE({list})\n"),
                _ => format!("INSTANCE({name}, {list})\n"),
            };
            source.text.push_str(&line);
            source.entries.push(name);
        }
        source
    }
}

macro_rules! template {
    ($instances:ident $folder:literal $name:literal $(, $part:literal)*) => {
        Template {
            name: $name,
            text: concat!(
                $(include_str!(concat!("../../kernels/", $part)),)*
                include_str!(concat!("../../kernels/", $folder, $name, ".cu"))
            ),
            instances: Instances::$instances,
            folder: $folder,
        }
    };
}

/// Every kernel file.
pub const TEMPLATES: &[Template] = &[
    template!(Formats "" "embed", "blocks.cuh"),
    template!(One "" "rms_norm", "reduce.cuh"),
    template!(Formats "" "linear", "blocks.cuh"),
    template!(Formats "" "gemm", "blocks.cuh"),
    template!(One "" "sum_parts"),
    template!(Formats "" "dequantise", "blocks.cuh"),
    template!(One "" "bias"),
    template!(One "" "rope"),
    template!(Caches "" "kv_cache", "kv.cuh"),
    template!(Caches "" "kv_read", "kv.cuh"),
    template!(Caches "" "attn_scores", "kv.cuh"),
    template!(One "" "attn_weights", "reduce.cuh"),
    template!(Caches "" "attn_context", "kv.cuh"),
    template!(One "" "residual"),
    template!(One "" "swiglu"),
    template!(Formats "fused/" "first", "blocks.cuh", "reduce.cuh", "fused/decode.cuh"),
    template!(Chosen "fused/" "attn_qkv", "blocks.cuh", "reduce.cuh", "kv.cuh", "fused/decode.cuh"),
    template!(Chosen "fused/" "attention", "blocks.cuh", "reduce.cuh", "kv.cuh", "fused/decode.cuh"),
    template!(Chosen "fused/" "attn_prefill", "blocks.cuh", "reduce.cuh", "kv.cuh", "fused/decode.cuh"),
    template!(Formats "fused/" "linear_residual", "blocks.cuh", "reduce.cuh", "fused/decode.cuh"),
    template!(Chosen "fused/" "ffn_act", "blocks.cuh", "reduce.cuh", "fused/decode.cuh"),
    template!(Formats "fused/" "head", "blocks.cuh", "reduce.cuh", "fused/decode.cuh"),
    template!(One "fused/" "argmax", "blocks.cuh", "reduce.cuh", "fused/decode.cuh"),
];

/// The kernels with bugs in them, which only an engine that carries faults runs.
pub const FAULTS: &[Template] = &[
    template!(One "faults/" "linear_transposed"),
    template!(One "faults/" "scores_interleaved"),
    template!(One "faults/" "gelu"),
    template!(One "faults/" "left_out"),
    template!(One "faults/" "zeroed_head"),
    template!(One "faults/" "copy"),
];

/// The template of this name.
///
/// # Panics
/// If there is none: names are written in this crate only.
pub fn template(name: &str) -> &'static Template {
    TEMPLATES.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no kernel file `{name}`"))
}

/// The compiler's target for a card, with the features of its architecture
/// from Hopper on.
pub fn target((major, minor): (i32, i32)) -> String {
    let own = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

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
    let problem = |log: String| CudaError::Compile { name: source.name, arch: arch.to_owned(), log };
    let text = CString::new(source.text.as_str()).expect("sources hold no NUL");
    let name = CString::new(format!("{}.cu", source.name)).expect("names hold no NUL");
    let options = [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned(), "--ptxas-options=-v".to_owned()];
    let program = result::create_program(&text, Some(&name)).map_err(|e| problem(format!("{e:?}")))?;
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
        if sys::nvrtcGetProgramLogSize(program, &mut size) != sys::nvrtcResult::NVRTC_SUCCESS || size == 0 {
            return String::new();
        }
        let mut log = vec![0u8; size];
        sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
        CStr::from_bytes_until_nul(&log).map_or_else(|_| String::new(), |s| s.to_string_lossy().into_owned())
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
    (&source.text, arch, major, minor, env!("CARGO_PKG_VERSION")).hash(&mut hash);
    let file = cache_folder().map(|f| f.join(format!("{}-{arch}-{:016x}.cubin", source.name, hash.finish())));
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
