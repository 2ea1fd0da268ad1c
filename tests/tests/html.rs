//! The HTML report in a real browser: `tests/html/drive.py` opens it, clicks,
//! types, and fails on anything on the console or over the network.

use qdiff_tests::synth::Synth;
use qdiff_tests::{browse, qdiff, stderr};
use serde_json::{Value, json};
use std::path::Path;

/// What was seen of `page` in Chromium.
fn drive(folder: &Path, page: &str) -> Value {
    serde_json::from_str(&browse(folder, page)).unwrap()
}

fn run(folder: &Path, name: &str, extra: &[&str]) -> Value {
    let (html, json) = (format!("{name}.html"), format!("{name}.json"));
    let args = ["run", "-m", "model.gguf", "-n", "2", "--report", &html, "--report", &json];
    let output = qdiff(folder, &[&args, extra].concat());
    assert_ne!(output.status.code(), Some(2), "{}", stderr(&output));
    serde_json::from_slice(&std::fs::read(folder.join(json)).unwrap()).unwrap()
}

#[test]
fn reports_open_and_drill_in() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Synth::default().write(&folder.join("model.gguf")).unwrap();
    let faults = ["--inject", "attn-scale-missing@L00", "--inject", "lm-head-transposed"];
    for (name, extra, badge, origins) in [
        ("clean", &[][..], "MATCH", 0),
        ("faulty", &faults[..], "DIVERGED", 2),
        ("poisoned", &["--inject", "rope-base:base=nan@L01"], "DIVERGED", 2),
        ("few", &["--stages", "q_proj", "--positions", "3"], "MATCH", 0),
    ] {
        let report = run(folder, name, extra);
        let seen = drive(folder, &format!("{name}.html"));
        assert_eq!(seen["badge"], badge, "{name}");
        assert_eq!(seen["cells"], report["verdict"]["stages"].as_array().unwrap().len(), "{name}");
        let marked = seen["origins"].as_u64().unwrap();
        assert!(marked >= origins, "{name}: {marked}");
        assert_eq!(seen["logits"], report["verdict"]["logits"].as_array().unwrap().len(), "{name}");
        let (command, filters) = (&report["run"]["command"], &report["run"]["filters"]);
        let repeat = format!("{} {}", command.as_str().unwrap(), filters.as_str().unwrap());
        assert_eq!(seen["command"], repeat.trim_end(), "{name}");
    }
}

/// Names that come from files are text, and nothing else, on the page.
#[test]
fn hostile_names_stay_text() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Synth::default().write(&folder.join("model.gguf")).unwrap();
    let mut report = run(folder, "faulty", &["--inject", "attn-scale-missing@L00"]);
    let hostile = "</script></title><script>alert(1)</script><img src=https://example.invalid/x onerror=alert(2)>\
                   <!-- /*DATA*/ TITLE /*SCRIPT*/ ]]> ${alert(3)} \" ' & \u{2028}\u{202e}\0\u{1b}[31m";
    report["model"]["name"] = hostile.into();
    report["run"]["prompt"] = hostile.into();
    report["subject"]["name"] = hostile.into();
    report["run"]["command"] = hostile.into();
    report["machine"]["cpu"] = hostile.into();
    for text in report["run"]["text"].as_object_mut().unwrap().values_mut() {
        *text = hostile.into();
    }
    let cause = report["verdict"]["findings"][0]["cause"].as_object_mut().unwrap();
    for name in ["name", "story", "remedy"] {
        cause[name] = hostile.into();
    }
    (cause["before"], cause["after"]) = ("NaN".into(), "Infinity".into());
    cause["ties"] = json!([hostile]);
    report["weights"]["mismatches"] = json!([{
        "tensor": hostile, "format": hostile, "row": 0, "index": 0, "got": "NaN", "want": 1.0, "rows": 1
    }]);
    std::fs::write(folder.join("hostile.json"), report.to_string()).unwrap();
    let files = ["--report", "hostile.html", "--report", "hostile.xml", "--report", "hostile.md"];
    let output = qdiff(folder, &[&["report", "hostile.json"], &files[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(!output.stdout.contains(&0x1b) && !output.stdout.contains(&0));
    let seen = drive(folder, "hostile.html");
    assert_eq!(seen["badge"], "DIVERGED");
    assert!(seen["headline"].as_str().unwrap().contains("<script>alert(1)</script>"));
    let markdown = std::fs::read_to_string(folder.join("hostile.md")).unwrap();
    let outside: String = markdown.split("```").step_by(2).collect();
    assert!(!outside.contains("<img") && !outside.contains("<script"), "{outside}");
    let xml = std::fs::read_to_string(folder.join("hostile.xml")).unwrap();
    roxmltree::Document::parse(&xml).unwrap();
}
