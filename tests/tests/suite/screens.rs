//! Every command that reports, in every format: one screen, told alike, and JSON
//! that follows its schema.

use qdiff_tests::schema::Schema;
use qdiff_tests::synth::Synth;
use qdiff_tests::{qdiff, screen, stderr, stdout};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// A command by its schema, its `kind`, how it is called, and its exit code.
type Case = (&'static str, &'static str, &'static [&'static str], i32);

const CASES: &[Case] = &[
    ("generate", "generation", &["generate", "-m", "model.gguf", "-n", "3"], 0),
    ("logits", "logits", &["logits", "-m", "model.gguf", "-n", "1", "--inject", "lm-head-transposed"], 1),
    ("weights", "weights", &["weights", "model.gguf", "--inject", "tensor-mapped-wrong@L01.ffn_gate"], 1),
    ("sweep", "sweep", &["sweep", "-m", "model.gguf", "-n", "2", "--sizes", "1", "--inject", "mask-missing@L00"], 1),
    ("compare", "comparison", &["compare", "one", "other"], 3),
    ("verify-oracle", "oracle", &["verify-oracle", "-m", "model.gguf", "-n", "1"], 0),
    ("bench", "bench", &["bench", "-m", "model.gguf", "--measure", "tapped-prefill"], 0),
];

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    Synth::default().write(&folder.path().join("model.gguf")).unwrap();
    for (runner, out) in [("cpu", "one"), ("llama", "other")] {
        let args = ["record", "-m", "model.gguf", "-n", "1", "--runner", runner, "--out", out];
        let output = qdiff(folder.path(), &args);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    folder
}

fn text(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn every_command_in_every_format() {
    let folder = folder();
    let folder = folder.path();
    for (name, kind, args, code) in CASES {
        let files = ["--json", "told.json", "--markdown", "told.md", "--html", "told.html", "--junit", "told.xml"];
        let output = qdiff(folder, &[args, &files[..]].concat());
        let said = stdout(&output);
        assert_eq!(output.status.code(), Some(*code), "{name}: {said}{}", stderr(&output));

        let json: Value = serde_json::from_str(&text(folder, "told.json")).unwrap();
        assert_eq!(json["kind"], *kind, "{name}");
        let schema = Schema::printed(name);
        schema.check(&json).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut broken = json.clone();
        broken["schema_version"] = Value::from(1);
        assert!(schema.check(&broken).is_err(), "{name}: the version is not checked");

        let xml = text(folder, "told.xml");
        let line = verdict(name, &xml);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&said).contains(&words(&line)), "{name}: {line}\n{said}");
        let markdown = text(folder, "told.md");
        let told = markdown.replace('\\', "").replace("**", "").replace("&lt;", "<").replace("&amp;", "&");
        assert!(told.contains(&line), "{name}: {line}\n{told}");
        let html = text(folder, "told.html");
        assert!(!html.contains("<script") && html.contains("default-src 'none'"), "{name}");
        let told = html.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
        assert!(told.contains(&line), "{name}: {line}\n{html}");

        steady().bind(|| {
            insta::assert_snapshot!(format!("{name}.screen"), said);
            insta::assert_snapshot!(format!("{name}.md"), markdown);
            insta::assert_snapshot!(format!("{name}.xml"), xml);
            insta::assert_snapshot!(format!("{name}.html"), html);
        });
    }
}

/// The verdict of a JUnit file that holds what it counts.
fn verdict(name: &str, xml: &str) -> String {
    let document = roxmltree::Document::parse(xml).unwrap();
    let root = document.root_element();
    let count = |tag: &str| document.descendants().filter(|n| n.has_tag_name(tag)).count().to_string();
    for (attribute, tag) in
        [("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")]
    {
        assert_eq!(root.attribute(attribute).unwrap(), count(tag), "{name}: {attribute}");
    }
    assert_ne!(root.attribute("tests"), Some("0"), "{name}: nothing is checked");
    let said =
        document.descendants().find(|n| n.has_tag_name("system-out") && n.parent().unwrap().has_tag_name("testsuite"));
    said.and_then(|n| n.text()).unwrap().to_owned()
}

/// What differs from machine to machine struck out: as on a screen, and what
/// random weights say.
fn steady() -> insta::Settings {
    let mut settings = screen();
    settings.add_filter(r#"('[^'\n]*'|"[^"\n]*"|&quot;.*&quot;) (#|by|\(|at)"#, "TEXT $2");
    settings
}

/// A report that an earlier qdiff wrote is read, whatever its fields were called.
#[test]
fn a_report_of_version_2_is_read() {
    let folder = folder();
    let folder = folder.path();
    let args = ["run", "-m", "model.gguf", "-n", "1", "--inject", "rope-base:base=10000@L01", "--json", "now.json"];
    let now = qdiff(folder, &args);
    assert_eq!(now.status.code(), Some(1), "{}", stderr(&now));
    let old = text(folder, "now.json");
    let old = old.replace("\"schema_version\": 3", "\"schema_version\": 2").replace("\"inconclusive\"", "\"vague\"");
    let mut old: Value = serde_json::from_str(&old).unwrap();
    old["run"].as_object_mut().unwrap().remove("tolerances");
    assert_eq!(old["schema_version"], 2);
    std::fs::write(folder.join("old.json"), old.to_string()).unwrap();
    let again = qdiff(folder, &["report", "old.json"]);
    assert_eq!(again.status.code(), Some(1), "{}", stderr(&again));
    let without =
        |s: &str| -> Vec<String> { s.lines().filter(|l| !l.starts_with("report ")).map(str::to_owned).collect() };
    assert_eq!(without(&stdout(&again)), without(&stdout(&now)));
}
