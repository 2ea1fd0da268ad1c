//! Files in which tensors stand together: queries, keys and values projected by one matrix, gate and up of experts in one tensor;
//! and files with blocks for multi-token prediction behind the layers.

use qdiff_engine::quant::GgmlType;
use qdiff_tests::synth::Synth;
use qdiff_tests::{Told, folder_with, headline};

fn model(arch: &'static str) -> Synth {
    Synth { arch, fused: true, ..Synth::default() }
}

/// llama.cpp announces no product alone where a bias comes after it.
#[test]
fn one_matrix_of_queries_keys_and_values_matches() {
    for arch in ["qwen2", "qwen3", "qwen2moe", "qwen3moe", "qwen3vl", "qwen3vlmoe", "qwen3next", "qwen35", "qwen35moe"]
    {
        for weight_type in [GgmlType::F32, GgmlType::Q4_K] {
            let folder = folder_with(&Synth { weight_type, ..model(arch) });
            let (code, report, text) = folder.judged("-n 2 --subject cpu");
            assert_eq!(code, 0, "{arch}\n{text}");
            // The sum with a bias is announced, and not the product.
            let apart = report.statuses().iter().all(|(_, status)| *status == "match");
            assert!(report.is_whole() && apart != arch.starts_with("qwen2"), "{arch}\n{text}");
        }
    }
}

#[test]
fn every_reader_reads_it() {
    let folder = folder_with(&model("qwen2"));
    for line in
        ["weights model.gguf", "verify-oracle -m model.gguf -n 2", "run -m model.gguf -n 2 --subject cpu --ranks 2"]
    {
        let said = folder.qdiff(line).exits(0);
        assert!(said.stdout.starts_with("MATCH"), "{line}\n{said}");
    }
}

/// The rows that are meant have a name.
#[test]
fn the_rows_are_named() {
    let folder = folder_with(&model("qwen2"));
    let (code, report, text) = folder.judged("-n 1 --subject cpu --inject qkv-bias-omitted@L01.k_biased");
    assert_eq!((code, report.origins()), (1, vec!["L01.k_biased"]), "{text}");
    assert!(text.contains("blk.1.attn_qkv.bias[256:384]"), "{text}");
}

/// llama.cpp reads only three matrices of a layer that chooses keys.
#[test]
fn what_llama_cpp_cannot_read_is_written_apart() {
    let names = model("qwen4exp").tensor_names();
    assert!(names.contains(&"blk.1.attn_q.weight".to_owned()) && !names.contains(&"blk.1.attn_qkv.weight".to_owned()));
}

#[test]
fn blocks_for_multi_token_prediction_are_left_out() {
    for (arch, tied) in [("qwen3next", false), ("qwen35", true), ("qwen35moe", false)] {
        let model = Synth { arch, mtp: 1, tied, ..Synth::default() };
        assert!(model.tensor_names().contains(&"blk.2.nextn.eh_proj.weight".to_owned()));
        let folder = folder_with(&model);
        let (code, report, text) = folder.judged("-n 2 --subject cpu");
        assert!(code == 0 && report.is_whole() && headline(&text).starts_with("MATCH"), "{arch}\n{text}");
        let said = folder.qdiff("inspect model.gguf").exits(0);
        assert!(
            said.stdout.contains("2 layers (and 1 for multi-token prediction, which no engine here runs)"),
            "{said}"
        );
    }
}

#[test]
fn as_many_of_them_as_blocks_are_refused() {
    let folder = folder_with(&Synth::default());
    for (arch, words) in [
        ("qwen35", ["`qwen35.nextn_predict_layers` is 2", "leaves no layer"]),
        ("qwen2", ["`qwen2.nextn_predict_layers` is 2", "no qwen2 model with it is supported"]),
    ] {
        let key = format!("{arch}.nextn_predict_layers");
        let bytes = Synth { arch, ..Synth::default() }.to_bytes_with(|kv| kv.u32(&key, 2));
        folder.write("other.gguf", bytes);
        folder.refuses("run -m other.gguf --subject cpu", &words);
    }
}
