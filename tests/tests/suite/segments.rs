//! Stages whose operands were not captured are judged over the segment from
//! the nearest captured ones: clean runs pass, faults are found in the segment
//! that holds them.

use qdiff_tests::npz::rewrite;
use qdiff_tests::{Folder, folder};

/// Records a run, and leaves of its arrays those that `keep` accepts.
fn thin(folder: &Folder, out: &str, extra: &str, keep: impl Fn(&str) -> bool) {
    folder.record(out, &format!("-n 3 {extra}"));
    rewrite(&folder.join(out).join("capture.npz"), |name, npy| {
        let stage = name.split('/').next_back().unwrap();
        keep(stage).then_some(npy)
    });
}

/// What fused engines and third-party dumps hand out: layer outputs, and
/// perhaps the middle of the layer and the caches.
const TAPS: [&[&str]; 3] = [
    &["layer_out", "logits"],
    &["attn_residual", "layer_out", "logits"],
    &["k_cache", "v_cache", "attn_residual", "layer_out", "logits"],
];

fn keeps(taps: &[&str], stage: &str) -> bool {
    taps.iter().any(|t| stage == *t || stage.ends_with(&format!(".{t}")))
}

#[test]
fn a_clean_run_passes_over_segments() {
    let folder = folder();
    for (i, taps) in TAPS.iter().enumerate() {
        for runner in ["cpu", "llama"] {
            let name = format!("{runner}{i}");
            thin(&folder, &name, &format!("--runner {runner}"), |s| keeps(taps, s));
            let (code, report, text) = folder.judged(&format!("--subject capture:{name}"));
            assert_eq!(code, 0, "{taps:?}\n{text}");
            let coverage = &report["verdict"]["coverage"];
            assert_eq!(coverage["judged"], coverage["asked"], "{text}");
            assert!(coverage["within"].as_u64() > Some(0), "{text}");
            assert!(text.contains("checked as part of the next dumped stage"), "{text}");
            for stage in report["verdict"]["stages"].as_array().unwrap() {
                let status = stage["status"].as_str().unwrap();
                assert!(["match", "covered"].contains(&status), "{stage}");
            }
        }
    }
}

/// The same of a live subject of which little is tapped.
#[test]
fn a_live_subject_with_few_taps() {
    let folder = folder();
    let judge = |extra: &str| folder.judged(&format!("--subject cpu --taps L*.layer_out,logits {extra}"));
    let (code, report, text) = judge("");
    assert_eq!(code, 0, "{text}");
    let coverage = &report["verdict"]["coverage"];
    assert_eq!(coverage["judged"], coverage["asked"], "{text}");
    assert!(coverage["within"].as_u64() > Some(0), "{text}");
    assert!(text.contains("--taps 'L*.layer_out,logits'"), "{text}");
    let (code, _, text) = judge("--inject rope-base@L01");
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("DIVERGED at L01.attn_norm..L01.layer_out"), "{text}");
    folder.record("c", "--runner cpu");
    let taps = "run -m model.gguf --subject capture:c --taps embed";
    folder.refuses(taps, &["--taps is about a subject that runs"]);
}

#[test]
fn a_fault_is_found_in_its_segment() {
    let folder = folder();
    for (fault, taps, segment, inside) in [
        ("rope-base@L01", 0, "L01.attn_norm..L01.layer_out", "L01.q_rope L01.k_rope"),
        ("gelu-for-silu@L00", 1, "L00.ffn_norm..L00.layer_out", "L00.ffn_act"),
        ("gqa-head-map@L01", 1, "L01.attn_norm..L01.attn_residual", "L01.attn_scores L01.attn_context"),
        ("attn-scale-missing@L00", 2, "embed..L00.attn_residual", "L00.attn_weights"),
        ("rms-weight-missing@final_norm", 2, "final_norm..logits", "final_norm"),
    ] {
        let out = fault.replace('@', "-");
        thin(&folder, &out, &format!("--inject {fault}"), |s| keeps(TAPS[taps], s));
        let (code, report, text) = folder.judged(&format!("--subject capture:{out}"));
        assert_eq!(code, 1, "{fault}\n{text}");
        let findings = report["verdict"]["findings"].as_array().unwrap();
        let (_, last) = segment.split_once("..").unwrap();
        let stages: Vec<&str> = findings.iter().map(|f| f["stage"].as_str().unwrap()).collect();
        assert_eq!(stages, [last], "{fault}\n{text}");
        assert!(text.starts_with(&format!("DIVERGED at {segment}")), "{text}");
        let (name, _) = fault.split_once('@').unwrap();
        assert!(findings[0]["cause"]["name"].as_str().is_some_and(|n| n.starts_with(name)), "{fault}\n{text}");
        let named: Vec<&str> = findings[0]["inside"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
        assert_eq!(named.join(" "), inside, "{fault}\n{text}");
    }
}
