//! Every CUDA kernel compiles, on a machine without a GPU, for the cards of
//! three generations. `./scripts/test` brings NVRTC along.

use qdiff_engine::cuda::CudaError;
use qdiff_engine::cuda::kernels::{FAULTS, Instances, Source, TEMPLATES, compile};
use qdiff_engine::quant::GgmlType;

/// Ampere, Hopper, Blackwell.
const TARGETS: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

/// Every file with all formats and types; those that are made per model, for
/// the shapes of Qwen2.5-0.5B (Q4_K_M), Qwen2.5-7B and Qwen3-0.6B.
fn sources() -> Vec<Source> {
    let formats: Vec<String> = GgmlType::ALL_SUPPORTED.iter().map(ToString::to_string).collect();
    let formats: Vec<[&str; 1]> = formats.iter().map(|f| [f.as_str()]).collect();
    let caches = [["KvF32"], ["KvF16"]];
    let qkv: &[&[&str]] = &[
        &["Q5_0", "Q5_0", "Q8_0", "KvF32", "64", "false"],
        &["Q4_K", "Q4_K", "Q6_K", "KvF16", "128", "false"],
        &["F16", "F16", "F16", "KvF32", "128", "true"],
    ];
    let attention: &[&[&str]] = &[&["KvF32", "64", "7"], &["KvF16", "128", "7"], &["KvF32", "128", "2"]];
    let prefill: &[&[&str]] = &[&["KvF32", "64"], &["KvF16", "128"]];
    let act: &[&[&str]] = &[&["Q5_0", "Q5_0"], &["Q4_K", "Q4_K"], &["F16", "F16"]];
    TEMPLATES
        .iter()
        .chain(FAULTS)
        .map(|t| match (t.instances, t.name) {
            (Instances::One, _) => t.source([]),
            (Instances::Formats, _) => t.source(formats.iter().map(|f| &f[..])),
            (Instances::Caches, _) => t.source(caches.iter().map(|f| &f[..])),
            (_, "attn_qkv") => t.source(qkv.iter().copied()),
            (_, "attention") => t.source(attention.iter().copied()),
            (_, "attn_prefill") => t.source(prefill.iter().copied()),
            (_, "ffn_act") => t.source(act.iter().copied()),
            (_, name) => panic!("say what `{name}` is compiled for"),
        })
        .collect()
}

#[test]
fn all_kernels_compile_without_spills() {
    for source in &sources() {
        for arch in TARGETS {
            let compiled = compile(source, arch).unwrap_or_else(|e| panic!("{e}"));
            assert!(compiled.cubin.starts_with(b"\x7fELF"), "{} for {arch} is no cubin", source.name);
            for line in compiled.log.lines().filter(|l| l.contains("registers") || l.contains("spill")) {
                println!("{} {arch}: {}", source.name, line.trim());
                let spills = line.contains("spill") && !line.contains("0 bytes spill stores, 0 bytes spill loads");
                assert!(!spills, "{} spills for {arch}: {line}", source.name);
            }
            assert!(compiled.log.contains("registers"), "ptxas said nothing of {}: {}", source.name, compiled.log);
        }
    }
}

#[test]
fn a_kernel_that_is_wrong_is_named_with_the_compilers_words() {
    let broken = Source {
        name: "broken",
        text: "extern \"C\" __global__ void broken() { no_such_thing(); }".to_owned(),
        entries: Vec::new(),
    };
    match compile(&broken, "sm_90a") {
        Err(CudaError::Compile { name, log, .. }) => {
            assert_eq!(name, "broken");
            assert!(log.contains("no_such_thing"), "{log}");
        }
        other => panic!("{other:?}"),
    }
}
