//! Whole runs on synthetic models: every block format, both architectures,
//! every mutation, and what the screen shows.

use qdiff::runners::{LLAMA, Reads};
use qdiff_engine::model::{Node, Role, qwen2, skeleton};
use qdiff_engine::ops::Op;
use qdiff_engine::quant::GgmlType;
use qdiff_tests::synth::Synth;
use qdiff_tests::{Folder, Told, folder, folder_with, screen};
use serde_json::Value;

fn run(folder: &Folder, extra: &str) -> (i32, Value, String) {
    folder.judged(&format!("-n 3 {extra}"))
}

/// No false alarm: both engines do their mathematics in every stage, in every
/// block format. The strength of the check is shown by the faults below.
#[test]
fn every_block_format_matches() {
    for &weight_type in GgmlType::ALL_SUPPORTED {
        let folder = folder_with(&Synth { weight_type, ..Synth::default() });
        if LLAMA.reading(weight_type) == Reads::Refused {
            folder.refuses(
                "run -m model.gguf --tokens 1,2,3 -n 0",
                &["blk.0.", &weight_type.to_string(), "--reference none"],
            );
            assert_eq!(run(&folder, "--reference none").0, 3, "{weight_type:?}");
            continue;
        }
        let (code, report, text) = run(&folder, "");
        assert_eq!(code, 0, "{weight_type:?}\n{text}");
        let coverage = &report["verdict"]["coverage"];
        assert_eq!(coverage["asked"], coverage["judged"], "{weight_type:?}");
        assert!(coverage["asked"].as_u64().unwrap() > 1000, "{weight_type:?}");
        assert_eq!(report["weights"]["mismatches"], serde_json::json!([]), "{weight_type:?}");
    }
}

#[test]
fn a_tied_head_and_qwen3_match() {
    for model in [
        Synth { tied: true, ..Synth::default() },
        Synth { arch: "qwen3", ..Synth::default() },
        Synth { arch: "qwen3", tied: true, weight_type: GgmlType::Q4_K, n_heads: 8, ..Synth::default() },
    ] {
        let (code, _, text) = run(&folder_with(&model), "");
        assert_eq!(code, 0, "{model:?}\n{text}");
    }
}

#[test]
fn the_oracle_holds_on_both_architectures() {
    for arch in ["qwen2", "qwen3"] {
        let folder = folder_with(&Synth { arch, weight_type: GgmlType::Q6_K, ..Synth::default() });
        let said = folder.qdiff("verify-oracle -m model.gguf -n 2").exits(0);
        assert!(said.stdout.starts_with("MATCH"), "{said}");
    }
}

/// Injected alone in one layer, a fault is seen where it is and nowhere else: the origins are the stages of that
/// layer that the graph has of its kind, the screen opens with the first of them, and what explains them is of
/// the right sort.
///
/// That the cause has the injected name is a round trip: fault and hypothesis are one function. It shows that no
/// other hypothesis comes first, and not that a real bug would be recognised; `tests/score.rs` measures that with
/// faults that share no code with the hypotheses.
#[test]
fn each_fault_is_found_and_named() {
    use {Op::*, Role::*};
    type Places = fn(&Node) -> bool;
    let folder = folder_with(&Synth { n_layers: 3, ..Synth::default() });
    let graph = skeleton(qwen2::graph, 3);
    let mut missed = Vec::new();
    let faults: [(&str, Option<u16>, Places); 31] = [
        ("qkv-bias-omitted@L01", Some(1), |n| n.op == Bias),
        ("qkv-weight-transposed@L02", Some(2), |n| n.op == Linear && matches!(n.role, Query | Key | Value)),
        ("lm-head-transposed", None, |n| n.role == Logits),
        ("kv-position-stuck@L00", Some(0), |n| matches!(n.op, KvCache(_))),
        ("rope-base@L01", Some(1), |n| matches!(n.op, Rope(_))),
        ("attn-scale-missing@L01", Some(1), |n| matches!(n.op, AttnWeights(_))),
        ("gate-up-operands-swapped@L00", Some(0), |n| n.op == SwiGlu),
        ("logits-stale", None, |n| n.role == Logits),
        ("lm-head-ld", None, |n| n.role == Logits),
        ("embed-transposed", None, |n| n.op == Embed),
        ("gate-up-weights-swapped@L01", Some(1), |n| n.op == Linear && matches!(n.role, Gate | Up)),
        ("rms-weight-missing@L01", Some(1), |n| matches!(n.op, RmsNorm(_))),
        ("gelu-for-silu@L01", Some(1), |n| n.op == SwiGlu),
        ("residual-missing@L01", Some(1), |n| n.op == Residual),
        ("rope-pairing@L01", Some(1), |n| matches!(n.op, Rope(_))),
        ("rope-position-off-by-one@L01", Some(1), |n| matches!(n.op, Rope(_))),
        ("rope-not-on-k@L00", Some(0), |n| matches!((&n.op, n.role), (Rope(_), Key))),
        ("rope-on-v@L01", Some(1), |n| matches!((&n.op, n.role), (KvCache(_), Value))),
        ("decode-offset@L01", Some(1), |n| matches!(n.op, Rope(_))),
        ("rope-base:base=123456@L01", Some(1), |n| matches!(n.op, Rope(_))),
        ("softmax-lanes-dropped@L02", Some(2), |n| matches!(n.op, AttnWeights(_))),
        ("v-cache-layout@L00", Some(0), |n| matches!(n.op, AttnContext(_))),
        ("residual-wrong-side@L01", Some(1), |n| n.op == Residual),
        ("heads-misplaced@L01.q_rope", Some(1), |n| matches!((&n.op, n.role), (Rope(_), Query))),
        ("tail-skipped:from=200,left=1@L01.q_proj", Some(1), |n| n.op == Linear && n.role == Query),
        ("one-head-wrong:head=3@L01.q_proj", Some(1), |n| n.op == Linear && n.role == Query),
        ("one-head-wrong:head=1@L01.attn_weights", Some(1), |n| matches!(n.op, AttnWeights(_))),
        ("kq-f16-overflow@L01", Some(1), |n| matches!(n.op, AttnScores(_))),
        ("attn-uniform@L01", Some(1), |n| matches!(n.op, AttnScores(_))),
        ("mask-missing@L01", Some(1), |n| matches!(n.op, AttnWeights(_))),
        ("gqa-head-map@L01", Some(1), |n| matches!(n.op, AttnScores(_) | AttnContext(_))),
    ];
    for (fault, layer, places) in faults {
        let (code, report, text) = run(&folder, &format!("--inject {fault}"));
        let there = graph.nodes.iter().filter(|n| n.id.layer == layer && places(n));
        let there: Vec<String> = there.map(|n| n.id.to_string()).collect();
        let found = report.origins();
        if code != 1 || found != there || !text.starts_with(&format!("DIVERGED at {}", there[0])) {
            missed.push(format!("{fault}: exit {code}, origins {found:?} for {there:?}\n{text}"));
        }
        let name = fault.split(['@', ':']).next().unwrap();
        let kind = match name {
            "kq-f16-overflow" => "rounding",
            "one-head-wrong" => "place",
            _ => "value",
        };
        for finding in report.findings() {
            let cause = &finding["cause"];
            if cause["name"].as_str().and_then(|c| c.split(':').next()) != Some(name) || cause["kind"] != kind {
                missed.push(format!("{fault}: explained as {cause} ({})", finding["shape"]));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The weight of another layer, stage by stage: each stage that has one.
#[test]
fn a_weight_of_another_layer_is_found() {
    let folder = folder_with(&Synth { n_layers: 3, ..Synth::default() });
    let (code, report, text) = run(&folder, "--inject tensor-mapped-wrong@L01");
    assert_eq!(code, 1, "{text}");
    let found = report.origins();
    assert_eq!(found[0], "L01.attn_norm");
    assert!(found.iter().all(|s| s.starts_with("L01.")), "{found:?}");
    // Two norms, seven matrices, three biases.
    assert_eq!(found.len(), 12, "{found:?}");
    for finding in report.findings() {
        assert_eq!(finding["cause"]["name"], "tensor-mapped-wrong:off=-1", "{finding}");
    }
}

/// What a stage computed a step before, once for every stage of a layer.
#[test]
fn stale_stages_are_found_at_decode() {
    let folder = folder();
    for stage in ["q_proj", "attn_norm", "k_rope", "attn_out", "ffn_act", "layer_out"] {
        let fault = format!("stale-from-previous-step@L01.{stage}");
        let (code, report, text) = run(&folder, &format!("--inject {fault}"));
        assert_eq!(code, 1, "{stage}\n{text}");
        assert_eq!(report.origins(), [format!("L01.{stage}")], "{text}");
        assert!(text.contains("from decode step 1 on"), "{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("(stale-from-previous-step)"), "{text}");
        assert!(flat.contains("it explains the residual"), "{text}");
    }
}

#[test]
fn the_head_norm_of_qwen3_is_missed() {
    let folder = folder_with(&Synth { arch: "qwen3", ..Synth::default() });
    let (code, report, text) = run(&folder, "--inject qk-norm-omitted@L00");
    assert_eq!(code, 1, "{text}");
    assert_eq!(report.origins(), ["L00.q_normed", "L00.k_normed"]);
    assert!(text.contains("the norm over each head is left out"), "{text}");
}

/// Several bugs at once are all found, each at its own stage.
#[test]
fn two_faults_are_two_origins() {
    let folder = folder();
    let (code, report, _) = run(&folder, "--inject attn-scale-missing@L00 --inject gate-up-operands-swapped@L01");
    assert_eq!(code, 1);
    assert_eq!(report.origins(), ["L00.attn_weights", "L01.ffn_act"]);
}

/// NaN is never a pass, from any source and under any filter.
#[test]
fn poison_is_an_origin_where_it_is_first_seen() {
    let folder = folder_with(&Synth { n_layers: 3, ..Synth::default() });
    let fault = "--inject rope-base:base=nan@L01";
    let (code, report, text) = run(&folder, fault);
    assert_eq!(code, 1, "{text}");
    assert_eq!(report.origins(), ["L01.q_rope", "L01.k_rope"], "{text}");
    let (code, _, text) = run(&folder, &format!("{fault} --layers 2"));
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("DIVERGED at L02.attn_norm"), "{text}");
}

/// A rule too tight for both sides convicts the subject, not the reference.
#[test]
fn a_rule_that_both_miss_is_no_dispute() {
    let folder = folder();
    let (code, report, text) = run(&folder, "--tolerance L00.ffn_down=1e-12");
    assert_eq!(code, 1, "{text}");
    assert_eq!(report.origins(), ["L00.ffn_down"], "{text}");
}

/// Filters reduce the judged stages, and the report says so.
#[test]
fn filters_narrow_and_say_so() {
    let folder = folder();
    let fault = "--inject gate-up-operands-swapped@L01";
    let (code, report, text) = run(&folder, &format!("{fault} --stages attn_* --layers 0"));
    assert_eq!(code, 0, "{text}");
    assert_eq!(report.stages().len(), 6);
    assert!(text.contains("of 6 out of 47 stages"), "{text}");
    let (code, ..) = run(&folder, &format!("{fault} --stages ffn_act"));
    assert_eq!(code, 1);
    let (code, report, _) = run(&folder, "--inject rope-base@L00 --positions 0");
    assert_eq!(code, 0, "position 0 does not rotate: {report}");
}

/// The first screen, with figures, hashes and paths struck out.
#[test]
fn the_screen() {
    let folder = folder();
    // A wide screen: in a narrow one, the widths of a machine's figures decide how far columns are apart.
    let line = |extra| format!("run -m model.gguf -n 3 --json report.json {extra}");
    let run = |extra| folder.qdiff_with(&[("COLUMNS", "160")], &line(extra)).stdout;
    screen().bind(|| {
        insta::assert_snapshot!("clean", run("--stages *_proj,*_rope,layer_out,logits"));
        insta::assert_snapshot!("faulty", run("--inject qkv-bias-omitted"));
    });
}
