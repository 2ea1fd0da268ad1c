//! Every format of a clean and a faulty run: each is what it claims to be, and
//! all say the same.

use qdiff_tests::schema::Schema;
use qdiff_tests::synth::Synth;
use qdiff_tests::{browse, qdiff, qdiff_with, real_model, stderr, stdout};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

const FAULT: [&str; 2] = ["--inject", "attn-scale-missing@L01"];

const FORMATS: [&str; 4] = ["report.md", "report.html", "report.json", "report.xml"];

fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = Synth::default();
    model.write(&folder.path().join("model.gguf")).unwrap();
    folder
}

/// Runs with every format; gives the exit code and the screen.
fn run(folder: &Path, extra: &[&str]) -> (i32, String) {
    let mut args = vec!["run", "-m", "model.gguf", "-n", "2"];
    args.extend(FORMATS.iter().flat_map(|f| ["--report", *f]));
    args.extend(extra);
    let output = qdiff(folder, &args);
    let code = output.status.code().expect("qdiff exits");
    assert_ne!(code, 2, "{extra:?}: {}", stderr(&output));
    (code, stdout(&output))
}

fn text(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn json(folder: &Path) -> Value {
    serde_json::from_str(&text(folder, "report.json")).unwrap()
}

/// What differs from machine to machine struck out.
fn settings() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"sha256 [0-9a-f]{4}…[0-9a-f]{4}", "sha256 HASH");
    settings.add_filter(r"-?\d+(\.\d+)?e-?\d+|-?\d+\.\d+|\binf\b", "#");
    settings.add_filter(r"(L\d\d )?p\d+( h\d+)?( s(tep)?\d+)?", "@");
    settings.add_filter(r"\\?\[\d+\\?\]", "[#]");
    settings.add_filter(r"\d+ %", "# %");
    settings.add_filter(r"\| 0 \|", "| # |");
    settings.add_filter(r"\| 0 @", "| # @");
    settings.add_filter(r"local residual 0", "local residual #");
    settings.add_filter(r"(?m)^(- tokens: ).*$", "$1…");
    settings.add_filter(r"(?m)^\| @ \|.*", "| @ | …");
    settings
}

#[test]
fn markdown_and_junit_read_alike() {
    let folder = model();
    settings().bind(|| {
        run(folder.path(), &["--stages", "attn_*"]);
        insta::assert_snapshot!("clean.md", text(folder.path(), "report.md"));
        insta::assert_snapshot!("clean.xml", text(folder.path(), "report.xml"));
        run(folder.path(), &[&FAULT[..], &["--stages", "attn_*"]].concat());
        insta::assert_snapshot!("faulty.md", text(folder.path(), "report.md"));
        insta::assert_snapshot!("faulty.xml", text(folder.path(), "report.xml"));
    });
}

/// One verdict, in every format.
#[test]
fn every_format_says_the_same() {
    let folder = model();
    for (extra, code, outcome) in [(&[][..], 0, "match"), (&FAULT[..], 1, "diverged")] {
        let (found, screen) = run(folder.path(), extra);
        assert_eq!(found, code, "{screen}");
        assert_eq!(json(folder.path())["outcome"], outcome);
        check_same(folder.path(), &screen);
    }
}

/// Holds the verdict of every file against the one on the screen.
fn check_same(folder: &Path, screen: &str) {
    let report = json(folder);
    // The verdict as the screen gives it: its first line up to the wrap.
    let first = screen.lines().next().unwrap();
    let (word, rest) = first.split_once(' ').unwrap();
    let markdown = text(folder, "report.md").replace('\\', "");
    assert!(markdown.contains(&format!("**{word}** {rest}")), "{first}\n{markdown}");
    let summary = folder.join("summary.md");
    std::fs::write(&summary, "").unwrap();
    let environment = [("GITHUB_STEP_SUMMARY", summary.to_str().unwrap())];
    let told = qdiff_with(folder, &environment, &["report", "report.json", "--ci", "github"]);
    let annotations = stdout(&told).matches("::error").count();
    assert_eq!(annotations, usize::from(report["outcome"] == "diverged"));
    let told = text(folder, "summary.md").replace('\\', "");
    assert!(told.contains(&format!("**{word}** {rest}")), "{first}\n{told}");
    let xml = text(folder, "report.xml");
    let suites = roxmltree::Document::parse(&xml).unwrap();
    let said = suites
        .descendants()
        .find(|n| n.has_tag_name("system-out") && n.parent().unwrap().has_tag_name("testsuite"))
        .and_then(|n| n.text())
        .unwrap();
    assert!(said.starts_with(first), "{said}");
    let html = text(folder, "report.html");
    let data = html
        .split_once("<script type=\"application/json\" class=\"run\">")
        .and_then(|(_, rest)| rest.split_once("</script>"))
        .unwrap()
        .0;
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["summary"]["word"], word.trim_end_matches(':'));
    assert!(data["summary"]["headline"].as_str().unwrap().starts_with(rest));
    assert_eq!(data["report"], report);
}

/// The real model, clean and faulty: every format is what it claims to be, says
/// the same, and the page works in a browser.
#[test]
fn the_real_model_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let schema = Schema::printed("report");
    let model = real_model();
    for (fault, code, badge) in [(None, 0, "MATCH"), (Some("attn-scale-missing@L07"), 1, "DIVERGED")] {
        let mut args = vec!["run", "-m", &model, "-n", "2"];
        args.extend(FORMATS.iter().flat_map(|f| ["--report", *f]));
        args.extend(fault.iter().flat_map(|f| ["--inject", *f]));
        let output = qdiff(folder, &args);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        check_same(folder, &stdout(&output));
        check_junit(folder);
        schema.check(&json(folder)).unwrap();
        let seen: Value = serde_json::from_str(&browse(folder, "report.html")).unwrap();
        assert_eq!(seen["badge"], badge);
        assert_eq!(seen["cells"], 24 * 22 + 3);
        assert_eq!(seen["origins"], code);
    }
}

/// The JSON of a clean, a faulty and a poisoned run is what the schema says;
/// and the schema refuses what is not.
#[test]
fn json_is_what_the_schema_says() {
    let folder = model();
    let schema = Schema::printed("report");
    for extra in [&[][..], &FAULT[..], &["--inject", "rope-base:base=nan@L01"][..]] {
        run(folder.path(), extra);
        let report = json(folder.path());
        schema.check(&report).unwrap();
        for (at, value) in [
            ("/schema_version", Value::from(1)),
            ("/outcome", Value::from("fine")),
            ("/verdict/stages/0/subject/used", Value::Null),
            ("/verdict/coverage/judged", Value::from(-1)),
            ("/run/tokens", Value::from("1,2")),
        ] {
            let mut broken = report.clone();
            *broken.pointer_mut(at).unwrap() = value;
            assert!(schema.check(&broken).is_err(), "{at} is not checked");
        }
    }
}

/// The manifest that `record` writes is what the schema of captures says.
#[test]
fn manifests_are_what_the_schema_says() {
    let folder = model();
    let schema = Schema::printed("capture");
    let record = ["record", "-m", "model.gguf", "-n", "1", "--out", "golden"];
    let output = qdiff(folder.path(), &record);
    assert!(output.status.success(), "{}", stderr(&output));
    let manifest: Value = serde_json::from_str(&text(folder.path(), "golden/manifest.json")).unwrap();
    schema.check(&manifest).unwrap();
    let mut broken = manifest.clone();
    broken["tokens"] = Value::from("none");
    assert!(schema.check(&broken).is_err());
}

/// What the consumers of JUnit rely on: attributes, order and counts.
#[test]
fn junit_keeps_its_rules() {
    let folder = model();
    for extra in [&[][..], &FAULT[..], &["--inject", "rope-base:base=nan@L01"][..]] {
        run(folder.path(), extra);
        check_junit(folder.path());
    }
}

fn check_junit(folder: &Path) {
    let report = json(folder);
    let xml = text(folder, "report.xml");
    let document = roxmltree::Document::parse(&xml).unwrap();
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    let suites: Vec<_> = root.children().filter(|n| n.is_element()).collect();
    assert_eq!(suites.len(), 1);
    for node in [root, suites[0]] {
        assert!(node.attribute("time").unwrap().parse::<f64>().unwrap() > 0.0);
        let count = |tag: &str| node.descendants().filter(|n| n.has_tag_name(tag)).count().to_string();
        assert_eq!(node.attribute("tests").unwrap(), count("testcase"));
        assert_eq!(node.attribute("failures").unwrap(), count("failure"));
        assert_eq!(node.attribute("errors").unwrap(), count("error"));
        assert_eq!(node.attribute("skipped").unwrap(), count("skipped"));
    }
    let order: Vec<&str> = suites[0].children().filter(|n| n.is_element()).map(|n| n.tag_name().name()).collect();
    assert_eq!(order[0], "properties");
    assert_eq!(order[order.len() - 1], "system-out");
    assert!(order[1..order.len() - 1].iter().all(|tag| *tag == "testcase"));
    let mut names = Vec::new();
    for case in suites[0].children().filter(|n| n.has_tag_name("testcase")) {
        assert!(case.attribute("classname").is_some());
        names.push(case.attribute("name").unwrap().to_owned());
    }
    assert_eq!(names[..2], ["weights", "tokens"]);
    let stages = report["verdict"]["stages"].as_array().unwrap();
    let expected: Vec<_> = stages.iter().map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!(names[2..], expected);
    let failed: Vec<_> = document
        .descendants()
        .filter(|n| n.has_tag_name("failure"))
        .map(|n| n.parent().unwrap().attribute("name").unwrap())
        .collect();
    let origins: Vec<_> = stages.iter().filter(|s| s["origin"] == true).map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!(failed, origins);
}

/// Saved reports are shown again, byte for byte as they were.
#[test]
fn saved_reports_are_shown_again() {
    let folder = model();
    let (code, screen) = run(folder.path(), &FAULT);
    let mut args = vec!["report", "report.json"];
    let again = FORMATS.map(|f| f.replace("report", "again"));
    args.extend(again.iter().flat_map(|f| ["--report", f.as_str()]));
    let output = qdiff(folder.path(), &args);
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    for (old, new) in FORMATS.iter().zip(&again) {
        assert_eq!(text(folder.path(), old), text(folder.path(), new), "{old}");
    }
    let without =
        |s: &str| -> Vec<String> { s.lines().filter(|l| !l.starts_with("report ")).map(str::to_owned).collect() };
    assert_eq!(without(&screen), without(&stdout(&output)));
    // Two in one, where the format can hold two.
    let output =
        qdiff(folder.path(), &["report", "report.json", "again.json", "--report", "two.xml", "--report", "two.md"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let xml = text(folder.path(), "two.xml");
    let document = roxmltree::Document::parse(&xml).unwrap();
    assert_eq!(document.descendants().filter(|n| n.has_tag_name("testsuite")).count(), 2);
}

/// What is no report is refused with the reason, and so is what cannot be
/// written, before anything runs.
#[test]
fn what_is_no_report_is_refused() {
    let folder = model();
    run(folder.path(), &[]);
    let report = json(folder.path());
    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut edited = report.clone();
        change(&mut edited);
        std::fs::write(folder.path().join(name), edited.to_string()).unwrap();
    };
    edit("old.json", &|r| r["schema_version"] = 1.into());
    edit("kind.json", &|r| r["kind"] = "score".into());
    edit("stage.json", &|r| r["verdict"]["stages"][0]["stage"] = "L00.warp".into());
    edit("part.json", &|r| {
        r.as_object_mut().unwrap().remove("verdict");
    });
    std::fs::write(folder.path().join("text.json"), "hello").unwrap();
    let record = ["record", "-m", "model.gguf", "-n", "1", "--out", "golden"];
    assert!(qdiff(folder.path(), &record).status.success());
    for (args, words) in [
        (&["old.json"][..], &["schema_version 1", "run it again"][..]),
        (&["kind.json"], &["kind `score`"]),
        (&["stage.json"], &["L00.warp", "no stage"]),
        (&["part.json"], &["no whole report", "verdict"]),
        (&["text.json"], &["no report"]),
        (&["none.json"], &["none.json"]),
        (&["golden"], &["is a capture", "--subject capture:golden"]),
        (&["report.json", "--report", "x.pdf"], &["x.pdf", ".html"]),
        (&["report.json", "--report", "no/x.md"], &["no/x.md", "folder you can write to"]),
        (&["report.json", "report.json", "--report", "x.json"], &["x.json", "one file each"]),
        (&["report.json", "--ci", "github"], &["GITHUB_STEP_SUMMARY"]),
    ] {
        let output = qdiff(folder.path(), &[&["report"], args].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: {said}");
        }
        assert!(stdout(&output).is_empty(), "{args:?}");
    }
}

/// GitHub is told: the summary appended below its limit, one annotation.
#[test]
fn github_is_told() {
    let folder = model();
    let summary = folder.path().join("summary.md");
    std::fs::write(&summary, "before\n").unwrap();
    let tell = |args: &[&str]| {
        let environment = [("GITHUB_STEP_SUMMARY", summary.to_str().unwrap())];
        qdiff_with(folder.path(), &environment, args)
    };
    let clean = tell(&["run", "-m", "model.gguf", "-n", "2", "--ci", "github", "--stages", "attn_*"]);
    assert_eq!(clean.status.code(), Some(0), "{}", stderr(&clean));
    assert!(!stdout(&clean).contains("::"), "{}", stdout(&clean));
    let text = std::fs::read_to_string(&summary).unwrap();
    assert!(text.starts_with("before\n# qdiff"), "{text}");
    run(folder.path(), &FAULT);
    let faulty = tell(&["report", "report.json", "--ci", "github"]);
    assert_eq!(faulty.status.code(), Some(1), "{}", stderr(&faulty));
    let screen = stdout(&faulty);
    let commands: Vec<_> = screen.lines().filter(|l| l.starts_with("::")).collect();
    settings().bind(|| insta::assert_snapshot!("annotation", commands.join("\n")));
    // A step that said much already: whole lines, below the limit.
    std::fs::write(&summary, "x".repeat(1024 * 1024 - 2000)).unwrap();
    tell(&["report", "report.json", "--ci", "github"]);
    let text = std::fs::read_to_string(&summary).unwrap();
    assert!(text.len() < 1024 * 1024, "{}", text.len());
    assert!(text.contains("Cut here"));
}

/// The screen keeps within 100 columns, whatever is to be told.
#[test]
fn the_widest_screen_fits_100_columns() {
    let folder = model();
    run(folder.path(), &FAULT);
    let mut report = json(folder.path());
    report["model"]["name"] = format!("{}ü", "A model of long name ".repeat(9)).into();
    report["run"]["prompt"] = "p".repeat(60).into();
    report["run"]["command"] = format!("qdiff run {}", "--inject a-fault@L123 ".repeat(12)).into();
    for stage in report["verdict"]["stages"].as_array_mut().unwrap() {
        let name = stage["stage"].as_str().unwrap().replace("L0", "L10");
        stage["stage"] = name.into();
        for side in ["subject", "reference"] {
            stage[side]["at"] = serde_json::json!({"step": 9999, "position": 131_071, "head": 127});
            stage[side]["residual"] = 1.234e-10.into();
            stage[side]["allowed"] = 1.234e-10.into();
        }
        stage["global"] = serde_json::json!({
            "error": 1.234e-10, "at": {"step": 9999, "position": 131_071, "head": 127}
        });
    }
    std::fs::write(folder.path().join("wide.json"), report.to_string()).unwrap();
    for full in [&[][..], &["--full"][..]] {
        let output = qdiff(folder.path(), &[&["report", "wide.json"], full].concat());
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        for line in stdout(&output).lines() {
            assert!(line.chars().count() <= 100, "{}: {line}", line.chars().count());
        }
    }
}
