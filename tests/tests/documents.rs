//! Documents that are made or promised: REPORT.md, and the workflow for users.

use qdiff_tests::synth::Synth;
use qdiff_tests::{qdiff, qdiff_with, stderr, stdout};
use serde_json::Value;
use std::path::Path;
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
    let status = std::process::Command::new("bash")
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

/// Commands of a document: lines in fenced blocks that call qdiff.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2);
    let lines = blocks.flat_map(str::lines).map(|l| l.trim_start_matches("$ ").replacen("./scripts/qdiff", "qdiff", 1));
    lines.filter(|l| l.starts_with("qdiff ")).collect()
}

/// Makes what a command reads, and removes what it writes: captures by any
/// name, those that stand for another one among them.
fn stage(folder: &Path, command: &str) -> String {
    let named = [("RUNNER", "cpu"), ("DIR", "mine"), ("OTHER", "other"), (" A B", " mine llama")];
    let command = named.iter().fold(command.to_owned(), |text, (name, value)| text.replace(name, value));
    let words: Vec<&str> = command.split_whitespace().collect();
    for pair in words.windows(2).filter(|p| p[0] == "--out") {
        let _ = std::fs::remove_dir_all(folder.join(pair[1]));
    }
    let bare = words.iter().filter(|w| ["mine", "llama"].contains(*w)).copied();
    let written = |name: &&str| words.windows(2).any(|p| p[0] == "--out" && p[1] == *name);
    let named = words.iter().filter_map(|w| w.strip_prefix("capture:")).chain(bare).filter(|name| !written(name));
    for capture in named {
        let _ = std::fs::create_dir(folder.join(capture));
        for file in ["manifest.json", "capture.npz"] {
            std::fs::copy(folder.join("kept").join(file), folder.join(capture).join(file)).unwrap();
        }
    }
    command
}

/// Every command of every document is one that qdiff takes, with the options it
/// is written with. What would run a model ends at `QDIFF_THREADS=0`, after
/// all that was written has been read.
#[test]
fn every_command_of_the_documents_is_taken() {
    let folder = model();
    let folder = folder.path();
    let record = ["record", "-m", "model.gguf", "-n", "0", "--out", "kept"];
    assert!(qdiff(folder, &record).status.success());
    std::fs::create_dir(folder.join("reports")).unwrap();
    for report in ["haiku.json", "reports/a.json", "reports/b.json"] {
        let made = qdiff(folder, &["run", "-m", "model.gguf", "-n", "0", "--json", report]);
        assert!(made.status.success(), "{}", stderr(&made));
    }
    std::fs::write(folder.join("prompts.txt"), "one\ntwo\nthree\nfour\n").unwrap();
    std::fs::copy(folder.join("model.gguf"), folder.join("damaged.gguf")).unwrap();
    std::fs::create_dir(folder.join("bin")).unwrap();
    std::os::unix::fs::symlink(qdiff_tests::binary(), folder.join("bin/qdiff")).unwrap();
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let guides = std::fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path());
    let documents = guides.chain(["README.md", "CONTRIBUTING.md"].map(|f| root.join(f)));
    let mut taken = 0;
    for document in documents.filter(|d| d.extension().is_some_and(|e| e == "md")) {
        for command in commands(&read(&document)) {
            let command = stage(folder, &command);
            let mut shell = std::process::Command::new("bash");
            for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("QDIFF_")) {
                shell.env_remove(name);
            }
            shell.envs([("PATH", path.as_str()), ("QDIFF_MODEL", "model.gguf"), ("QDIFF_THREADS", "0")]);
            let output = shell.current_dir(folder).args(["-c", &command]).output().unwrap();
            let (code, said) = (output.status.code(), stderr(&output));
            let unthreaded = said == "qdiff: --threads must be at least 1\n";
            let no_gpu = command.contains("cuda") || command.contains("soak");
            let gpu = no_gpu && said.lines().count() == 1 && said.to_lowercase().contains("cuda");
            assert!(code != Some(2) || unthreaded || gpu, "{}: {command}: {said}", document.display());
            taken += 1;
        }
    }
    assert!(taken > 30, "{taken}");
}
