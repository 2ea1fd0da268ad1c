//! A card that is not there, on which the CUDA engine runs all the same: `tests/emulated/card.cpp` in the place of CUDA's
//! libraries, and the kernels in plain C++.

use qdiff_engine::cuda::kernels::included;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Functions that are one instruction of the machine, and what replaces it.
const INSTRUCTIONS: [(&str, &str); 41] = [
    ("unsigned long long now()", "return 1;"),
    ("float half_bits(u16 h)", "return half_to_float(h);"),
    ("void copy16(", "memcpy(to, from, 16);"),
    ("void copy16_or_zeros(", "if (there) memcpy(to, from, 16); else memset(to, 0, 16);"),
    ("void copy4(", "if (there) memcpy(to, from, 4); else memset(to, 0, 4);"),
    ("u32 subtract_halves(", "return machine_subtract_halves(a, b);"),
    ("u32 multiply_halves(", "return machine_multiply_halves(a, b);"),
    ("void load_transposed(", "machine_load_transposed(r, row);"),
    ("void cluster_barrier()", "machine_cluster_barrier();"),
    ("void cluster_meet()", "machine_cluster_barrier();"),
    ("float4 of_rank(", "return machine_of_rank(mine, rank);"),
    ("void end_copies()", ""),
    ("void wait_for_copies()", ""),
    ("void load_matrices(", "machine_load_matrices(r, row);"),
    ("void multiply32(", "machine_multiply32(c, a, b);"),
    ("void multiply_unsigned(", "machine_multiply32<uint8_t>(c, a, b);"),
    ("u32 warp_largest(", "return machine_largest(v);"),
    ("void multiply16(", "machine_multiply16(c, a0, a1, b);"),
    ("void multiply_f16(", "machine_multiply_floats(c, a, b, half_to_float);"),
    ("void multiply_bf16(", "machine_multiply_floats(c, a, b, brain_to_float);"),
    ("void show_to_products()", ""),
    ("void give_registers()", ""),
    ("void take_registers()", ""),
    ("void begin_products(", ""),
    ("void end_products()", ""),
    ("void wait_for_products(", ""),
    ("void multiply_group(", "machine_multiply_group(s, a, stage + offset, plus);"),
    ("void make_barrier(", "machine_make_barrier(at, arrivals);"),
    ("void show_barriers()", ""),
    ("void arrive(Barrier", "machine_arrive(at, 0);"),
    ("void arrive_and_expect(", "machine_arrive(at, bytes);"),
    ("bool is_over(", "return machine_is_over(at, parity);"),
    ("void copy_in_bulk(", "machine_copy_in_bulk(to, from, bytes, at);"),
    ("void multiply_wide(", "machine_multiply_wide(s, a + of_a, b + of_b, plus);"),
    ("void multiply_keys(", "machine_multiply_keys(s, a, stage + offset, eight, plus);"),
    ("void multiply_values(", "machine_multiply_values(s, a, stage + offset, eight, plus);"),
    ("float half_of(u32 two, int which)", "return half_to_float((u16)(two >> (16 * which)));"),
    ("u32 pair_of_halves(float a, float b)", "return float_to_half(a) | (u32)float_to_half(b) << 16;"),
    ("u16 bits_of_half(float v)", "return float_to_half(v);"),
    ("float get(unsigned short bits)", "return half_to_float(bits);"),
    ("unsigned short put(float v)", "return float_to_half(v);"),
];

/// `text` with another body of the function that begins with `head`.
fn with_body(text: &str, head: &str, body: &str) -> Option<String> {
    let open = text.find(head).and_then(|at| Some(at + text[at..].find('{')?))?;
    let mut depth = 0;
    let close = text[open..].char_indices().find_map(|(i, c)| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        (depth == 0).then_some(open + i)
    })?;
    Some(format!("{}{{ {body} }}{}", &text[..open], &text[close + 1..]))
}

/// A kernel's file in plain C++.
fn plain(text: &str, replaced: &mut Vec<&'static str>) -> String {
    let mut text = text.to_owned();
    for alignment in [16, 1024] {
        let declared = format!("extern __shared__ __align__({alignment}) u8 shared[];");
        text = text.replace(&declared, "u8 *shared = shared_memory;");
    }
    for (head, body) in INSTRUCTIONS {
        if let Some(changed) = with_body(&text, head, body) {
            text = changed;
            replaced.push(head);
        }
    }
    // What keeps the compiler from moving a value, over any number of lines.
    for opaque in ["asm(\"\" :", "asm volatile(\"\" :"] {
        while let Some(at) = text.find(opaque) {
            let end = at + text[at..].find(';').expect("a statement ends");
            text.replace_range(at..=end, ";");
        }
    }
    text.lines().filter(|line| !line.starts_with("#pragma unroll")).map(|line| format!("{line}\n")).collect()
}

/// Writes all kernels in plain C++ to `folder`.
///
/// # Panics
/// If no kernel has one of the instructions any more, or the folder cannot be written.
pub fn write_plain_kernels(folder: &Path) {
    let mut replaced = Vec::new();
    for (path, text) in included() {
        let to = folder.join(path);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        std::fs::write(to, plain(text, &mut replaced)).expect("a file");
    }
    for (head, _) in INSTRUCTIONS {
        assert!(replaced.contains(&head), "no kernel has `{head}` any more");
    }
}

/// Where qdiff keeps compiled kernels, in its folder for what can be made again.
const COMPILED: &str = "qdiff/kernels";

/// The folder of emulated cards, beside the tests.
fn cards() -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    let folder = test.parent().expect("a folder").join("emulated-cards");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The folder of what was made of these texts, which `make` fills where it is not there yet. It stays, as Cargo keeps what it has
/// compiled.
fn kept(texts: impl Hash, make: impl FnOnce(&Path)) -> PathBuf {
    let mut hash = DefaultHasher::new();
    (texts, INSTRUCTIONS).hash(&mut hash);
    included().for_each(|file| file.hash(&mut hash));
    let folder = cards().join(format!("{:016x}", hash.finish()));
    if !folder.is_dir() {
        let made = tempfile::tempdir_in(cards()).expect("a folder").keep();
        make(&made);
        // If two tests make it at once, the second finds the folder of the first.
        if std::fs::rename(&made, &folder).is_err() {
            std::fs::remove_dir_all(&made).expect("a folder of its own");
        }
    }
    folder
}

/// Compiles one of the sources of `tests/emulated`, with the kernels in `folder` beside it, to a file there.
fn compile(folder: &Path, source: &str, options: &[&str], to: &str) {
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O1", "-w", "-I"]).arg(folder).arg("-I").arg(sources()).arg(sources().join(source));
    let compiled = compiler.args(options).arg("-o").arg(folder.join(to)).output();
    let compiled = compiled.expect("a C++ compiler, which llama.cpp needs too");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

/// Compiles one of them to a driver of CUDA in `folder`, which is these other libraries too.
fn driver(folder: &Path, source: &str, others: &[&str]) {
    compile(folder, source, &["-shared", "-fPIC", "-ldl"], "libcuda.so");
    for other in others {
        std::fs::copy(folder.join("libcuda.so"), folder.join(other)).expect("a library");
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("emulated")
}

/// A program of `tests/emulated` that runs kernels, compiled with these options.
///
/// # Panics
/// As [`Card::new`].
pub fn program(source: &str, options: &[&str]) -> PathBuf {
    let texts = ["machine.h", "fixtures.h", source].map(|name| std::fs::read_to_string(sources().join(name)));
    let texts = texts.map(|text| text.expect("a source"));
    let folder = kept((texts, options), |made| {
        write_plain_kernels(made);
        compile(made, source, options, "kernels");
    });
    folder.join("kernels")
}

/// An emulated card.
pub struct Card {
    /// Its libraries, as `LD_LIBRARY_PATH` has them.
    libraries: PathBuf,
    /// Its kernels, and what they were compiled to.
    folder: PathBuf,
}

impl Card {
    /// The card with the kernels as they are.
    ///
    /// # Panics
    /// If there is no C++ compiler, or nothing can be written.
    pub fn new() -> Self {
        let [card, machine] = ["card.cpp", "machine.h"].map(|name| std::fs::read_to_string(sources().join(name)));
        let (card, machine) = (card.expect("a source"), machine.expect("a source"));
        let folder = kept((card, &machine), |made| {
            write_plain_kernels(made);
            std::fs::write(made.join("machine.h"), &machine).expect("a file");
            driver(made, "card.cpp", &["libnvrtc.so", "libcublas.so", "libnccl.so.2"]);
        });
        Self { libraries: folder.clone(), folder }
    }

    /// A Hopper card that computes nothing, for kernels that the NVRTC of this machine compiles.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn hollow() -> Self {
        let source = std::fs::read_to_string(sources().join("hollow.cpp")).expect("a source");
        let folder = kept(source, |made| driver(made, "hollow.cpp", &["libcublas.so"]));
        let nvrtc = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let all = std::iter::once(folder.clone()).chain(std::env::split_paths(&nvrtc));
        Self { libraries: std::env::join_paths(all).expect("folders without colons").into(), folder }
    }

    /// The same card with `new` in the place of `old` in one kernel's file.
    ///
    /// # Panics
    /// As [`Self::new`]; if `old` does not occur.
    pub fn with_bug(&self, file: &str, old: &str, new: &str) -> Self {
        let folder = kept((&self.folder, file, old, new), |folder| {
            write_plain_kernels(folder);
            std::fs::copy(self.folder.join("machine.h"), folder.join("machine.h")).expect("a file");
            let text = std::fs::read_to_string(folder.join(file)).expect("a kernel");
            assert!(text.contains(old), "{file} has no `{old}`");
            std::fs::write(folder.join(file), text.replace(old, new)).expect("a kernel");
            // The other kernels are what they were.
            let (from, to) = (self.folder.join(COMPILED), folder.join(COMPILED));
            std::fs::create_dir_all(&to).expect("a folder");
            let (_, name) = file.rsplit_once('/').unwrap_or(("", file));
            let kernel = format!("{}-", name.trim_end_matches(".cu"));
            for entry in std::fs::read_dir(from).into_iter().flatten() {
                let name = entry.expect("a file").file_name();
                if !name.to_string_lossy().starts_with(&kernel) {
                    std::fs::copy(self.folder.join(COMPILED).join(&name), to.join(&name)).expect("a compiled kernel");
                }
            }
        });
        Self { libraries: self.libraries.clone(), folder }
    }

    /// The environment in which `qdiff` finds it.
    pub fn environment(&self) -> [(&'static str, &Path); 4] {
        let multicast = ("NCCL_NVLS_ENABLE", Path::new("0"));
        let [libraries, folder] = [self.libraries.as_path(), self.folder.as_path()];
        [("LD_LIBRARY_PATH", libraries), ("QDIFF_EMULATED", folder), ("XDG_CACHE_HOME", folder), multicast]
    }
}

impl Default for Card {
    fn default() -> Self {
        Self::new()
    }
}
