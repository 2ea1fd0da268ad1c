//! Kernels compiled by NVRTC to a cubin for the card at hand, and kept on disk by what they were compiled from.

use super::CudaError;
use super::kernel::Kernel;
use super::kernels::included;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;

/// A program for NVRTC: some kernels of one file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the kernels.
    pub name: &'static str,
    /// The kernel's file, and checks of its parameters by the compiler.
    pub text: String,
    /// The kernels wanted, as C++ spells them, e.g. `embed<Q4_K>`.
    pub kernels: Vec<String>,
}

impl Source {
    /// The program of `kernels`, which are `first` and others of the same file, with the same bug if with any.
    pub fn new<'a>(first: &Kernel, kernels: impl IntoIterator<Item = &'a Kernel>) -> Self {
        Self {
            name: first.file.name(),
            text: first.program() + &first.file.checks(),
            kernels: kernels.into_iter().map(ToString::to_string).collect(),
        }
    }
}

/// The compiler's target for a card, with the features of its architecture from Hopper on.
pub fn target((major, minor): (i32, i32)) -> String {
    let own = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

/// Compiled kernels.
#[derive(Debug)]
pub struct Compiled {
    /// Names of the kernels in the machine code, in the order of the requests.
    pub names: Vec<String>,
    /// Machine code.
    pub cubin: Vec<u8>,
    /// The compiler's words: registers and spills with `-v` to ptxas.
    pub log: String,
}

/// Compiles one program for `arch`, e.g. `sm_90a`.
///
/// # Errors
/// If NVRTC is missing or refuses the source.
pub fn compile(source: &Source, arch: &str) -> Result<Compiled, CudaError> {
    // SAFETY: only tries to open the library; without it cudarc would panic.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoNvrtc);
    }
    let problem = |log: String| CudaError::Compile { name: source.name, arch: arch.to_owned(), log };
    let c = |text: &str| CString::new(text).expect("sources hold no NUL");
    let (text, name) = (c(&source.text), c(source.name));
    let kernels: Vec<CString> = source.kernels.iter().map(|k| c(k)).collect();
    let (paths, texts): (Vec<CString>, Vec<CString>) = included().map(|(path, text)| (c(path), c(text))).unzip();
    let addresses = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
    let options = options(arch);
    let mut program = std::ptr::null_mut();
    // SAFETY: every text outlives the program, which is created here and destroyed below; every buffer has the size
    // that was requested.
    unsafe {
        let create = sys::nvrtcCreateProgram(
            &raw mut program,
            text.as_ptr(),
            name.as_ptr(),
            paths.len() as i32,
            addresses(&texts).as_ptr(),
            addresses(&paths).as_ptr(),
        );
        create.result().map_err(|e| problem(e.to_string()))?;
        let build = || -> Result<_, result::NvrtcError> {
            for kernel in &kernels {
                sys::nvrtcAddNameExpression(program, kernel.as_ptr()).result()?;
            }
            result::compile_program(program, &options)?;
            let names = kernels.iter().map(|kernel| lowered(program, kernel)).collect::<Result<Vec<_>, _>>()?;
            let mut size = 0;
            sys::nvrtcGetCUBINSize(program, &raw mut size).result()?;
            let mut cubin = vec![0u8; size];
            sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()).result()?;
            Ok((names, cubin))
        };
        let built = build();
        // A text with a NUL at its end.
        let log = result::get_program_log(program).unwrap_or_default();
        let log = log.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect::<Vec<u8>>();
        let log = String::from_utf8_lossy(&log).into_owned();
        let _ = result::destroy_program(program);
        match built {
            Ok((names, cubin)) => Ok(Compiled { names, cubin, log }),
            Err(e) if log.trim().is_empty() => Err(problem(e.to_string())),
            Err(_) => Err(problem(log)),
        }
    }
}

fn options(arch: &str) -> [String; 3] {
    [format!("--gpu-architecture={arch}"), "--std=c++17".to_owned(), "--ptxas-options=-v".to_owned()]
}

/// The name that the compiler gave to a kernel.
///
/// # Safety
/// The program must have been compiled, with this kernel among the requested names, and not be destroyed.
unsafe fn lowered(program: sys::nvrtcProgram, kernel: &CStr) -> Result<String, result::NvrtcError> {
    let mut name = std::ptr::null();
    // SAFETY: as the caller's; the name lives as long as the program and is copied.
    unsafe {
        sys::nvrtcGetLoweredName(program, kernel.as_ptr(), &raw mut name).result()?;
        Ok(CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// As [`compile`], from the cache on disk where it has been compiled before by the same compiler from the same files. A
/// cache that cannot be used is no error.
///
/// # Errors
/// As [`compile`].
pub fn cached(source: &Source, arch: &str) -> Result<Compiled, CudaError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: only tries to open the library, then asks for two integers.
    unsafe {
        if !sys::is_culib_present() {
            return Err(CudaError::NoNvrtc);
        }
        sys::nvrtcVersion(&raw mut major, &raw mut minor);
    }
    let mut hash = DefaultHasher::new();
    (&source.text, &source.kernels, options(arch), major, minor, env!("CARGO_PKG_VERSION")).hash(&mut hash);
    included().for_each(|file| file.hash(&mut hash));
    let file = cache_folder().map(|f| f.join(format!("{}-{arch}-{:016x}.cubin", source.name, hash.finish())));
    if let Some(kept) = file.as_ref().and_then(|f| std::fs::read(f).ok()).and_then(|bytes| unpack(&bytes)) {
        return Ok(kept);
    }
    let compiled = compile(source, arch)?;
    if let Some(file) = file {
        // Written beside and renamed: a reader never sees half a cubin.
        let part = file.with_extension(format!("{}.part", std::process::id()));
        let _ = std::fs::write(&part, pack(&compiled)).and_then(|()| std::fs::rename(&part, &file));
    }
    Ok(compiled)
}

/// A line with the names, a line with the length of the log, the log, then the machine code.
fn pack(compiled: &Compiled) -> Vec<u8> {
    let head = format!("{}\n{}\n{}", compiled.names.join(" "), compiled.log.len(), compiled.log);
    [head.as_bytes(), &compiled.cubin].concat()
}

fn unpack(bytes: &[u8]) -> Option<Compiled> {
    let mut parts = bytes.splitn(3, |&b| b == b'\n');
    let mut line = || std::str::from_utf8(parts.next()?).ok();
    let (names, length) = (line()?, line()?.parse().ok()?);
    let (log, cubin) = parts.next()?.split_at_checked(length)?;
    let log = String::from_utf8(log.to_vec()).ok()?;
    Some(Compiled { names: names.split(' ').map(str::to_owned).collect(), cubin: cubin.to_vec(), log })
}

fn cache_folder() -> Option<PathBuf> {
    let folder = crate::cache_folder()?.join("kernels");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cache_holds_is_what_was_compiled() {
        let compiled = Compiled {
            names: vec!["_Z5embed".to_owned(), "_Z6linear".to_owned()],
            cubin: b"\x7fELF\n\0\xff".to_vec(),
            log: "ptxas info: Used 32 registers\n0 bytes spill stores\n".to_owned(),
        };
        let packed = pack(&compiled);
        let kept = unpack(&packed).expect("it was packed");
        assert_eq!((kept.names, kept.cubin, kept.log), (compiled.names, compiled.cubin, compiled.log));
        // Another writer's file, as that of an older version: compiled anew.
        assert!(unpack(b"_Z5embed\n\x7fELF\n").is_none());
    }
}
