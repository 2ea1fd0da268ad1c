//! Every command that reports, in every format: one screen, told alike, and JSON
//! that follows its schema.

use qdiff_tests::schema::Schema;
use qdiff_tests::{Folder, Said, exact, folder as model, folder_with, screen, unwrapped, without_reports};
use serde_json::Value;
use std::process::Command;

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

/// Runs its words after the first on a terminal of so many columns as the first says; prints what the terminal was sent.
const TERMINAL: &str = "
import fcntl, os, pty, struct, sys, termios
child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 50, int(sys.argv[1]), 0, 0))
    os.execvp(sys.argv[2], sys.argv[2:])
while True:
    try:
        sent = os.read(terminal, 65536)
    except OSError:
        break
    if not sent:
        break
    sys.stdout.buffer.write(sent)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";

fn on_a_terminal(folder: &Folder, columns: usize, line: &str) -> Said {
    let qdiff = folder.command(line);
    let mut python = Command::new("python3");
    python.args(["-c", TERMINAL, &columns.to_string()]).arg(qdiff.get_program()).args(qdiff.get_args());
    for (name, value) in qdiff.get_envs() {
        match value {
            Some(value) => python.env(name, value),
            None => python.env_remove(name),
        };
    }
    python.current_dir(&**folder).env("TERM", "xterm").env_remove("NO_COLOR");
    python.output().expect("python3 starts").into()
}

/// The bar of the last search was left, and the headline written behind it.
#[test]
fn a_verdict_begins_a_line_and_its_table_has_its_colours() {
    let said = on_a_terminal(&model(), 100, "run -m model.gguf -n 2 --subject cpu --inject heads-misplaced").exits(1);
    let (before, after) = said.stdout.split_once("DIVERGED").unwrap_or_else(|| panic!("{said}"));
    assert!(before.contains(" left"), "no bar was seen: {said}");
    let line = before.rsplit(['\r', '\n']).next().unwrap_or_default();
    let steers = |c: char| c == '\u{1b}' || "[;0123456789mK".contains(c);
    assert!(line.ends_with("\u{1b}[31m") && line.chars().all(steers), "{line:?}");
    for (color, word) in [(31, "DIVERGED"), (33, "inherited"), (32, "match")] {
        assert!(after.contains(&format!("\u{1b}[{color}m{word}\u{1b}[0m")), "{word}: {after:?}");
    }
}

/// The answer, the cause, the remedy and the next command are on the first ten lines, at every width.
#[test]
fn what_to_do_is_on_the_first_ten_lines() {
    let (folder, long) = (model(), folder_with(&exact()));
    for (folder, fault) in [
        (&folder, "one-row-wrong@L01"),
        (&folder, "heads-misplaced"),
        (&folder, "tensor-mapped-wrong"),
        (&folder, "decode-offset"),
        (&long, "decode-offset"),
        // Its law has no remedy of its own: that of the fault is shown.
        (&long, "ffn-down-f16-overflow"),
    ] {
        folder
            .qdiff(&format!("run -m model.gguf --prompt haiku -n 2 --subject cpu --inject {fault} --json told.json"))
            .exits(1);
        for columns in ["80", "100", "120", "160"] {
            let said = folder.qdiff_with(&[("COLUMNS", columns)], "report told.json").exits(1).stdout;
            let head: Vec<&str> = said.lines().take_while(|line| !line.is_empty()).collect();
            let has = |label: &str| head.iter().any(|line| line.starts_with(label));
            assert!(["DIVERGED at", "cause  ", "remedy  ", "next  "].into_iter().all(has), "{fault}: {said}");
            assert!(head.len() <= 10, "{fault}, {columns} columns: {said}");
        }
    }
}

/// The command to run next was below the table, and what may not show was said twice.
#[test]
fn a_match_says_what_next_before_the_table_and_everything_once() {
    let (code, _, said) = model().judged("-n 2 --subject cpu --taps 'L*.attn_norm,L*.attn_scores,L*.layer_out,logits'");
    assert_eq!(code, 0, "{said}");
    let at = |what: &str| said.find(what).unwrap_or_else(|| panic!("{what}: {said}"));
    assert!(
        at("MATCH: ") < at("\nnext  ") && at("\nnext  ") < at("\nmodel  ") && at("\nmodel  ") < at("\nstage  "),
        "{said}"
    );
    let words = unwrapped(&said);
    let (_, size) = words.split_once(" by less than ").unwrap_or_else(|| panic!("{said}"));
    let (size, _) = size.split_once(' ').unwrap();
    assert_eq!(words.matches("a shift of all positions").count(), 1, "{said}");
    let segments = said.split("\nsegments ").nth(1).and_then(|rest| rest.split("\nuntested ").next()).unwrap();
    assert!(!segments.contains(size), "{said}");
}

/// Lists and pages were as wide on a terminal as in a file.
#[test]
fn lists_fit_the_terminal_and_are_whole_in_a_file() {
    let folder = model();
    folder.qdiff("run -m model.gguf -n 1 --subject cpu --inject one-row-wrong@L01 --json told.json").exits(1);
    for (line, code) in [
        ("mutations list", 0),
        ("mutations show heads-misplaced", 0),
        ("devices", 0),
        ("inspect model.gguf", 0),
        ("explain told.json", 1),
    ] {
        let shown = on_a_terminal(&folder, 80, line).exits(code).stdout;
        let too_long = |line: &&str| line.trim_end().chars().count() > 80 && !line.starts_with('|');
        assert_eq!(shown.lines().find(too_long), None, "{line}");
        let piped = folder.qdiff(line).exits(code).stdout;
        // A terminal also shows how long it took.
        let words = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with("qdiff: took "));
            lines.flat_map(str::split_whitespace).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(words(&shown), words(&piped), "{line}");
        assert!(
            piped.lines().any(|line| line.chars().count() > 80) || line == "mutations show heads-misplaced",
            "{line}"
        );
    }
}
