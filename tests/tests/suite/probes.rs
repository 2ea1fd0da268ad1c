//! Linear layers and attention judged by probes: nothing is found that is not there, and nothing lost that the full check finds.

use qdiff_tests::{Told, folder, npz};
use serde_json::{Value, json};

const PROMPT: &str = "--prompt haiku -n 2";

#[test]
fn a_right_engine_is_right() {
    let folder = folder();
    let (code, full, text) = folder.judged(&format!("{PROMPT} --check full"));
    assert_eq!(code, 0, "{text}");
    let (code, probed, text) = folder.judged(&format!("{PROMPT} --check probe"));
    assert_eq!(code, 0, "{text}");
    assert_eq!(full.statuses(), probed.statuses());
    let coverage = |report: &Value, key: &str| report["verdict"]["coverage"][key].clone();
    assert_eq!(coverage(&full, "judged"), coverage(&probed, "judged"));
    assert!(coverage(&full, "probed").is_null());
    assert!(coverage(&probed, "probed")["rows"].as_u64().unwrap() > 0, "{text}");
    assert!(text.contains("by probes"), "{text}");
    for of in ["q_proj", "attn_scores", "attn_weights", "attn_context"] {
        let stages = probed.stages().iter();
        let mut stages = stages.filter(|s| s["stage"].as_str().unwrap().ends_with(of));
        assert!(stages.all(|s| s["subject"]["probed"].as_u64() > Some(0)), "{of}");
    }
    // Of so short a prompt every row is computed.
    let (_, auto, text) = folder.judged(PROMPT);
    assert!(coverage(&auto, "probed").is_null(), "{text}");
}

/// Whatever a fault does to a linear layer, the same rows are wrong, and the same cause is named.
#[test]
fn faults_are_found_as_by_the_full_check() {
    let folder = folder();
    for fault in [
        "tensor-mapped-wrong@L01.ffn_gate",
        "scaled:by=1.0001@L01.ffn_down",
        "one-column-wrong@L00.attn_out",
        "tail-skipped@L01.ffn_up",
        "one-row-wrong@logits",
        "mask-off-by-one@L01.attn_weights",
        "attn-scale-wrong@L00.attn_weights",
        "gqa-head-map@L01.attn_scores",
        "scaled:by=1.0001@L00.attn_scores",
        "scaled:by=1.0001@L01.attn_context",
    ] {
        let judged = |mode: &str| {
            let (code, report, text) = folder.judged(&format!("{PROMPT} --inject {fault} --check {mode}"));
            assert_eq!(code, 1, "{fault}: {text}");
            let findings = report.findings();
            let findings: Vec<Value> = findings.iter().map(|f| json!([f["stage"], f["cause"]["name"]])).collect();
            let bad = report.stages().iter();
            let bad: Vec<Value> = bad.map(|s| s["subject"]["bad_positions"].clone()).collect();
            (
                findings,
                bad,
                report.statuses().into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect::<Vec<_>>(),
            )
        };
        assert_eq!(judged("probe"), judged("full"), "{fault}");
    }
}

/// One element of one row, off by what the screen says is seen.
#[test]
fn a_single_element_is_seen() {
    let folder = folder();
    folder.record("right", "--prompt haiku -n 0");
    let judged =
        |of: &str, mode: &str| folder.told(&format!("run -m model.gguf --subject capture:{of} --check {mode}"));
    let (code, probed, text) = judged("right", "probe");
    assert_eq!(code, 0, "{text}");
    let sees = probed["verdict"]["coverage"]["probed"]["sees"].as_f64().unwrap();
    let (_, full, _) = judged("right", "full");
    for stage in ["L00.q_proj", "L01.attn_out", "L01.ffn_gate", "L00.ffn_down", "logits"] {
        // Four bounds are allowed of one element.
        let worst = &full.stage(stage)["subject"]["worst"];
        let off = (sees + 1.0) * worst["allowed"].as_f64().unwrap() / 4.0;
        let [row, index] = [&worst["place"]["position"], &worst["index"]].map(|v| v.as_u64().unwrap() as usize);
        let rows = full.stage(stage)["subject"]["rows"].as_u64().unwrap() as usize;
        npz::tamper(&folder.copied("right", stage), &format!("prefill/{stage}"), |x| {
            let element = &mut x[row * (x.len() / rows) + index];
            *element = (f64::from(*element) + off) as f32;
        });
        let (code, report, text) = judged(stage, "probe");
        assert_eq!(code, 1, "{stage}: {text}");
        let of = report.stage(stage);
        assert_eq!((&of["status"], &of["subject"]["bad_positions"]), (&json!("diverged"), &json!([row])), "{text}");
    }
}

/// One element of one row of attention: what the full check allows it says how far off it is.
#[test]
fn a_single_element_of_attention_is_seen() {
    let folder = folder();
    folder.record("right", "--prompt haiku -n 0");
    let judged = |of: &str, mode: &str, stage: &str| {
        let (_, report, text) = folder.told(&format!("run -m model.gguf --subject capture:{of} --check {mode}"));
        (report.stage(stage).clone(), text)
    };
    let (embed, _) = judged("right", "full", "embed");
    let tokens = embed["subject"]["rows"].as_u64().unwrap() as usize;
    for stage in ["L00.attn_scores", "L01.attn_weights", "L00.attn_context"] {
        let (right, text) = judged("right", "probe", stage);
        assert_eq!(right["status"], "match", "{text}");
        let sees = right["subject"]["sees"].as_f64().unwrap();
        // The third element of the second head, or of the only part, of the last token.
        let heads = right["subject"]["rows"].as_u64().unwrap() as usize / tokens;
        let row = if heads > 1 { 2 * tokens - 1 } else { tokens - 1 };
        let changed = |off: f64| {
            let to = format!("{stage}-{off}");
            npz::tamper(&folder.copied("right", &to), &format!("prefill/{stage}"), |x| {
                let element = &mut x[row * (x.len() / (heads * tokens)) + 2];
                *element = (f64::from(*element) + off) as f32;
            });
            to
        };
        let (full, text) = judged(&changed(1.0), "full", stage);
        let worst = &full["subject"]["worst"];
        assert_eq!((&full["status"], &worst["index"]), (&json!("diverged"), &json!(2)), "{text}");
        // Four bounds are allowed of one element, which may well raise doubt earlier.
        let off = (sees.max(4.0) + 1.0) * worst["allowed"].as_f64().unwrap() / 4.0;
        let (probed, text) = judged(&changed(off), "probe", stage);
        let found = (&probed["status"], &probed["subject"]["bad_positions"]);
        assert_eq!(found, (&json!("diverged"), &json!([tokens - 1])), "{stage} {off}: {text}");
    }
}

#[test]
fn verdicts_are_timed_by_tokens_layers_models_and_check() {
    let folder = folder();
    let (code, report, text) =
        folder.told("qdiff-lab bench -m model.gguf --measure verdict --also model.gguf --lengths 8,16 --rounds 1");
    assert_eq!(code, 0, "{text}");
    // Two models, two lengths, two checks; of the shorter one layer and both.
    for (of, cells) in [("verdicts", ["tokens", "elements"]), ("layers", ["tokens", "layers"])] {
        let rows = report[of].as_array().unwrap();
        assert_eq!(rows.len(), 8, "{of}: {text}");
        for row in rows {
            assert!(
                cells.iter().all(|cell| row[cell].as_u64() > Some(0)) && row["judging"].as_f64() > Some(0.0),
                "{row}"
            );
        }
    }
    assert!(text.contains("from 8 to 16 tokens judging with probes grows"), "{text}");
    folder.refuses_options("qdiff-lab bench -m model.gguf --lengths 8", &["'--lengths' says nothing about what"]);
    folder.refuses("qdiff-lab bench -m model.gguf --measure verdict --lengths 0", &["--lengths"]);
}
