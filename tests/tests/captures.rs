//! Captures on disk: recorded runs are judged like live ones, parts of one are
//! judged honestly, and what is no capture is refused.

use qdiff_tests::synth::Synth;
use qdiff_tests::{qdiff, stderr, stdout};
use serde_json::{Value, json};
use std::path::Path;

fn setup() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Synth::default()
        .write(&folder.path().join("model.gguf"))
        .unwrap();
    folder
}

fn record(folder: &Path, out: &str, extra: &[&str]) {
    let steps = if extra.contains(&"-n") {
        &[][..]
    } else {
        &["-n", "2"]
    };
    let args = [&["record", "-m", "model.gguf", "--out", out], steps, extra].concat();
    let output = qdiff(folder, &args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

fn judge(folder: &Path, extra: &[&str]) -> (i32, Value, String) {
    let mut args = vec!["run", "-m", "model.gguf", "--json", "report.json"];
    args.extend(extra);
    let output = qdiff(folder, &args);
    let code = output.status.code().unwrap();
    assert_ne!(code, 2, "{}", stderr(&output));
    let json = serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    (code, json, stdout(&output))
}

fn statuses(report: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let stages = report["verdict"]["stages"].as_array().unwrap();
    stages
        .iter()
        .map(|s| (text(&s["stage"]), text(&s["status"])))
        .collect()
}

#[test]
fn a_recorded_run_gets_the_verdict_of_the_live_one() {
    let folder = setup();
    let folder = folder.path();
    for (name, fault) in [("clean", None), ("faulty", Some("rope-base@L01"))] {
        let inject: Vec<&str> = fault.map_or(vec![], |f| vec!["--inject", f]);
        // The reference chooses the tokens in a live run: record it too, and
        // the subject on the same ones.
        record(folder, &format!("{name}-llama"), &["--runner", "llama"]);
        record(folder, name, &inject);
        let (live_code, live, _) = judge(folder, &[&["-n", "2"], &inject[..]].concat());
        let subject = format!("capture:{name}");
        let (code, recorded, text) = judge(folder, &["--subject", &subject]);
        assert_eq!(code, live_code, "{text}");
        assert_eq!(code, i32::from(fault.is_some()), "{text}");
        assert_eq!(statuses(&recorded), statuses(&live), "{text}");
        assert!(text.contains("cpu (recorded)"), "{text}");
        if fault.is_some() {
            assert!(text.contains("explains the residual"), "{text}");
        }
    }
    // New tolerances on an old capture.
    let (code, ..) = judge(
        folder,
        &["--subject", "capture:faulty", "--tolerance", "*_rope=5"],
    );
    assert_eq!(code, 0);
}

#[test]
fn two_captures_need_no_engine() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "a", &["-n", "0"]);
    record(folder, "b", &["-n", "0", "--runner", "llama"]);
    let (code, report, text) = judge(
        folder,
        &["--subject", "capture:a", "--reference", "capture:b"],
    );
    assert_eq!(code, 0, "{text}");
    assert_eq!(report["reference"]["name"], "llama.cpp (cpu) (recorded)");
}

/// What was not captured is missing: no pass, and the coverage says so.
#[test]
fn a_part_is_judged_as_a_part() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "part", &["--stages", "q_*,logits"]);
    let (code, report, text) = judge(folder, &["--subject", "capture:part"]);
    assert_eq!(code, 3, "{text}");
    let of = |stage: &str| {
        statuses(&report)
            .into_iter()
            .find(|(s, _)| s == stage)
            .unwrap()
            .1
    };
    assert_eq!(of("L00.q_biased"), "match");
    assert_eq!(of("L00.ffn_down"), "missing");
    let coverage = &report["verdict"]["coverage"];
    assert!(coverage["judged"].as_u64() < coverage["asked"].as_u64());
    assert!(text.starts_with("INCOMPLETE"), "{text}");
}

#[test]
fn what_is_no_capture_is_refused() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "good", &["--stages", "logits"]);
    let refused = |extra: &[&str], expected: &[&str]| {
        let mut args = vec!["run", "-m", "model.gguf", "--json", "none.json"];
        args.extend(extra);
        let output = qdiff(folder, &args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{extra:?}: {message}");
        for part in expected {
            assert!(
                message.contains(part),
                "{extra:?}: `{part}` is not in: {message}"
            );
        }
        assert!(!folder.join("none.json").exists());
    };
    refused(
        &["--subject", "capture:absent"],
        &["absent", "manifest.json and capture.npz"],
    );
    refused(
        &["--subject", "nonsense"],
        &["auto, cpu, cuda or capture:DIR"],
    );
    refused(
        &["--subject", "capture:good", "--inject", "rope-base"],
        &["--inject"],
    );

    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let target = folder.join(name);
        std::fs::create_dir(&target).unwrap();
        std::fs::copy(folder.join("good/capture.npz"), target.join("capture.npz")).unwrap();
        let text = std::fs::read(folder.join("good/manifest.json")).unwrap();
        let mut manifest: Value = serde_json::from_slice(&text).unwrap();
        change(&mut manifest);
        std::fs::write(target.join("manifest.json"), manifest.to_string()).unwrap();
    };
    edit("version", &|m| m["schema_version"] = json!(99));
    refused(
        &["--subject", "capture:version"],
        &["schema_version 99", "record it again"],
    );
    edit("model", &|m| m["model_sha256"] = json!("00"));
    refused(&["--subject", "capture:model"], &["another model", "-m"]);
    edit("arithmetic", &|m| {
        m["arithmetic"]["accumulation"] = json!("f16")
    });
    refused(
        &["--subject", "capture:arithmetic"],
        &["arithmetic.accumulation", "f16"],
    );
    edit("steps", &|m| m["decoded"] = json!([]));
    refused(
        &["--subject", "capture:steps"],
        &["step1/", "belongs to no stage"],
    );
    // The logits of two tokens where the manifest speaks of one: cut short
    // nowhere, but absurdly larger than the stage when there are many.
    edit("short", &|m| m["tokens"] = json!([1]));
    refused(&["--subject", "capture:short"], &["prefill/", "elements"]);
    edit("broken", &|_| ());
    std::fs::write(folder.join("broken/capture.npz"), "no archive").unwrap();
    refused(&["--subject", "capture:broken"], &["broken", "npz"]);

    let again = qdiff(folder, &["record", "-m", "model.gguf", "--out", "good"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));
}
