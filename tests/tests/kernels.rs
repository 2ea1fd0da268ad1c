//! Every CUDA kernel compiles, on a machine without a GPU, for the cards of
//! three generations. `./scripts/test` brings NVRTC along.

use qdiff_engine::cuda::CudaError;
use qdiff_engine::cuda::kernels::{SOURCES, Source, compile};

/// Ampere, Hopper, Blackwell.
const TARGETS: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

#[test]
fn all_kernels_compile_without_spills() {
    for source in SOURCES {
        for arch in TARGETS {
            let compiled = compile(source, arch).unwrap_or_else(|e| panic!("{e}"));
            assert!(
                compiled.cubin.starts_with(b"\x7fELF"),
                "{} for {arch} is no cubin",
                source.name
            );
            for line in compiled
                .log
                .lines()
                .filter(|l| l.contains("registers") || l.contains("spill"))
            {
                println!("{} {arch}: {}", source.name, line.trim());
                let spills = line.contains("spill")
                    && !line.contains("0 bytes spill stores, 0 bytes spill loads");
                assert!(!spills, "{} spills for {arch}: {line}", source.name);
            }
            assert!(
                compiled.log.contains("registers"),
                "ptxas said nothing of {}: {}",
                source.name,
                compiled.log
            );
        }
    }
}

#[test]
fn a_kernel_that_is_wrong_is_named_with_the_compilers_words() {
    let broken = Source {
        name: "broken",
        text: "extern \"C\" __global__ void broken() { no_such_thing(); }",
    };
    match compile(&broken, "sm_90a") {
        Err(CudaError::Compile { name, log, .. }) => {
            assert_eq!(name, "broken");
            assert!(log.contains("no_such_thing"), "{log}");
        }
        other => panic!("{other:?}"),
    }
}
