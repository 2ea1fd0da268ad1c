//! Documents: REPORT.md is what the results make it, the workflow for users runs, every command is one that the
//! program takes, and what is named is there.

use ::qdiff::cli::Cli;
use qdiff_tests::synth::Synth;
use qdiff_tests::{markdown, qdiff, qdiff_with, stderr, stdout};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    Synth::default().write(&folder.path().join("model.gguf")).unwrap();
    folder
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The workflow that users are given is YAML, and the command in it runs.
#[test]
fn the_example_workflow_runs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/github-actions.yml");
    let documents = yaml_rust2::YamlLoader::load_from_str(&read(&path)).unwrap();
    let steps = documents[0]["jobs"]["qdiff"]["steps"].as_vec().unwrap();
    let commands: Vec<&str> = steps
        .iter()
        .filter_map(|s| s["run"].as_str())
        .filter_map(|run| run.strip_prefix("./qdiff/scripts/qdiff "))
        .collect();
    let [command] = commands.as_slice() else {
        panic!("one step judges: {commands:?}");
    };
    let folder = model();
    let record = ["record", "-m", "model.gguf", "-n", "1", "--out", "capture"];
    assert!(qdiff(folder.path(), &record).status.success());
    let summary = folder.path().join("summary.md");
    let environment = [("GITHUB_STEP_SUMMARY", summary.to_str().unwrap())];
    let arguments: Vec<&str> = command.split_whitespace().collect();
    let output = qdiff_with(folder.path(), &environment, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let published = steps.iter().find(|s| s["name"].as_str() == Some("Publish the reports")).unwrap();
    for file in published["with"]["path"].as_str().unwrap().lines() {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
    assert!(std::fs::read_to_string(summary).unwrap().contains("**MATCH:**"));
}

/// REPORT.md is what the committed results make it.
#[test]
fn the_document_is_what_the_results_make_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut args = vec!["report"];
    args.extend(["goldens/results", "goldens/h200"].iter().filter(|f| root.join(f).is_dir()));
    let output = qdiff(&root, &args);
    assert!(output.status.success(), "{}", stderr(&output));
    let committed = read(&root.join("REPORT.md"));
    assert!(stdout(&output) == committed, "REPORT.md is not what the results in goldens/ make it: run scripts/report");
}

/// A folder of results is told whole or not at all.
#[test]
fn folders_that_are_no_results_are_refused() {
    let folder = model();
    let folder = folder.path();
    let made = qdiff(folder, &["run", "-m", "model.gguf", "-n", "1", "--json", "report.json"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let results = folder.join("results");
    std::fs::create_dir(&results).unwrap();
    let refused = |words: &[&str], extra: &[&str]| {
        let output = qdiff(folder, &[&["report", "results"], extra].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        for word in words {
            assert!(said.contains(word), "`{word}`: {said}");
        }
    };
    refused(&["results", "no result"], &[]);
    let digest = ["report", "report.json", "--digest", "results/a.json", "--title", "A | title"];
    assert!(qdiff(folder, &digest).status.success());
    let document = qdiff(folder, &["report", "results"]);
    let text = stdout(&document);
    assert!(text.contains("### A \\| title"), "{text}");
    assert!(text.contains("Missing: no result of kind `score`."), "{text}");
    let (opening, _) = text.split_once("## How often").unwrap();
    assert!(opening.contains(" | 1 | MATCH | "), "{opening}");
    assert!(opening.contains("Missing: no result of kind `field`."), "{opening}");
    refused(&["x.html", "markdown"], &["--report", "x.html"]);
    refused(&["report.json", "not both"], &["report.json"]);
    let good: Value = serde_json::from_str(&read(&results.join("a.json"))).unwrap();
    for (field, value, words) in [
        ("schema_version", Value::from(99), ["schema_version 99", "measure it again"]),
        ("kind", Value::from("poem"), ["poem", "no section"]),
        ("runs", Value::from(3), ["no whole result", "a.json"]),
    ] {
        let mut broken = good.clone();
        broken[field] = value;
        std::fs::write(results.join("a.json"), broken.to_string()).unwrap();
        refused(&words, &[]);
    }
}

/// Whether `scripts/qdiff` fetches the default model for these arguments.
fn wants_model(arguments: &[&str]) -> bool {
    let script = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/qdiff"));
    let from = script.find("wants_model() {").unwrap();
    let function = &script[from..from + script[from..].find("\n}\n").unwrap() + 3];
    let status = Command::new("bash")
        .args(["-c", &format!("{function}\nwants_model \"$@\""), "bash"])
        .args(arguments)
        .status()
        .unwrap();
    status.success()
}

/// The default model is fetched for every command that takes a model, and only
/// where none is named.
#[test]
fn every_command_that_takes_a_model_gets_the_default_one() {
    let folder = tempfile::tempdir().unwrap();
    let help = stdout(&qdiff(folder.path(), &["--help"]));
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|l| *l != "Commands:")
        .skip(1)
        .take_while(|l| !l.is_empty())
        .filter_map(|l| l.strip_prefix("  "))
        .filter(|l| !l.starts_with(' '))
        .filter_map(|l| l.split_whitespace().next())
        .filter(|&c| c != "help")
        .collect();
    assert!(commands.len() > 10, "{help}");
    for command in commands {
        // The default is told by QDIFF_MODEL. Without a model `compare` does something else.
        let takes = stdout(&qdiff(folder.path(), &[command, "--help"])).contains("QDIFF_MODEL");
        assert_eq!(wants_model(&[command]), takes && command != "compare", "{command}");
        assert!(!wants_model(&[command, "-m", "mine.gguf"]), "{command}");
        assert!(!wants_model(&[command, "--help"]), "{command}");
    }
    assert!(wants_model(&["dequantise", "--out", "copy.gguf"]));
    assert!(wants_model(&["run", "--prompt", "compare"]));
    assert!(!wants_model(&["weights", "mine.gguf", "--against", "theirs.gguf"]));
}

/// The arguments of a command line that calls qdiff, with something in the place of what the reader fills in.
fn arguments(line: &str) -> Option<Vec<String>> {
    let words = markdown::words(line);
    let (program, arguments) = words.split_first()?;
    let called = ["qdiff", "./scripts/qdiff", "scripts/qdiff"].contains(&program.as_str());
    let filled = |word: &String| match word.as_str() {
        "N" => "1".to_owned(),
        "RUNNER" => "cpu".to_owned(),
        _ => word.clone(),
    };
    called.then(|| arguments.iter().map(filled).collect())
}

/// What the program's own parser says of these arguments.
fn parsed(arguments: &[String]) -> Result<(), String> {
    let words = std::iter::once("qdiff").chain(arguments.iter().map(String::as_str));
    match Cli::read(words.map(Into::into)) {
        Err(e) if e.use_stderr() => Err(e.to_string()),
        // Help and version are no errors.
        _ => Ok(()),
    }
}

/// Every command in every document is one that the program takes.
#[test]
fn every_documented_command_is_taken() {
    let mut taken = 0;
    for document in markdown::documents() {
        for line in document.block_lines() {
            let Some(arguments) = arguments(line) else { continue };
            parsed(&arguments).unwrap_or_else(|e| panic!("{}: {line}\n{e}", document.path));
            taken += 1;
        }
        // The changelog also tells of what was.
        for span in document.spans().iter().filter(|_| document.path != "CHANGELOG.md") {
            let Some(arguments) = arguments(span) else { continue };
            // A command that is only mentioned need not have all of its arguments.
            let bare = !arguments.iter().any(|a| a.starts_with('-'));
            let help = [arguments.clone(), vec!["--help".to_owned()]].concat();
            let known = parsed(&arguments).or_else(|e| if bare { parsed(&help) } else { Err(e) });
            known.unwrap_or_else(|e| panic!("{}: {span}\n{e}", document.path));
            taken += 1;
        }
    }
    assert!(taken > 100, "{taken} commands");
}

/// The long options of the program and of the scripts.
fn options() -> BTreeSet<String> {
    let help = |arguments: &[&str]| {
        let words = ["qdiff"].iter().chain(arguments).chain(&["--help"]);
        Cli::read(words.map(Into::into)).expect_err("help").to_string()
    };
    let commands = |help: &str| -> Vec<String> {
        let lines = help.lines().skip_while(|l| !l.starts_with("Commands:")).skip(1);
        let lines = lines.take_while(|l| !l.is_empty()).filter_map(|l| l.strip_prefix("  "));
        lines.filter(|l| !l.starts_with(' ')).filter_map(|l| l.split_whitespace().next().map(str::to_owned)).collect()
    };
    let mut text = help(&[]);
    for command in commands(&text.clone()).iter().filter(|c| *c != "help") {
        let of = help(&[command]);
        for sub in commands(&of).iter().filter(|c| *c != "help") {
            text += &help(&[command, sub]);
        }
        text += &of;
    }
    for script in std::fs::read_dir(markdown::root().join("scripts")).unwrap() {
        text += &read(&script.unwrap().path());
    }
    let option = |word: &str| word.starts_with("--").then(|| word.to_owned());
    text.split(|c: char| !(c.is_ascii_lowercase() || c == '-')).filter_map(option).collect()
}

/// An option, a script, a file or a link that a document names is there.
#[test]
fn what_the_documents_name_is_there() {
    let options = options();
    let root = markdown::root();
    for document in markdown::documents() {
        let path = &document.path;
        let spans = if path == "CHANGELOG.md" { Vec::new() } else { document.spans() };
        for span in &spans {
            let first = span.split([' ', '=', ',']).next().unwrap_or("");
            assert!(!first.starts_with("--") || options.contains(first), "{path}: no option {first}: `{span}`");
        }
        let lines = document.block_lines().chain(spans.iter().map(String::as_str));
        for word in lines.filter_map(|l| l.split([' ', ':', ',']).next()) {
            let word = word.trim_start_matches("./");
            let folders = ["engine/", "harness/", "synth/", "tests/", "docs/", "goldens/", "scripts/"];
            let named = folders.iter().any(|f| word.starts_with(f)) && !word.contains(|c: char| "*{<".contains(c));
            // NAME, ARCH and the like stand for a file that the reader adds.
            let open =
                word.split(['/', '.']).any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()));
            assert!(!named || open || root.join(word).exists(), "{path}: no file {word}");
        }
        for link in document.links() {
            assert!(link.exists(), "{path}: no file {}", link.display());
        }
    }
}

/// What REPORT.md says was found in the field has its evidence in the repository and a command that runs.
#[test]
fn findings_in_the_field_have_evidence() {
    let root = markdown::root();
    let field: Value = serde_json::from_str(&read(&root.join("goldens/results/field.json"))).unwrap();
    let findings = field["findings"].as_array().unwrap();
    assert!(!findings.is_empty());
    for finding in findings {
        let command = finding["command"].as_str().unwrap();
        let script = root.join(command.split(' ').next().unwrap()).is_file();
        match arguments(command) {
            Some(arguments) => parsed(&arguments).unwrap_or_else(|e| panic!("{command}\n{e}")),
            None => assert!(script || command.starts_with("cargo test "), "{command}"),
        }
        for evidence in finding["evidence"].as_array().unwrap() {
            let path = evidence.as_str().unwrap();
            assert!(root.join(path).is_file(), "{path}");
        }
    }
}

/// The exporter on README's first screen writes a capture that its command judges in full.
#[test]
fn the_first_exporter_runs() {
    const ARRAYS: &str = r#"
import json
import numpy as np
arrays = np.load("recorded/capture.npz")
tokens = json.load(open("recorded/manifest.json"))["tokens"]
embedding, logits = arrays["prefill/embed"], arrays["prefill/logits"]
layer_outputs = [arrays[name] for name in sorted(arrays.files) if name.endswith(".layer_out")]
"#;
    let root = markdown::root();
    let readme = read(&root.join("README.md"));
    let (_, rest) = readme.split_once("```python\n").unwrap();
    let (exporter, rest) = rest.split_once("```").unwrap();
    let command = rest.lines().find(|l| l.starts_with("qdiff run ")).unwrap();
    let folder = model();
    let folder = folder.path();
    let record = ["record", "-m", "model.gguf", "-n", "0", "--out", "recorded"];
    assert!(qdiff(folder, &record).status.success());
    let numpy = Command::new(root.join("scripts/fetch-numpy")).output().unwrap();
    let path = format!("{}:{}", stdout(&numpy).trim(), root.join("docs/exporters").display());
    let script = format!("{ARRAYS}{exporter}");
    let python =
        Command::new("python3").current_dir(folder).env("PYTHONPATH", path).args(["-c", &script]).output().unwrap();
    assert!(python.status.success(), "{}", stderr(&python));
    let arguments = arguments(command).unwrap();
    let output = qdiff(folder, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).starts_with("MATCH"), "{}", stdout(&output));
}
