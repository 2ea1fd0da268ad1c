//! Mixtures of experts, through the binary: every stage of a right engine is judged and matches llama.cpp, in all
//! shapes, and an impossible model is refused by the key.

use qdiff_engine::quant::GgmlType;
use qdiff_tests::synth::{Kv, Setting, Synth, patch};
use qdiff_tests::{Told, empty, folder_with};
use serde_json::Value;

/// A model with experts, with these integers.
fn model(arch: &'static str, integers: &[(&str, usize)]) -> Synth {
    let settings = integers.iter().map(|(key, n)| ((*key).to_owned(), Setting::Integer(*n))).collect();
    Synth { arch, settings, ..Synth::default() }
}

/// Heads of 80, experts that nothing divides by, one head of keys; one expert of one; the shared one narrower than the others.
pub(crate) fn odd() -> Vec<Synth> {
    let odd = [("expert_count", 11), ("expert_used_count", 5), ("expert_feed_forward_length", 96)];
    let one = [("expert_count", 5), ("expert_used_count", 1), ("expert_feed_forward_length", 32)];
    let all = [("expert_count", 3), ("expert_used_count", 3), ("expert_shared_feed_forward_length", 32)];
    vec![
        Synth { n_embd: 160, n_heads: 4, n_kv_heads: 1, head_dim: 80, ..model("qwen3moe", &odd) },
        Synth { n_layers: 3, tied: true, weight_type: GgmlType::F16, ..model("qwen3moe", &one) },
        Synth { weight_type: GgmlType::Q4_K, n_heads: 8, ..model("qwen3moe", &[]) },
        Synth { n_embd: 320, n_heads: 5, n_kv_heads: 5, ..model("qwen2moe", &odd) },
        Synth { weight_type: GgmlType::F32, ..model("qwen2moe", &all) },
        Synth { weight_type: GgmlType::Q6_K, ..model("qwen2moe", &[]) },
    ]
}

#[test]
fn every_stage_matches_llama_cpp() {
    for model in odd() {
        let (code, report, text) = folder_with(&model).judged("-n 3 --subject cpu");
        assert_eq!(code, 0, "{model:?}\n{text}");
        assert!(report.is_whole(), "{model:?}");
        let stages = report.stages();
        assert!(stages.len() > 50 && stages.iter().all(|stage| stage["status"] == "match"), "{text}");
    }
}

/// Where layers between taps choose experts that rounding may change, what follows them is not known, and no right engine is
/// accused of it.
#[test]
fn layers_between_taps_are_not_accused() {
    let experts = [("expert_count", 60), ("expert_used_count", 5), ("expert_feed_forward_length", 256)];
    let (n_layers, n_embd, n_heads, n_kv_heads, head_dim) = (16, 256, 8, 1, 64);
    let weight_type = GgmlType::Q4_K;
    let model = Synth { n_layers, n_embd, n_heads, n_kv_heads, head_dim, weight_type, ..model("qwen3moe", &experts) };
    let (code, _, text) = folder_with(&model).judged("-n 2 --subject cpu --taps L0[01].*,L15.*,logits");
    assert!(code == 3 && text.contains("inconclusive"), "{code}\n{text}");
}

#[test]
fn the_oracle_holds() {
    for arch in ["qwen2moe", "qwen3moe"] {
        let said = folder_with(&model(arch, &[])).qdiff("verify-oracle -m model.gguf -n 2").exits(0);
        assert!(said.stdout.starts_with("MATCH"), "{said}");
    }
}

/// llama.cpp never reads that the weights of experts are not divided by their sum, and divides them.
#[test]
fn the_reference_is_wrong_where_weights_are_not_normalised() {
    let mut model = model("qwen3moe", &[]);
    model.settings.push(("expert_weights_norm".to_owned(), Setting::Bool(false)));
    let (code, report, text) = folder_with(&model).judged("-n 2 --subject cpu");
    assert_eq!(code, 1, "{text}");
    let disputed = report.stages().iter().filter(|s| s["status"] != "match");
    let names: Vec<&str> = disputed.map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!(names, ["L00.experts_out", "L01.experts_out"], "{text}");
    assert!(qdiff_tests::headline(&text).contains("the reference is wrong here"), "{text}");
}

/// llama.cpp writes the sigmoid of qwen2moe's shared gate as silu(x)/x, which is NaN where x is 0.
#[test]
fn the_reference_is_wrong_where_a_shared_gate_is_zero() {
    let mut bytes = model("qwen2moe", &[]).to_bytes();
    patch(&mut bytes, "blk.1.ffn_gate_inp_shexp.weight", |weights| weights.fill(0));
    let folder = empty();
    folder.write("model.gguf", bytes);
    let (code, report, text) = folder.judged("-n 2 --subject cpu");
    assert_eq!(code, 1, "{text}");
    let said = "the reference is wrong here: of finite operands it gives NaN, where f64 gives 0.5";
    assert!(qdiff_tests::headline(&text).contains(said), "{text}");
    let stages = report.stages();
    let first = stages.iter().find(|s| s["status"] != "match").unwrap();
    assert_eq!(first["stage"], "L01.shared_weight", "{text}");
}

#[test]
fn what_a_mixture_cannot_be_is_refused_by_its_key() {
    let folder = empty();
    let refuses = |arch, key: &str, value, words: &[&str]| {
        let model = model(arch, &[]);
        let key = format!("{arch}.{key}");
        folder.write("bad.gguf", model.to_bytes_with(|kv| kv.u32(&key, value)));
        folder.refuses("run -m bad.gguf --subject cpu", &[words, &[key.as_str()]].concat());
    };
    refuses("qwen3moe", "expert_used_count", 8, &["there are 7 experts"]);
    refuses("qwen3moe", "expert_used_count", 0, &["is 0"]);
    refuses("qwen3moe", "expert_group_count", 2, &["is 2", "engines compute by it"]);
    refuses("qwen3moe", "expert_shared_feed_forward_length", 64, &["is 64", "engines compute by it"]);
    refuses("qwen3moe", "expert_gating_func", 2, &["is 2"]);
    refuses("qwen2moe", "leading_dense_block_count", 1, &["is 1"]);
    let normalised = |kv: &mut Kv| kv.bool("qwen2moe.expert_weights_norm", true);
    folder.write("bad.gguf", model("qwen2moe", &[]).to_bytes_with(normalised));
    folder.refuses("run -m bad.gguf", &["qwen2moe.expert_weights_norm", "which llama.cpp does not do here"]);
}

/// Each fault alone: where it is found, and that it is called by its name.
#[test]
fn each_fault_is_found_and_named() {
    let faults: &[(&str, &str, &[&str])] = &[
        ("qwen3moe", "expert-index-off", &["expert_gate", "expert_up", "expert_down"]),
        ("qwen3moe", "experts-in-other-slots", &["expert_gate", "expert_up", "expert_down"]),
        ("qwen3moe", "expert-weights-not-normalised", &["router_shares"]),
        ("qwen2moe", "expert-weights-normalised", &["router_weights"]),
        ("qwen2moe", "router-scores-as-weights", &["router_weights"]),
        ("qwen3moe", "router-sigmoid", &["router_probs"]),
        ("qwen3moe", "expert-missing", &["experts_out"]),
        ("qwen3moe", "expert-weights-ignored", &["experts_out"]),
        ("qwen3moe", "expert-weights-reversed", &["experts_out"]),
        ("qwen2moe", "shared-gate-missing", &["shared_out"]),
        ("qwen2moe", "gate-sigmoid-missing", &["shared_weight"]),
        ("qwen2moe", "shared-expert-missing", &["ffn_out"]),
        ("qwen2moe", "gate-up-operands-swapped", &["expert_act", "shared_act"]),
    ];
    let mut wrong = Vec::new();
    for (arch, fault, stages) in faults {
        let (code, report, text) =
            folder_with(&model(arch, &[])).judged(&format!("-n 2 --subject cpu --inject {fault}@L01"));
        let expected: Vec<String> = stages.iter().map(|stage| format!("L01.{stage}")).collect();
        let found = report.origins();
        let named = |f: &Value| f["cause"]["name"].as_str().and_then(|n| n.split(':').next()) == Some(fault);
        if code != 1 || found != expected || !report.findings().iter().all(named) {
            wrong.push(format!("{arch} {fault}: exit {code}, {found:?} for {expected:?}\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
