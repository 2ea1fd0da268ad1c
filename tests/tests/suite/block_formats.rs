//! Block formats through the binary: a model is written in each of them by ggml's own quantisers, and judged.

use qdiff_engine::cuda::kept_as;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::quant::GgmlType;
use qdiff_tests::synth::Synth;
use qdiff_tests::{Folder, folder_with, share};
use std::collections::BTreeMap;

/// How many tensors of a file have each type.
fn types(folder: &Folder, file: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for tensor in Gguf::open(&folder.join(file)).unwrap().tensors {
        *counts.entry(tensor.ggml_type.to_string()).or_default() += 1;
    }
    counts
}

/// A copy in any format is read as ggml reads it, and what its rows do not fit stays as it was. `scripts/test` takes every
/// second format.
#[test]
fn a_copy_has_the_format_asked_for() {
    // Rows of 544 are whole blocks of 32 alone.
    let folder = folder_with(&Synth { n_ff: 544, weight_type: GgmlType::F32, ..Synth::default() });
    let plain = types(&folder, "model.gguf")["F32"];
    let vectors = Synth::default().tensor_names().iter().filter(|n| n.contains("norm") || n.ends_with("bias")).count();
    for &ty in share(GgmlType::ALL_SUPPORTED, 2) {
        let said =
            folder.qdiff(&format!("dequantise --to {} -m model.gguf --out copy.gguf", ty.name())).exits(0).stdout;
        let counts = types(&folder, "copy.gguf");
        let kept = if 544 % ty.block_size() == 0 { 0 } else { 2 };
        let is_plain = ty == GgmlType::F32;
        let expected = if is_plain { plain } else { plain - vectors - kept };
        assert_eq!(counts.get(&ty.to_string()), Some(&expected), "{counts:?}");
        assert_eq!(said.contains("2 matrix tensors kept as stored"), kept > 0, "{said}");
        folder.qdiff("weights copy.gguf").exits(0);
    }
}

/// qdiff prints what each runner does with each format before it runs.
#[test]
fn formats_of_runners_are_listed() {
    let folder = folder_with(&Synth { weight_type: GgmlType::IQ4_XS, ..Synth::default() });
    let (_, devices, screen) = folder.told("devices");
    for runner in devices["runners"].as_array().unwrap() {
        let listed = runner["formats"].as_array().unwrap().iter().flat_map(|way| way[1].as_array().unwrap());
        assert_eq!(listed.count(), GgmlType::ALL_SUPPORTED.len(), "{runner}");
    }
    assert!(screen.contains("  cpu         as stored  all\n"), "{screen}");
    assert!(screen.contains("  cuda        as BF16    MXFP4\n"), "{screen}");
    let (_, file, screen) = folder.told("inspect model.gguf");
    let matrices: usize = Gguf::open(&folder.join("model.gguf"))
        .unwrap()
        .tensors
        .iter()
        .filter(|t| t.rows() > 1)
        .map(|t| t.elements() as usize)
        .sum();
    assert_eq!(file["on_cuda"]["IQ4_XS"], serde_json::json!(["F32", 4 * matrices]), "{screen}");
    assert!(screen.contains(&format!("on a GPU as F32, {} bytes", 4 * matrices)), "{screen}");
    assert_eq!(kept_as(GgmlType::IQ4_XS), GgmlType::F32);
}
