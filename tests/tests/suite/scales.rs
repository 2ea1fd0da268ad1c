//! Matrices with a scale beside them, as files in NVFP4 have, through the binary.

use qdiff_engine::quant::GgmlType;
use qdiff_tests::synth::Synth;
use qdiff_tests::{Told, folder_with, headline};

fn model(arch: &'static str, weight_type: GgmlType) -> Synth {
    Synth { arch, weight_type, scales: true, ..Synth::default() }
}

/// A product is judged before its scale and after it.
#[test]
fn products_are_scaled() {
    for arch in ["qwen3", "qwen3moe", "qwen35", "qwen35moe", "qwen4exp"] {
        for weight_type in [GgmlType::NVFP4, GgmlType::Q8_0] {
            let (code, report, text) = folder_with(&model(arch, weight_type)).judged("-n 2 --subject cpu");
            assert_eq!(code, 0, "{arch}\n{text}");
            let coverage = &report["verdict"]["coverage"];
            assert_eq!(coverage["asked"], coverage["judged"], "{arch}\n{text}");
            let scaled = report.stages().iter().filter(|s| s["stage"].as_str().unwrap().ends_with("_scaled")).count();
            assert!(scaled >= 10, "{arch}: {scaled}");
        }
    }
}

/// llama.cpp loads these scales and does not use them.
#[test]
fn the_reference_is_wrong_where_it_leaves_a_scale_out() {
    for (arch, first) in [
        ("qwen2", "blk.0.ffn_gate.scale"),
        ("qwen2moe", "blk.0.ffn_gate_exps.scale"),
        ("qwen3vl", "blk.0.ffn_gate.scale"),
        ("qwen3next", "blk.0.attn_qkv.scale"),
    ] {
        let (code, _, text) = folder_with(&model(arch, GgmlType::Q8_0)).judged("-n 1 --subject cpu");
        assert_eq!(code, 1, "{arch}\n{text}");
        let told = format!("the reference is wrong here: llama.cpp loads `{first}` and never applies it");
        assert!(headline(&text).contains(&told), "{arch}\n{text}");
    }
}
