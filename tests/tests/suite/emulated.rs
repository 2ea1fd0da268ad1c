//! Kernels run on a CPU, thread by thread, against their definitions: see `tests/emulated`. A GPU
//! proves them faster and on real models (`scripts/gpu-round`); this proves them where there is none.

use qdiff_tests::card::program;
use std::process::Command;

/// Runs one of the programs of `tests/emulated`, compiled with these options.
fn compute_their_definitions(source: &str, options: &[&str]) {
    let run = Command::new(program(source, options)).output().expect("it was compiled");
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
fn the_kernels_of_experts_compute_their_definitions_on_a_cpu() {
    compute_their_definitions("experts.cpp", &[]);
}

#[test]
fn products_of_hopper_compute_their_definitions_on_a_cpu() {
    compute_their_definitions("prefill.cpp", &["-D__CUDA_ARCH_FEAT_SM90_ALL", "-DPRODUCTS_ALONE"]);
}

#[test]
fn the_kernels_of_single_nodes_run_batches_of_sequences_on_a_cpu() {
    compute_their_definitions("batch.cpp", &[]);
}
