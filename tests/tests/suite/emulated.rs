//! Kernels run on a CPU, thread by thread, against their definitions: see `tests/emulated`. A GPU
//! proves them faster and on real models (`scripts/gpu-round`); this proves them where there is none.

use qdiff_engine::quant::{CACHES, emulate, store};
use qdiff_tests::card::program;
use std::io::Write as _;
use std::process::{Command, Stdio};

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

/// Rows of a cache: noise of many sizes, blocks of one value and of none, largest values of both signs, and values in the middle
/// between two codes.
fn rows() -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 * 2.0 - 1.0
    };
    let mut block = |kind: i32| -> [f32; 32] {
        let size = 2f32.powi(kind % 35 - 20);
        match kind % 8 {
            0 => [size * next(); 32],
            1 => [0.0; 32],
            2 => std::array::from_fn(|i| if i == 7 { size } else { 0.0 }),
            3 => std::array::from_fn(|i| if i % 2 == 0 { size } else { -size }),
            // 127, 31, 15, 16 and 8 steps to the largest, and halves of them.
            4 => std::array::from_fn(|i| size * (i as f32 - 15.5) / 15.5),
            5 => std::array::from_fn(|_| size * (2.0 * (next() * 127.0).round() + 1.0) / 254.0),
            6 => std::array::from_fn(|i| size * if i == 0 { -1.0 } else { (next() * 16.0).round() / 16.0 }),
            _ => std::array::from_fn(|_| size * next() * next()),
        }
    };
    (0..280).flat_map(&mut block).collect()
}

/// What each type of cache holds is what the CPU engine stores, which is held to ggml: every byte of a block, and every element.
#[test]
fn caches_hold_what_the_cpu_engine_stores() {
    let rows = rows();
    for (name, format, _) in CACHES {
        let program = program("caches.cpp", &[&format!("-DKV=Kv{format:?}")]);
        let mut run =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was compiled");
        let given: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
        run.stdin.take().unwrap().write_all(&given).unwrap();
        let told = run.wait_with_output().unwrap().stdout;
        let (cache, read) = told.split_at(format.cache_bytes(rows.len()).unwrap());
        assert!(format.stored_as().is_none() || cache == store(format, &rows), "{name}");
        let mut values = vec![0.0; rows.len()];
        emulate(format, &rows, &mut values);
        let read = read.as_chunks().0.iter().map(|v| f64::from(f32::from_le_bytes(*v)));
        let wrong = read.clone().zip(&values).position(|(read, value)| read != *value);
        assert_eq!((read.len(), wrong), (rows.len(), None), "{name}");
    }
}
