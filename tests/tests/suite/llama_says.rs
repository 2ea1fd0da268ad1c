//! What the pinned llama.cpp says of files.
//!
//! It may abort on a broken file, so its answer comes from a child process: this test program again, running only
//! `child`, which reads a batch of files named by an environment variable and prints a line per file. When the child
//! dies, the file it died at counts as refused, and another child goes on after it.

use llama_cpp_sys_2 as sys;
use qdiff::llama::context::Plain;
use qdiff::llama::{Load, Model};
use qdiff_tests::empty;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const DIR: &str = "QDIFF_GGUF_CHILD_DIR";
const FIRST: &str = "QDIFF_GGUF_CHILD_FIRST";
const ASKED: &str = "QDIFF_GGUF_CHILD_ASKED";

/// The file in a folder that names the one asked about.
const NAME: &str = "asked";

/// A question about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Whether its header can be read, and the data lies inside.
    Header,
    /// Whether it is a model that runs.
    Model,
}

/// `gguf_init_from_buffer` for the header, then the check that the data of each tensor lies inside the file
/// (`llama_tensor_weight` in llama-model-loader.h).
fn reads(bytes: &[u8]) -> bool {
    let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
    // SAFETY: the buffer is alive during the call, which copies what it keeps;
    // the result is used only if it is not null, and freed once.
    unsafe {
        let gguf = sys::gguf_init_from_buffer(bytes.as_ptr().cast(), bytes.len(), params);
        if gguf.is_null() {
            return false;
        }
        let data = sys::gguf_get_data_offset(gguf);
        let inside = (0..sys::gguf_get_n_tensors(gguf)).all(|i| {
            let size = sys::gguf_get_tensor_size(gguf, i);
            let end = data.checked_add(sys::gguf_get_tensor_offset(gguf, i)).and_then(|start| start.checked_add(size));
            end.is_some_and(|end| end <= bytes.len())
        });
        sys::gguf_free(gguf);
        inside
    }
}

/// Whether the model loads, splits a prompt into tokens and computes some.
fn runs(path: &Path) -> bool {
    let Ok(model) = Model::load(path, Load::Cpu) else { return false };
    let tokens = model.tokenize("Hello, \u{e4}\u{6f22}\n".as_bytes(), true);
    let context = Plain::new(&Arc::new(model), 256, 4);
    tokens.is_ok() && context.is_ok_and(|mut context| context.step(&[1, 2, 3]).is_ok())
}

/// The child's work; does nothing in an ordinary run.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let first: usize = std::env::var(FIRST).expect("set with the folder").parse().expect("a number");
    let header = std::env::var(ASKED).is_ok_and(|asked| asked == format!("{:?}", Asked::Header));
    for i in first.. {
        let folder = folder(Path::new(&dir), i);
        let Ok(asked) = std::fs::read_to_string(folder.join(NAME)) else {
            return;
        };
        let path = folder.join(asked);
        let read = || std::fs::read(&path).is_ok_and(|bytes| reads(&bytes));
        println!("\nverdict {i} {}", if header { read() } else { runs(&path) });
    }
}

fn folder(dir: &Path, i: usize) -> PathBuf {
    dir.join(i.to_string())
}

/// Files by name in one folder; the question is about the first.
pub type Beside = Vec<(String, Vec<u8>)>;

/// Writes them.
pub fn write(folder: &Path, files: &Beside) {
    std::fs::create_dir_all(folder).expect("a temporary folder");
    files.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).expect("a temporary file"));
}

/// Which of `files` llama.cpp loads: none at which it dies.
pub fn loaded(files: &[Vec<u8>], asked: Asked) -> Vec<bool> {
    loaded_beside(&files.iter().map(|bytes| vec![("model.gguf".to_owned(), bytes.clone())]).collect::<Vec<_>>(), asked)
}

/// The same for files beside others.
pub fn loaded_beside(files: &[Beside], asked: Asked) -> Vec<bool> {
    let dir = empty();
    for (i, files) in files.iter().enumerate() {
        write(&folder(&dir, i), files);
        std::fs::write(folder(&dir, i).join(NAME), &files[0].0).expect("a temporary file");
    }
    let mut out = Vec::new();
    while out.len() < files.len() {
        let first = out.len();
        let child = Command::new(std::env::current_exe().expect("this test's path"))
            .args(["--exact", "llama_says::child", "--nocapture", "--test-threads=1"])
            .env(DIR, &*dir)
            .env(FIRST, first.to_string())
            .env(ASKED, format!("{asked:?}"))
            // More threads than free cores would wait for each other.
            .env("OMP_THREAD_LIMIT", "1")
            // llama.cpp would call a debugger for a backtrace.
            .env("GGML_NO_BACKTRACE", "1")
            .stderr(Stdio::null())
            .output()
            .expect("this test again");
        for line in String::from_utf8_lossy(&child.stdout).lines() {
            let Some(rest) = line.strip_prefix("verdict ") else { continue };
            let (i, loads) = rest.split_once(' ').expect("two words");
            assert_eq!(i, out.len().to_string(), "the child lost a file");
            out.push(loads == "true");
        }
        if out.len() < files.len() {
            assert!(!child.status.success(), "the child stopped early without dying");
            out.push(false);
        }
    }
    out
}
