//! Kernels run on a CPU, thread by thread, against their definitions: see `tests/emulated`. A GPU
//! proves them faster and on real models (`scripts/gpu-round`); this proves them where there is none.

use qdiff_engine::cuda::kernels::included;
use std::path::Path;
use std::process::Command;

/// Functions that are one instruction of the machine, and what stands in for it.
const INSTRUCTIONS: [(&str, &str); 39] = [
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
    ("void begin_wide(", ""),
    ("void wait_for_wide(", ""),
    ("void multiply_wide(", "machine_multiply_wide(s, a, b, plus);"),
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

/// Runs one of the programs of `tests/emulated`, compiled with these options.
fn compute_their_definitions(source: &str, options: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut replaced = Vec::new();
    for (path, text) in included() {
        let to = folder.path().join(path);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        std::fs::write(to, plain(text, &mut replaced)).expect("a file");
    }
    for (head, _) in INSTRUCTIONS {
        assert!(replaced.contains(&head), "no kernel has `{head}` any more");
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("emulated");
    let program = folder.path().join("kernels");
    let compiled = Command::new("c++")
        .args(["-std=c++17", "-O1", "-w"])
        .args(options)
        .arg("-I")
        .arg(folder.path())
        .arg("-I")
        .arg(&sources)
        .arg(sources.join(source))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C++ compiler, which llama.cpp needs too");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(&program).output().expect("it was compiled");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}

#[test]
fn the_kernels_of_a_decode_step_compute_their_definitions_on_a_cpu() {
    compute_their_definitions("decode.cpp", &[]);
}

#[test]
fn the_kernels_of_a_prefill_compute_their_definitions_on_a_cpu() {
    compute_their_definitions("prefill.cpp", &[]);
}

#[test]
fn products_of_hopper_compute_their_definitions_on_a_cpu() {
    compute_their_definitions("prefill.cpp", &["-D__CUDA_ARCH_FEAT_SM90_ALL", "-DPRODUCTS_ALONE"]);
}

#[test]
fn the_kernels_of_single_nodes_run_batches_of_sequences_on_a_cpu() {
    compute_their_definitions("batch.cpp", &[]);
}
