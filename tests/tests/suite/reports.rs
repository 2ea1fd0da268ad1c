//! Every format of a clean and a faulty run: each is what it claims to be, and
//! all say the same.

use qdiff_tests::schema::Schema;
use qdiff_tests::{Folder, Said, Told, folder, without_reports};
use serde_json::{Value, json};

const FAULT: &str = "-n 2 --inject attn-scale-missing@L01";

/// A run in every format.
const RUN: &str = "run -m model.gguf --report report.md --report report.html --report report.json --report report.xml";

/// Runs with every format; gives the exit code and the screen.
pub fn run(folder: &Folder, extra: &str) -> (i32, String) {
    let said = folder.qdiff(&format!("{RUN} {extra}"));
    assert_ne!(said.code, 2, "{extra}: {said}");
    (said.code, said.stdout)
}

/// What differs from machine to machine struck out.
fn settings() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"sha256 [0-9a-f]{4}…[0-9a-f]{4}", "sha256 HASH");
    settings.add_filter(r"-?\d+(\.\d+)?e-?\d+|-?\d+\.\d+|\binf\b", "#");
    settings.add_filter(r"(L\d\d )?p\d+( h\d+)?( s(tep)?\d+)?", "@");
    settings.add_filter(r"\\?\[\d+\\?\]", "[#]");
    settings.add_filter(r"\d+ %", "# %");
    settings.add_filter(r"\d+ wrong elements?", "# wrong elements");
    settings.add_filter(r"\| 0 \|", "| # |");
    settings.add_filter(r"\| 0 @", "| # @");
    settings.add_filter(r"local residual 0", "local residual #");
    settings.add_filter(r"(?m)^(- tokens: ).*$", "$1…");
    settings.add_filter(r"(?m)^\| @ \|.*", "| @ | …");
    settings
}

#[test]
fn markdown_and_junit_read_alike() {
    let folder = folder();
    settings().bind(|| {
        run(&folder, "-n 2 --stages attn_*");
        insta::assert_snapshot!("clean.md", folder.text("report.md"));
        insta::assert_snapshot!("clean.xml", folder.text("report.xml"));
        run(&folder, &format!("{FAULT} --stages attn_*"));
        insta::assert_snapshot!("faulty.md", folder.text("report.md"));
        insta::assert_snapshot!("faulty.xml", folder.text("report.xml"));
    });
}

/// One verdict in every format, of a clean, a faulty and a poisoned run; and the schema refuses what is no report.
#[test]
fn every_format_says_the_same() {
    let folder = folder();
    let schema = Schema::printed("report");
    for (extra, code, outcome) in
        [("-n 2", 0, "match"), (FAULT, 1, "diverged"), ("-n 2 --inject rope-base:base=nan@L01", 1, "diverged")]
    {
        let (found, screen) = run(&folder, extra);
        assert_eq!(found, code, "{screen}");
        let report = folder.json("report.json");
        assert_eq!(report["outcome"], outcome);
        check(&folder, &screen);
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

/// Holds every file of a run to what its format promises, and its verdict against the one on the screen.
pub fn check(folder: &Folder, screen: &str) {
    let report = folder.json("report.json");
    Schema::printed("report").check(&report).unwrap();
    check_junit(folder, &report);
    // The verdict as the screen gives it: its first line up to the wrap.
    let first = screen.lines().next().unwrap();
    let (word, rest) = first.split_once(' ').unwrap();
    let verdict = format!("**{word}** {rest}");
    let markdown = folder.text("report.md").replace('\\', "");
    assert!(markdown.contains(&verdict), "{first}\n{markdown}");
    folder.write("summary.md", "");
    let told = tell(folder, "report report.json --ci github");
    let annotations = told.stdout.matches("::error").count();
    assert_eq!(annotations, usize::from(report["outcome"] == "diverged"));
    let summary = folder.text("summary.md").replace('\\', "");
    assert!(summary.contains(&verdict), "{first}\n{summary}");
    let xml = folder.text("report.xml");
    let suites = roxmltree::Document::parse(&xml).unwrap();
    let mut outputs = suites.descendants().filter(|n| n.has_tag_name("system-out"));
    let said = outputs.find(|n| n.parent().unwrap().has_tag_name("testsuite")).and_then(|n| n.text()).unwrap();
    assert!(said.starts_with(first), "{said}");
    let html = folder.text("report.html");
    let (_, data) = html.split_once("<script type=\"application/json\" class=\"run\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    let data: Value = serde_json::from_str(&unshown(data)).unwrap();
    assert_eq!(data["summary"]["word"], word.trim_end_matches(':'));
    assert!(data["summary"]["headline"].as_str().unwrap().starts_with(rest));
    assert_eq!(data["report"], report);
}

/// The data of a page with the characters back that it writes out, such as `\u{1b}`, where nobody could see them.
fn unshown(data: &str) -> String {
    let mut parts = data.split(r"\\u{");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |all, part| {
        let (code, rest) = part.split_once('}').unwrap();
        format!(r"{all}\u{code:0>4}{rest}")
    })
}

/// `qdiff` in a step of a GitHub workflow, whose summary is `summary.md`.
fn tell(folder: &Folder, line: &str) -> Said {
    folder.qdiff_with(&[("GITHUB_STEP_SUMMARY", folder.join("summary.md").to_str().unwrap())], line)
}

/// The manifest that `record` writes is what the schema of captures says.
#[test]
fn manifests_are_what_the_schema_says() {
    let folder = folder();
    let schema = Schema::printed("capture");
    folder.record("golden", "-n 1");
    let mut manifest = folder.json("golden/manifest.json");
    schema.check(&manifest).unwrap();
    folder.qdiff("record -m model.gguf --length 4 --sequences 2+2 --out several").exits(0);
    schema.check(&folder.json("several/manifest.json")).unwrap();
    manifest["tokens"] = Value::from("none");
    assert!(schema.check(&manifest).is_err());
}

/// What the consumers of JUnit rely on: attributes, order and counts.
fn check_junit(folder: &Folder, report: &Value) {
    let xml = folder.text("report.xml");
    let document = roxmltree::Document::parse(&xml).unwrap();
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    let suites: Vec<_> = root.children().filter(|n| n.is_element()).collect();
    assert_eq!(suites.len(), 1);
    for node in [root, suites[0]] {
        assert!(node.attribute("time").unwrap().parse::<f64>().unwrap() > 0.0);
        let count = |tag: &str| node.descendants().filter(|n| n.has_tag_name(tag)).count().to_string();
        for (counted, tag) in
            [("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")]
        {
            assert_eq!(node.attribute(counted).unwrap(), count(tag));
        }
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
    let stages = report.stages();
    let expected: Vec<_> = stages.iter().map(|s| s["stage"].as_str().unwrap()).collect();
    assert_eq!(names[2..], expected);
    let failed: Vec<_> = document
        .descendants()
        .filter(|n| n.has_tag_name("failure"))
        .map(|n| n.parent().unwrap().attribute("name").unwrap())
        .collect();
    assert_eq!(failed, report.origins());
}

/// A report's word for its outcome is not taken: what it holds is.
#[test]
fn a_report_that_lies_of_its_outcome_is_shown_as_what_it_is() {
    let folder = folder();
    for (extra, code, word) in [("", 0, "MATCH"), ("--inject qkv-bias-omitted", 1, "DIVERGED")] {
        folder
            .qdiff(&format!("run -m model.gguf --tokens 1,2 -n 0 --stages q_biased {extra} --json true.json"))
            .exits(code);
        for lie in ["match", "diverged", "incomplete", "reference-suspect"] {
            let mut report = folder.json("true.json");
            report["outcome"] = lie.into();
            folder.write("false.json", report.to_string());
            let said = folder.qdiff("report false.json --json again.json").exits(code);
            assert!(said.stdout.starts_with(word), "{lie}: {said}");
            assert_eq!(folder.json("again.json")["outcome"], folder.json("true.json")["outcome"], "{lie}");
        }
    }
}

/// What fuzzing found: a file with more judged rows than rows gave 2^64 - 1 rows left.
#[test]
fn a_report_that_counts_more_in_a_part_than_in_all_is_refused() {
    let folder = folder();
    folder.qdiff("run -m model.gguf -n 1 --json report.json").exits(0);
    let local = "/verdict/stages/4/subject";
    for (object, part, whole, named) in [
        ("/verdict/coverage", "judged", "asked", "its coverage"),
        ("/verdict/coverage", "within", "judged", "its coverage"),
        (local, "bad_rows", "rows", "L00."),
        (local, "prefill_rows", "rows", "L00."),
        (local, "bad_prefill_rows", "bad_rows", "L00."),
    ] {
        let mut report = folder.json("report.json");
        let counts = report.pointer_mut(object).unwrap();
        counts[part] = (counts[whole].as_u64().unwrap() + 1).into();
        folder.write("false.json", report.to_string());
        folder.refuses("report false.json", &["no whole report", named, "more rows in a part than in the whole"]);
    }
}

/// Where nothing diverged but not everything was judged, JUnit does not say that all is well.
#[test]
fn junit_of_an_incomplete_run_is_not_all_green() {
    let folder = folder();
    folder.qdiff("run -m model.gguf -n 0 --reference none --junit report.xml").exits(3);
    let text = folder.text("report.xml");
    let document = roxmltree::Document::parse(&text).unwrap();
    assert_eq!(document.root_element().attribute("failures"), Some("1"), "{text}");
    assert!(text.contains(r#"<failure message="INCOMPLETE: no reference ran"#), "{text}");
    assert!(text.contains(r#"<testcase name="INCOMPLETE" classname="verdict">"#), "{text}");
}

/// Saved reports are shown again, byte for byte as they were.
#[test]
fn saved_reports_are_shown_again() {
    let folder = folder();
    let (code, screen) = run(&folder, FAULT);
    let formats = ["md", "html", "json", "xml"];
    let again = formats.map(|f| format!("--report again.{f}")).join(" ");
    let said = folder.qdiff(&format!("report report.json {again}")).exits(code).stdout;
    for format in formats {
        let [old, new] = ["report", "again"].map(|name| folder.text(&format!("{name}.{format}")));
        assert_eq!(old, new, "{format}");
    }
    assert_eq!(without_reports(&screen), without_reports(&said));
    // Two in one, where the format can hold two.
    folder.qdiff("report report.json again.json --report two.xml --report two.md").exits(1);
    let xml = folder.text("two.xml");
    let document = roxmltree::Document::parse(&xml).unwrap();
    assert_eq!(document.descendants().filter(|n| n.has_tag_name("testsuite")).count(), 2);
}

/// What is no report is refused with the reason, and so is what cannot be
/// written, before anything runs.
#[test]
fn what_is_no_report_is_refused() {
    let folder = folder();
    let (_, report, _) = folder.judged("-n 2 --report report.json");
    for (name, at, value) in [
        ("old.json", "/schema_version", json!(1)),
        ("kind.json", "/kind", json!("score")),
        ("stage.json", "/verdict/stages/0/stage", json!("L00.warp")),
    ] {
        let mut edited = report.clone();
        *edited.pointer_mut(at).unwrap() = value;
        folder.write(name, edited.to_string());
    }
    let mut part = report;
    part.as_object_mut().unwrap().remove("verdict");
    folder.write("part.json", part.to_string());
    folder.write("text.json", "hello");
    folder.record("golden", "-n 1");
    for (args, words) in [
        ("old.json", &["schema_version 1", "run it again"][..]),
        ("kind.json", &["kind `score`"]),
        ("stage.json", &["L00.warp", "no stage"]),
        ("part.json", &["no whole report", "verdict"]),
        ("text.json", &["no report"]),
        ("none.json", &["none.json"]),
        ("golden", &["is a capture", "--subject capture:golden"]),
        ("report.json --report x.pdf", &["x.pdf", ".html"]),
        ("report.json --report no/x.md", &["no/x.md", "there is no folder no;"]),
        ("report.json report.json --report x.json", &["x.json", "one file each"]),
        ("report.json --ci github", &["GITHUB_STEP_SUMMARY"]),
    ] {
        folder.refuses(&format!("report {args}"), words);
    }
}

/// In GitHub Actions: the summary appended below its limit, one annotation.
#[test]
fn github_is_told() {
    let folder = folder();
    folder.write("summary.md", "before\n");
    let clean = tell(&folder, "run -m model.gguf -n 2 --subject cpu --ci github --stages attn_*").exits(0);
    assert!(!clean.stdout.contains("::"), "{clean}");
    let summary = folder.text("summary.md");
    assert!(summary.starts_with("before\n# qdiff"), "{summary}");
    run(&folder, FAULT);
    let faulty = tell(&folder, "report report.json --ci github").exits(1);
    let commands: Vec<_> = faulty.stdout.lines().filter(|l| l.starts_with("::")).collect();
    settings().bind(|| insta::assert_snapshot!("annotation", commands.join("\n")));
    // A step that said much already: whole lines, below the limit.
    folder.write("summary.md", "x".repeat(1024 * 1024 - 2000));
    tell(&folder, "report report.json --ci github");
    let summary = folder.text("summary.md");
    assert!(summary.len() < 1024 * 1024, "{}", summary.len());
    assert!(summary.contains("Cut here"));
}

/// The screen keeps within the columns of its terminal, 100 where there is none, for every text.
#[test]
fn the_widest_screen_fits_its_terminal() {
    let folder = folder();
    let (_, mut report, _) = folder.judged(FAULT);
    report["model"]["name"] = format!("{}ü", "A model of long name ".repeat(9)).into();
    report["run"]["prompt"] = "p".repeat(60).into();
    report["run"]["command"] = format!("qdiff run {}", "--inject a-fault@L123 ".repeat(12)).into();
    for stage in report["verdict"]["stages"].as_array_mut().unwrap() {
        let name = stage["stage"].as_str().unwrap().replace("L0", "L10");
        stage["stage"] = name.into();
        for side in ["subject", "reference"] {
            stage[side]["at"] = json!({"step": 9999, "position": 131_071, "head": 127});
            stage[side]["residual"] = 1.234e-10.into();
            stage[side]["allowed"] = 1.234e-10.into();
        }
        stage["global"] = json!({
            "error": 1.234e-10, "at": {"step": 9999, "position": 131_071, "head": 127}
        });
    }
    folder.write("wide.json", report.to_string());
    for (columns, full) in [("", ""), ("", "--full"), ("60", ""), ("79", "--full"), ("160", "--full")] {
        let said = folder.qdiff_with(&[("COLUMNS", columns)], &format!("report wide.json {full}")).exits(1);
        let most = columns.parse().unwrap_or(100);
        for line in said.stdout.lines() {
            assert!(line.chars().count() <= most, "{}: {line}", line.chars().count());
        }
        // The distance between the sides is printed where there is room, for it decides nothing.
        let table = said.stdout.lines().find(|l| l.starts_with("stage ")).unwrap();
        assert!(if most < 80 { !table.contains("global") } else { most < 160 || table.contains("global") }, "{table}");
        assert_ne!(table.contains("global"), said.stdout.contains("not shown in"), "{said}");
    }
}

/// A report for another program: standard output is that report and nothing else, and people read the screen on standard
/// error. `-` was refused, and the JSON could not be piped.
#[test]
fn a_report_on_standard_output_stands_there_alone() {
    let folder = folder();
    run(&folder, FAULT);
    let plain = folder.qdiff("report report.json").exits(1);
    for (option, file) in [("json", "json"), ("markdown", "md"), ("html", "html"), ("junit", "xml")] {
        let said = folder.qdiff(&format!("report report.json --{option} -")).exits(1);
        assert_eq!(said.stdout, folder.text(&format!("report.{file}")), "{option}");
        assert_eq!(said.stderr, plain.stdout, "{option}");
    }
    let quiet = folder.qdiff("run -m model.gguf -n 0 --subject cpu -q --json -").exits(0);
    assert_eq!(serde_json::from_str::<Value>(&quiet.stdout).unwrap()["outcome"], "match", "{quiet}");
    assert!(quiet.stderr.starts_with("MATCH: ") && !folder.join("qdiff-report").exists(), "{quiet}");
    let list = folder.qdiff("mutations list --json -").exits(0);
    assert!(serde_json::from_str::<Value>(&list.stdout).unwrap().is_array() && list.stderr.contains("rope-base"));
    folder.refuses("report report.json --json - --junit -", &["--junit -", "another report"]);
    folder.refuses("report report.json --report -", &["--json -", "--junit -"]);
    folder.refuses("qdiff-lab digest report.json --out -", &["--out takes a file"]);
}

/// Every report that nobody named had one name for a prompt, and texts that were typed had one among them all.
#[test]
fn reports_that_nobody_named_do_not_replace_each_other() {
    let folder = folder();
    let mut written = Vec::new();
    for (prompt, extra) in
        [("haiku", ""), ("haiku", ""), ("haiku", "--reference cpu"), ("'a b'", "--raw"), ("'b a'", "--raw")]
    {
        let line = format!("run -m model.gguf -n 0 --stages embed --subject cpu --prompt {prompt} {extra}");
        let screen = folder.qdiff(&line).exits(0).stdout;
        let path = screen.lines().find_map(|l| l.strip_prefix("report ")).unwrap().trim().to_owned();
        let page = screen.split_once("\npage ").unwrap().1.replace("\\\n", "");
        let page: Vec<&str> = page.split_whitespace().collect();
        assert_eq!(page[..3], ["qdiff", "report", path.as_str()], "{screen}");
        folder.qdiff(&page[1..].join(" ")).exits(0);
        assert!(folder.join(page[4]).is_file(), "{screen}");
        // The newest file of a prompt has a predictable name.
        let newest = folder.join(&path).with_file_name("report.json");
        assert_eq!(std::fs::read_to_string(newest).unwrap(), folder.text(&path));
        written.push((path.clone(), folder.text(&path)));
    }
    assert!(written.iter().all(|(path, text)| folder.text(path) == *text), "a report was replaced");
    let folders: Vec<&str> = written.iter().map(|(path, _)| path.split('/').nth(1).unwrap()).collect();
    assert_eq!((folders[0], folders[1], folders[2]), ("haiku", "haiku", "haiku"));
    assert!(
        folders[3].starts_with("text-") && folders[4].starts_with("text-") && folders[3] != folders[4],
        "{folders:?}"
    );
}
