//! Every command that reports, in every format: one screen, told alike, and JSON
//! that follows its schema.

use qdiff_tests::schema::Schema;
use qdiff_tests::{Folder, folder as model, screen, unwrapped, without_reports};
use serde_json::Value;

/// A command by its schema, its `kind`, how it is called, and its exit code.
const CASES: [(&str, &str, &str, i32); 8] = [
    ("generate", "generation", "generate -m model.gguf -n 3", 0),
    ("logits", "logits", "logits -m model.gguf -n 1 --inject lm-head-transposed", 1),
    ("weights", "weights", "weights model.gguf --inject tensor-mapped-wrong@L01.ffn_gate", 1),
    ("sweep", "sweep", "sweep -m model.gguf -n 2 --sizes 1 --inject mask-missing@L00", 1),
    ("check", "check", "check -m model.gguf --quick --inject tail-skipped@L01.q_proj,p44..", 1),
    ("compare", "comparison", "compare one other", 3),
    ("verify-oracle", "oracle", "verify-oracle -m model.gguf -n 1", 0),
    ("bench", "bench", "qdiff-lab bench -m model.gguf --measure tapped-prefill", 0),
];

fn folder() -> Folder {
    let folder = model();
    folder.record("one", "-n 1 --runner cpu");
    folder.record("other", "-n 1 --runner llama");
    folder
}

#[test]
fn every_command_in_every_format() {
    let folder = folder();
    for (name, kind, command, code) in CASES {
        let (found, mut json, said) =
            folder.told(&format!("{command} --markdown told.md --html told.html --junit told.xml"));
        assert_eq!(found, code, "{name}: {said}");
        assert_eq!(json["kind"], kind, "{name}");
        let schema = Schema::printed(name);
        schema.check(&json).unwrap_or_else(|e| panic!("{name}: {e}"));
        json["schema_version"] = Value::from(1);
        assert!(schema.check(&json).is_err(), "{name}: the version is not checked");

        let xml = folder.text("told.xml");
        let line = verdict(name, &xml);
        let words = unwrapped;
        assert!(words(&said).contains(&words(&line)), "{name}: {line}\n{said}");
        let markdown = folder.text("told.md");
        let told = markdown.replace('\\', "").replace("**", "").replace("&lt;", "<").replace("&amp;", "&");
        assert!(told.contains(&line), "{name}: {line}\n{told}");
        let html = folder.text("told.html");
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

/// A report that an earlier qdiff wrote is read, also with old names of fields.
#[test]
fn a_report_of_version_2_is_read() {
    let folder = model();
    let (code, mut old, now) = folder.judged("-n 1 --inject rope-base:base=10000@L01");
    assert_eq!((code, &old["schema_version"]), (1, &3.into()), "{now}");
    old["schema_version"] = 2.into();
    old["run"].as_object_mut().unwrap().remove("tolerances");
    folder.write("old.json", old.to_string().replace("\"inconclusive\"", "\"vague\""));
    let again = folder.qdiff("report old.json").exits(1).stdout;
    assert_eq!(without_reports(&again), without_reports(&now));
}
