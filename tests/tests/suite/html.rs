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

/// What every page must show of its report.
fn check(name: &str, seen: &Value, report: &Value) {
    let verdict = &report["verdict"];
    let stages = verdict["stages"].as_array().unwrap();
    assert_eq!(seen["cells"], stages.len(), "{name}");
    assert_eq!(seen["logits"], verdict["logits"].as_array().unwrap().len(), "{name}");
    let (command, filters) = (&report["run"]["command"], &report["run"]["filters"]);
    let repeat = format!("{} {}", command.as_str().unwrap(), filters.as_str().unwrap());
    assert_eq!(seen["command"], repeat.trim_end(), "{name}");
    // The remedy of the first origin is the first that is told.
    let cause = &verdict["findings"][0]["cause"];
    assert_eq!(seen["remedies"][0], cause["remedy"], "{name}");
    // An origin has its elements: subject, f64, reference, difference.
    let elements = verdict["elements"].as_array().unwrap();
    assert_eq!(seen["elements"], if elements.is_empty() { 0 } else { 4 }, "{name}");
    // Every head of every layer with attention maps can be picked.
    let maps = verdict["attention"].as_array().unwrap();
    let heads = maps.iter().filter(|m| m["stage"] == maps[0]["stage"]).count();
    assert_eq!(seen["heads"].as_u64().unwrap_or(0), heads as u64, "{name}");
    // The graph is the report's own: what each stage reads.
    for (stage, told) in seen["graph"].as_object().unwrap() {
        let stage = stages.iter().find(|s| s["stage"] == **stage).unwrap();
        let inputs: Vec<&str> = stage["inputs"].as_array().unwrap().iter().map(|i| i.as_str().unwrap()).collect();
        let read = told.as_str().unwrap().split_once("; reads ").map_or("", |(_, read)| read);
        assert_eq!(read, inputs.join(", "), "{name}: {told}");
    }
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
        ("last", &["--inject", "lm-head-transposed"], "DIVERGED", 1),
        ("poisoned", &["--inject", "rope-base:base=nan@L01"], "DIVERGED", 2),
        ("few", &["--stages", "q_proj", "--positions", "3"], "MATCH", 0),
    ] {
        let report = run(folder, name, extra);
        let seen = drive(folder, &format!("{name}.html"));
        assert_eq!(seen["badge"], badge, "{name}");
        let marked = seen["origins"].as_u64().unwrap();
        assert!(marked >= origins, "{name}: {marked}");
        let elements = seen["elements"].as_u64().unwrap();
        assert_eq!(elements > 0, badge == "DIVERGED", "{name}");
        check(name, &seen, &report);
    }
}

/// Several runs stand in one file behind an overview, the worst first, with what
/// is absent among them.
#[test]
fn several_runs_stand_in_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Synth::default().write(&folder.join("model.gguf")).unwrap();
    run(folder, "clean", &[]);
    run(folder, "partial", &["--stages", "q_rope"]);
    let worst = run(folder, "faulty", &["--inject", "attn-scale-missing@L00"]);
    let files = ["report", "clean.json", "partial.json", "faulty.json"];
    let output = qdiff(folder, &[&files[..], &["--report", "all.html"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let seen = drive(folder, "all.html");
    let overview = &seen["overview"];
    assert_eq!(overview["badge"], "DIVERGED");
    assert_eq!(overview["headline"], "3 runs: 1 DIVERGED, 2 MATCH");
    assert_eq!(overview["rows"].as_array().unwrap().len(), 3);
    assert_eq!(overview["outcomes"], json!(["all 3", "diverged 1", "match 2"]));
    check("the first of several", &seen, &worst);

    // One run of two is no whole: the page begins with what is absent.
    let place = json!({ "batch": "b", "number": 1, "of": 1 });
    let version = &worst["schema_version"];
    let failure = json!({ "schema_version": version, "kind": "failure", "batch": place, "prompt": "long", "error": "<b>it</b> broke" });
    std::fs::write(folder.join("failure.json"), failure.to_string()).unwrap();
    let output = qdiff(folder, &["report", "clean.json", "failure.json", "--report", "part.html"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let overview = &drive(folder, "part.html")["overview"];
    assert_eq!(overview["badge"], "INCOMPLETE");
    assert_eq!(overview["absent"], json!(["Absent: long: <b>it</b> broke"]));
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
    for text in ["story", "remedy"] {
        cause[text] = hostile.into();
    }
    (cause["before"], cause["after"]) = ("NaN".into(), "Infinity".into());
    // A cause's name is no text: one that is none is refused, see `reports.rs`.
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
