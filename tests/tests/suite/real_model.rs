//! The real 491 MB model, end to end. `./scripts/test` fetches it.

use qdiff_tests::{qdiff, real_model, stderr, stdout, told};
use serde_json::Value;

fn run(extra: &[&str]) -> (i32, Value, String) {
    let folder = tempfile::tempdir().unwrap();
    told(folder.path(), &[&["run", "-m", &real_model()], extra].concat())
}

fn stages(report: &Value) -> &Vec<Value> {
    report["verdict"]["stages"].as_array().unwrap()
}

#[test]
fn the_haiku_matches_in_every_stage() {
    let (code, report, text) = run(&["--prompt", "haiku"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("MATCH"), "{text}");
    assert_eq!(report["run"]["tokens"].as_array().unwrap().len(), 16);
    assert_eq!(report["run"]["tokens"][0], 151_644);
    assert_eq!(report["run"]["decoded"].as_array().unwrap().len(), 8);
    // 22 stages in each of 24 layers, and three outside them.
    assert_eq!(stages(&report).len(), 24 * 22 + 3);
    let coverage = &report["verdict"]["coverage"];
    assert_eq!(coverage["asked"], coverage["judged"]);
    for stage in stages(&report) {
        assert_eq!(stage["status"], "match", "{stage}");
        for side in ["subject", "reference"] {
            // f32 rounding level, whatever the tolerance table says.
            let residual = stage[side]["residual"].as_f64().unwrap();
            assert!(residual < 2e-5, "{side} of {}: {residual}", stage["stage"]);
        }
    }
}

#[test]
fn faults_are_named_at_their_stage_and_layer() {
    for (fault, first, origins) in [
        ("qkv-bias-omitted", "L00.q_biased", 72),
        ("qkv-weight-transposed@L07", "L07.q_proj", 3),
        ("lm-head-transposed", "logits", 1),
        ("kv-position-stuck", "L00.k_cache", 48),
        ("rope-base@L23", "L23.q_rope", 2),
        ("attn-scale-missing@L03", "L03.attn_weights", 1),
        ("gate-up-operands-swapped@L11", "L11.ffn_act", 1),
        ("logits-stale", "logits", 1),
    ] {
        let (code, report, text) = run(&["--inject", fault, "-n", "2"]);
        assert_eq!(code, 1, "{fault}\n{text}");
        let findings = report["verdict"]["findings"].as_array().unwrap();
        assert_eq!(findings[0]["stage"], first, "{fault}\n{text}");
        assert_eq!(findings.len(), origins, "{fault}\n{text}");
        let name = fault.split('@').next().unwrap();
        assert!(findings[0]["cause"]["name"].as_str().unwrap().starts_with(name), "{fault}");
        for stage in stages(&report) {
            let status = stage["status"].as_str().unwrap();
            let expected = if stage["origin"] == true { ["diverged"; 2] } else { ["inherited", "match"] };
            assert!(expected.contains(&status), "{fault}: {} is {status}", stage["stage"]);
        }
    }
}

#[test]
fn llama_cpp_on_f32_weights_meets_the_oracle() {
    let folder = tempfile::tempdir().unwrap();
    let output = qdiff(folder.path(), &["verify-oracle", "-m", &real_model(), "-n", "2"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(text.starts_with("MATCH: llama.cpp on F32 weights meets f64 in all 531 stages"), "{text}");
}

#[test]
fn weights_and_inspect() {
    let folder = tempfile::tempdir().unwrap();
    let weights = qdiff(folder.path(), &["weights", &real_model()]);
    assert!(stdout(&weights).starts_with("MATCH: 291 tensors"), "{}", stdout(&weights));
    let inspect = stdout(&qdiff(folder.path(), &["inspect", &real_model()]));
    for part in ["qwen2.rope.freq_base = 1000000", "Q5_0     133 tensors", "uses 291 of 291 tensors", "separate head"] {
        assert!(inspect.contains(part), "`{part}` is not in:\n{inspect}");
    }
}
