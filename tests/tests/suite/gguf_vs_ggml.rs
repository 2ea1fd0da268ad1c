//! Which GGUF files are accepted: qdiff's parser against the pinned
//! llama.cpp's.
//!
//! llama.cpp may abort on a broken file, so its answer comes from a child
//! process: this test program again, running only `child`, which reads a batch
//! of files named by an environment variable and prints a line per file. When
//! the child dies, the file it died at counts as refused, and another child
//! goes on after it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use llama_cpp_sys_2 as sys;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use qdiff_engine::gguf::{Gguf, Problem};
use qdiff_tests::empty;

const DIR: &str = "QDIFF_GGUF_CHILD_DIR";
const FIRST: &str = "QDIFF_GGUF_CHILD_FIRST";

/// Whether llama.cpp's loader takes a file: `gguf_init_from_buffer` for the header, then its own
/// check that the data of each tensor lies inside the file
/// (`llama_tensor_weight` in llama-model-loader.h).
fn loads(bytes: &[u8]) -> bool {
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

/// The child's work; does nothing in an ordinary run.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let first: usize = std::env::var(FIRST).expect("set with the folder").parse().expect("a number");
    for i in first.. {
        let Ok(bytes) = std::fs::read(file(Path::new(&dir), i)) else {
            return;
        };
        println!("\nverdict {i} {}", loads(&bytes));
    }
}

fn file(dir: &Path, i: usize) -> PathBuf {
    dir.join(format!("{i}.gguf"))
}

/// Which of `files` llama.cpp loads: none at which it dies, or whose tensor data lies outside.
fn loaded(files: &[Vec<u8>]) -> Vec<bool> {
    let dir = empty();
    for (i, bytes) in files.iter().enumerate() {
        std::fs::write(file(&dir, i), bytes).expect("a temporary file");
    }
    let mut out = Vec::new();
    while out.len() < files.len() {
        let first = out.len();
        let child = Command::new(std::env::current_exe().expect("this test's path"))
            .args(["--exact", "gguf_vs_ggml::child", "--nocapture", "--test-threads=1"])
            .env(DIR, &*dir)
            .env(FIRST, first.to_string())
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

/// Compares on each file; returns how many were accepted by both.
fn compare(files: &[Vec<u8>]) -> usize {
    let mut accepted = 0;
    for (bytes, theirs) in files.iter().zip(loaded(files)) {
        let ours = Gguf::from_bytes(bytes.clone());
        match (&ours, theirs) {
            (Ok(_), true) => accepted += 1,
            (Err(_), false) => {}
            // The documented exceptions: NUL bytes and other than UTF-8 in names.
            (Err(e), true) if matches!(e.problem, Problem::Name { .. }) => {}
            // ... and sizes that wrap around in llama.cpp.
            (Err(e), true) if wraps_around(&e.problem) => {}
            _ => panic!(
                "llama.cpp loads it: {theirs}, qdiff: {:?}, for \"{}\"",
                ours.map(|_| ()).map_err(|e| e.to_string()),
                bytes.escape_ascii()
            ),
        }
    }
    accepted
}

/// Whether llama.cpp's `ggml_nbytes`, elements of a row times bytes of a block
/// before the division by at most 256, overflowed.
fn wraps_around(problem: &Problem) -> bool {
    match problem {
        Problem::Overflow(_) => true,
        Problem::Truncated { needed, .. } => *needed >= 1 << 56,
        _ => false,
    }
}

/// One tensor of a file under construction: (name, dims, type, offset).
type Tensor<'a> = (&'a str, &'a [i64], u32, i64);

fn string(out: &mut Vec<u8>, s: &[u8]) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s);
}

/// A file of raw metadata entries `(key, type and value)` and tensors; data of
/// `n_data` bytes from the next multiple of `alignment`.
fn build(kv: &[(&str, Vec<u8>)], tensors: &[Tensor<'_>], alignment: usize, n_data: usize) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((kv.len() as u64).to_le_bytes());
    for (key, value) in kv {
        string(&mut out, key.as_bytes());
        out.extend(value);
    }
    for (name, dims, ty, offset) in tensors {
        string(&mut out, name.as_bytes());
        out.extend((dims.len() as u32).to_le_bytes());
        out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(alignment) + n_data, 7);
    out
}

fn u32_value(v: u32) -> Vec<u8> {
    [4_u32.to_le_bytes(), v.to_le_bytes()].concat()
}

/// An array value: element type, length, then raw elements.
fn array(ty: u32, n: i64, elements: &[u8]) -> Vec<u8> {
    [&9_u32.to_le_bytes()[..], &ty.to_le_bytes(), &n.to_le_bytes(), elements].concat()
}

fn small() -> Vec<u8> {
    let mut text = 8_u32.to_le_bytes().to_vec();
    string(&mut text, b"some \xff text");
    let mut strings = Vec::new();
    string(&mut strings, b"a");
    string(&mut strings, b"bc");
    build(
        &[
            ("general.alignment", u32_value(64)),
            ("text", text),
            ("tokens", array(8, 2, &strings)),
            ("scores", array(6, 2, &[0; 8])),
            ("flag", [&7_u32.to_le_bytes()[..], &[5]].concat()),
        ],
        &[("a", &[32, 2], 8, 0), ("b", &[3], 0, 128)],
        64,
        128 + 12,
    )
}

#[test]
fn truncations_agree() {
    let whole = small();
    let files: Vec<_> = (0..=whole.len()).map(|n| whole[..n].to_vec()).collect();
    assert_eq!(compare(&files), 1, "only the whole file loads");
}

#[test]
fn hand_made_files_agree() {
    let mut files = vec![small()];
    for version in [0, 1, 2, 3, 4, 3 << 24, u32::MAX] {
        let mut f = build(&[], &[], 1, 0);
        f[4..8].copy_from_slice(&u32::to_le_bytes(version));
        files.push(f);
    }
    for at in [8, 16] {
        for n in [-1, 1, 1 << 40, i64::MAX] {
            let mut f = build(&[], &[], 1, 0);
            f[at..at + 8].copy_from_slice(&i64::to_le_bytes(n));
            files.push(f);
        }
    }
    for alignment in [0, 1, 2, 13, 32, 4096, 1 << 30, 1 << 31, u32::MAX] {
        let kv = [("general.alignment", u32_value(alignment))];
        for n in [0, 1, 4096] {
            files.push(build(&kv, &[], 1, n));
            files.push(build(&kv, &[("ab", &[1], 0, 0)], 1, n));
        }
    }
    for value in [
        array(4, 1, &[32, 0, 0, 0]),
        [&10_u32.to_le_bytes()[..], &[32, 0, 0, 0, 0, 0, 0, 0]].concat(),
        [&5_u32.to_le_bytes()[..], &[32, 0, 0, 0]].concat(),
    ] {
        files.push(build(&[("general.alignment", value)], &[], 1, 0));
    }
    for ty in 0..15 {
        for n in [-1, 0, 1, 2, 1 << 30, (1 << 30) + 1, 500_000_000] {
            files.push(build(&[("k", array(ty, n, &[1; 24]))], &[], 1, 0));
        }
        for value in [0, 1, 255] {
            files.push(build(&[("k", [&ty.to_le_bytes()[..], &[value; 8]].concat())], &[], 1, 0));
        }
    }
    files.push(build(&[("", u32_value(1))], &[], 1, 0));
    files.push(build(&[("k", u32_value(1)), ("k", u32_value(2))], &[], 1, 0));
    files.push(build(&[("general.alignment\0", u32_value(13))], &[], 1, 0));
    let huge = 0x7fff_ffff_ffff_ffc0;
    let small: &[&[i64]] = &[
        &[],
        &[0],
        &[1],
        &[4],
        &[32],
        &[33],
        &[256],
        &[32, 2],
        &[1; 4],
        &[1; 5],
        &[-1],
        &[1, -1],
        &[0, 5],
        &[5, 0],
        &[1 << 60],
        &[huge],
    ];
    let large: &[&[i64]] = &[
        &[1 << 32, 1 << 32],
        &[1 << 31, 1 << 31],
        &[(1 << 62) - 1],
        &[1 << 62, 0, 4],
        &[1 << 62, 4, 0],
        &[0, 1 << 62, 1 << 62],
        &[i64::MAX],
        &[i64::MAX, 1],
        &[i64::MAX, 2],
        &[1 << 59, 16],
    ];
    for dims in small.iter().chain(large) {
        for ty in [0, 1, 2, 4, 8, 12, 24, 30, 31, 39, 43, u32::MAX] {
            files.push(build(&[], &[("t", dims, ty, 0)], 32, 4096));
            files.push(build(&[], &[("t", dims, ty, 0)], 32, 0));
        }
    }
    for ty in 0..50 {
        files.push(build(&[], &[("t", &[256], ty, 0)], 32, 4096));
    }
    let long = "x".repeat(65);
    for n in [0, 1, 62, 63, 64, 65] {
        files.push(build(&[], &[(&long[..n], &[1], 0, 0)], 32, 4));
    }
    for second in [0, 4, 31, 32, 33, 64, -1] {
        for n in [35, 36, 64] {
            files.push(build(&[], &[("a", &[1], 0, 0), ("b", &[1], 0, second)], 32, n));
            files.push(build(&[], &[("a", &[1], 0, 0), ("a", &[1], 0, second)], 32, n));
        }
    }
    files.push(build(&[], &[("a", &[huge], 24, 0), ("b", &[huge], 24, huge)], 32, 64));
    let accepted = compare(&files);
    assert!(accepted > 50, "only {accepted} of {} files were accepted by both", files.len());
}

#[test]
fn mutations_agree() {
    let original = small();
    // Mostly in the header, where it matters; small numbers and extremes more often than others.
    let byte = prop_oneof![any::<u8>(), 0_u8..16, Just(0xff), Just(0x80)];
    let edits = proptest::collection::vec((0..original.len(), byte), 1..4);
    let mut runner = TestRunner::deterministic();
    let files: Vec<_> = (0..1500)
        .map(|_| {
            let mut f = original.clone();
            for (at, byte) in edits.new_tree(&mut runner).expect("a value").current() {
                f[at] = byte;
            }
            f
        })
        .collect();
    let accepted = compare(&files);
    assert!(accepted > 50, "only {accepted} of {} files were accepted by both", files.len());
}
