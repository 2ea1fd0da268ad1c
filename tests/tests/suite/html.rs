//! The HTML report in a real browser: `tests/html/drive.py` opens it, clicks,
//! types, and fails on anything on the console or over the network.

use qdiff_tests::{Folder, folder};
use serde_json::{Value, json};

fn run(folder: &Folder, name: &str, extra: &str) -> Value {
    folder.judged(&format!("-n 2 --report {name}.html --report {name}.json {extra}"));
    folder.json(&format!("{name}.json"))
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
    // The remedy of the first origin is the first on the page.
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
    let folder = folder();
    let cases = [
        ("clean", "", "MATCH", 0),
        ("faulty", "--inject attn-scale-missing@L00 --inject lm-head-transposed", "DIVERGED", 2),
        ("last", "--inject lm-head-transposed", "DIVERGED", 1),
        ("poisoned", "--inject rope-base:base=nan@L01", "DIVERGED", 2),
        ("few", "--stages q_proj --positions 3", "MATCH", 0),
        // One row, as of a decode step: it was drawn as a strip.
        ("row", "--inject lm-head-transposed --positions 3", "DIVERGED", 1),
    ];
    let reports = cases.map(|(name, extra, ..)| run(&folder, name, extra));
    let seen = folder.browse(cases.map(|(name, ..)| name));
    for (((name, _, badge, origins), report), seen) in cases.into_iter().zip(&reports).zip(&seen) {
        assert_eq!(seen["badge"], badge, "{name}");
        let marked = seen["origins"].as_u64().unwrap();
        assert!(marked >= origins, "{name}: {marked}");
        let elements = seen["elements"].as_u64().unwrap();
        assert_eq!(elements > 0, badge == "DIVERGED", "{name}");
        check(name, seen, report);
    }

    // One file has several runs behind an overview, the worst first, with what is absent among them.
    let worst = folder.json("faulty.json");
    folder.qdiff("report clean.json few.json faulty.json --report all.html").exits(1);
    // A fault that several share is reported once.
    folder.qdiff("report last.json clean.json row.json --report common.html").exits(1);
    // One run of two is no whole: the page begins with what is absent.
    let place = json!({ "batch": "b", "number": 1, "of": 1 });
    let version = &worst["schema_version"];
    let failure = json!({ "schema_version": version, "kind": "failure", "batch": place, "prompt": "long", "error": "<b>it</b> broke" });
    folder.write("failure.json", failure.to_string());
    folder.qdiff("report clean.json failure.json --report part.html").exits(2);
    let [seen, common, part] = folder.browse(["all", "common", "part"]);
    let overview = &seen["overview"];
    assert_eq!(overview["badge"], "DIVERGED");
    assert_eq!(overview["headline"], "3 runs: 1 DIVERGED, 2 MATCH");
    assert_eq!(overview["rows"].as_array().unwrap().len(), 3);
    assert_eq!(overview["outcomes"], json!(["all 3", "diverged 1", "match 2"]));
    assert_eq!(overview["common"], json!([]));
    check("the first of several", &seen, &worst);
    let common = &common["overview"]["common"];
    let told = common[0].as_str().unwrap();
    assert!(told.starts_with("One cause, the same in 2 of 3 runs: ") && told.contains(", first at logits: "), "{told}");
    assert_eq!(common.as_array().unwrap().len(), 1, "{told}");
    let overview = &part["overview"];
    assert_eq!(overview["badge"], "INCOMPLETE");
    assert_eq!(overview["absent"], json!(["Absent: long: <b>it</b> broke"]));
}

/// Names that come from files are text, and nothing else, on the page.
#[test]
fn hostile_names_stay_text() {
    let folder = folder();
    let mut report = run(&folder, "faulty", "--inject attn-scale-missing@L00");
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
    folder.write("hostile.json", report.to_string());
    let files = "--report hostile.html --report hostile.xml --report hostile.md";
    let said = folder.qdiff(&format!("report hostile.json {files}")).exits(1);
    assert!(!said.stdout.contains(['\u{1b}', '\0']));
    let [seen] = folder.browse(["hostile"]);
    assert_eq!(seen["badge"], "DIVERGED");
    assert!(seen["headline"].as_str().unwrap().contains("<script>alert(1)</script>"));
    let markdown = folder.text("hostile.md");
    let outside: String = markdown.split("```").step_by(2).collect();
    assert!(!outside.contains("<img") && !outside.contains("<script"), "{outside}");
    roxmltree::Document::parse(&folder.text("hostile.xml")).unwrap();
}
