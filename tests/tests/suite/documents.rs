//! Documents: REPORT.md is what the results make it, the workflow for users runs, every command is one that the
//! program takes, and what is named is there.

use ::qdiff::cli::{Cli, CommandLine};
use qdiff_engine::model::{ARCHITECTURES, KINDS, described, skeleton, symbolic};
use qdiff_lab::cli::Lab;
use qdiff_tests::markdown::{self, read};
use qdiff_tests::{Said, empty, folder, python};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// The workflow that users are given is YAML, and the command in it runs.
#[test]
fn the_example_workflow_runs() {
    let documents = yaml_rust2::YamlLoader::load_from_str(&read("docs/github-actions.yml")).unwrap();
    let steps = documents[0]["jobs"]["qdiff"]["steps"].as_vec().unwrap();
    let commands: Vec<&str> = steps
        .iter()
        .filter_map(|s| s["run"].as_str())
        .filter_map(|run| run.strip_prefix("./qdiff/scripts/qdiff "))
        .collect();
    let [command] = commands.as_slice() else {
        panic!("one step judges: {commands:?}");
    };
    let folder = folder();
    folder.record("capture", "-n 1");
    let summary = folder.join("summary.md");
    folder.qdiff_with(&[("GITHUB_STEP_SUMMARY", summary.to_str().unwrap())], command).exits(0);
    let published = steps.iter().find(|s| s["name"].as_str() == Some("Publish the reports")).unwrap();
    for file in published["with"]["path"].as_str().unwrap().lines() {
        assert!(folder.join(file).is_file(), "{file}");
    }
    assert!(folder.text("summary.md").contains("**MATCH:**"));
}

/// REPORT.md is what the committed results make it.
#[test]
fn the_document_is_what_the_results_make_it() {
    let mut command = empty().command("qdiff-lab report goldens/results");
    for card in ["goldens/h200", "goldens/h100"] {
        if markdown::root().join(card).is_dir() {
            command.arg(card);
        }
    }
    let said = Said::from(command.current_dir(markdown::root()).output().unwrap()).exits(0);
    assert!(said.stdout == read("REPORT.md"), "REPORT.md is not what the results make it: run scripts/report");
}

/// A folder of results is printed whole or not at all.
#[test]
fn folders_that_are_no_results_are_refused() {
    let folder = folder();
    folder.qdiff("run -m model.gguf -n 1 --json report.json").exits(0);
    folder.create("results");
    folder.refuses("qdiff-lab report results", &["results", "no result"]);
    folder.qdiff("qdiff-lab digest report.json --out results/a.json --title 'A | title'").exits(0);
    let text = folder.qdiff("qdiff-lab report results").stdout;
    assert!(text.contains("### A \\| title"), "{text}");
    assert!(text.contains("Missing: no result of kind `score`."), "{text}");
    let (opening, _) = text.split_once("## How often").unwrap();
    assert!(opening.contains(" | 1 | MATCH | "), "{opening}");
    assert!(opening.contains("Missing: no result of kind `field`."), "{opening}");
    folder.refuses("qdiff-lab report results --out x.html", &["x.html", "markdown"]);
    folder.refuses("qdiff-lab report results report.json", &["report.json is no folder"]);
    folder.refuses("report results", &["results is a folder"]);
    let good = folder.json("results/a.json");
    for (field, value, words) in [
        ("schema_version", Value::from(99), ["schema_version 99", "measure it again"]),
        ("kind", Value::from("poem"), ["poem", "no section"]),
        ("runs", Value::from(3), ["no whole result", "a.json"]),
    ] {
        let mut broken = good.clone();
        broken[field] = value;
        folder.write("results/a.json", broken.to_string());
        folder.refuses("qdiff-lab report results", &words);
    }
}

/// Whether `scripts/qdiff` fetches the default model for these arguments.
fn wants_model(arguments: &[&str]) -> bool {
    let script = read("scripts/qdiff");
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
    let commands = commands(&help(&[]));
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        // QDIFF_MODEL names the default. Without a model `compare` does something else.
        let takes = help(&[&command]).contains("QDIFF_MODEL");
        let command = command.as_str();
        assert_eq!(wants_model(&[command]), takes && command != "compare", "{command}");
        assert!(!wants_model(&[command, "-m", "mine.gguf"]), "{command}");
        assert!(!wants_model(&[command, "--help"]), "{command}");
    }
    assert!(wants_model(&["dequantise", "--out", "copy.gguf"]));
    assert!(wants_model(&["run", "--prompt", "compare"]));
    assert!(!wants_model(&["weights", "mine.gguf", "--against", "theirs.gguf"]));
}

/// The words of a command line that calls qdiff or qdiff-lab, with something in the place of what the reader fills in.
fn arguments(line: &str) -> Option<Vec<String>> {
    let words = markdown::words(line);
    let program = words.first()?.trim_start_matches("./").trim_start_matches("scripts/");
    let called = ["qdiff", "qdiff-lab"].contains(&program);
    let filled = |word: &String| match word.as_str() {
        "N" => "1".to_owned(),
        "ENGINE" => "cpu".to_owned(),
        _ => word.clone(),
    };
    called.then(|| std::iter::once(program.to_owned()).chain(words[1..].iter().map(filled)).collect())
}

/// What the program's own parser says of these words.
fn parsed(arguments: &[String]) -> Result<(), String> {
    let words = || arguments.iter().map(Into::into);
    let told = match arguments[0].as_str() {
        "qdiff-lab" => CommandLine::<Lab>::read(words()).err(),
        _ => Cli::read(words()).err(),
    };
    // Help and version are no errors.
    told.filter(|e| e.use_stderr()).map_or(Ok(()), |e| Err(e.to_string()))
}

/// Every command in every document is one that the program takes.
#[test]
fn every_documented_command_is_taken() {
    let mut taken = 0;
    for document in markdown::documents() {
        for line in document.block_lines() {
            let Some(arguments) = arguments(&line) else { continue };
            parsed(&arguments).unwrap_or_else(|e| panic!("{}: {line}\n{e}", document.path));
            taken += 1;
        }
        // The changelog also describes the past.
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

/// The help of a command.
fn help(command: &[&str]) -> String {
    let words = ["qdiff"].iter().chain(command).chain(&["--help"]);
    Cli::read(words.map(Into::into)).expect_err("help").to_string()
}

/// The commands that a help lists.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|l| !l.starts_with("Commands:")).skip(1).take_while(|l| !l.is_empty());
    let lines = lines.filter_map(|l| l.strip_prefix("  ")).filter(|l| !l.starts_with(' '));
    lines.filter_map(|l| l.split_whitespace().next()).filter(|c| *c != "help").map(str::to_owned).collect()
}

/// The help of a command of the lab.
fn lab_help(command: &str) -> String {
    let words = ["qdiff-lab", command, "--help"].into_iter().filter(|word| !word.is_empty());
    CommandLine::<Lab>::read(words.map(Into::into)).expect_err("help").to_string()
}

/// The long options of the programs and of the scripts.
fn options() -> BTreeSet<String> {
    let mut text = help(&[]);
    for command in commands(&text.clone()) {
        let of = help(&[&command]);
        for sub in commands(&of) {
            text += &help(&[&command, &sub]);
        }
        text += &of;
    }
    for command in commands(&lab_help("")) {
        text += &lab_help(&command);
    }
    for script in std::fs::read_dir(markdown::root().join("scripts")).unwrap() {
        text += &std::fs::read_to_string(script.unwrap().path()).unwrap();
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
        let blocks = document.block_lines();
        let lines = blocks.iter().chain(&spans).map(String::as_str);
        for word in lines.filter_map(|l| l.split([' ', ':', ',']).next()) {
            let word = word.trim_start_matches("./");
            let folders = ["engine/", "harness/", "synth/", "tests/", "docs/", "goldens/", "scripts/"];
            let named = folders.iter().any(|f| word.starts_with(f)) && !word.contains(|c: char| "*{<".contains(c));
            // NAME, ARCH and the like mean a file that the reader adds.
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
    let field: Value = serde_json::from_str(&read("goldens/results/field.json")).unwrap();
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
    let readme = read("README.md");
    let (_, rest) = readme.split_once("```python\n").unwrap();
    let (exporter, rest) = rest.split_once("```").unwrap();
    let command = rest.lines().find_map(|l| l.strip_prefix("qdiff run ")).unwrap();
    let folder = folder();
    folder.record("recorded", "-n 0");
    python(&folder, &format!("{ARRAYS}{exporter}"));
    let said = folder.qdiff(&format!("run {command}")).exits(0);
    assert!(said.stdout.starts_with("MATCH"), "{said}");
}

/// docs/stages.md is what the program says of every stage, and says something of each.
#[test]
fn the_table_of_stages_is_current() {
    let printed = empty().qdiff("stages").exits(0).stdout;
    assert_eq!(read("docs/stages.md"), printed, "write it again: qdiff stages > docs/stages.md");
    let python = empty().qdiff("stages --python").exits(0).stdout;
    let to = "tap/python/qdiff_capture/_stages.py";
    assert_eq!(read(to), python, "write it again: qdiff stages --python > {to}");
    for (arch, build) in ARCHITECTURES {
        for node in skeleton(*build, KINDS).nodes {
            assert!(printed.contains(&format!("| `{}`", node.id.name)), "{arch}: {}", node.id);
            // A symbol for each axis, and words of its own.
            assert_eq!(symbolic(&node).split(", ").filter(|s| !s.is_empty()).count(), node.shape.len(), "{}", node.id);
            assert_ne!(described(&node), "a product with a weight", "{}", node.id);
        }
    }
}

/// The tokens of a prompt, in one line.
#[test]
fn the_tokens_of_a_prompt_are_one_line() {
    let folder = folder();
    let line = folder.qdiff("prompts haiku --tokens -m model.gguf").exits(0).stdout;
    let ids: Vec<u64> = line.strip_suffix('\n').unwrap().split(',').map(|id| id.parse().unwrap()).collect();
    folder.record("haiku", "-n 0 --prompt haiku --stages embed");
    assert_eq!(folder.json("haiku/manifest.json")["tokens"], serde_json::json!(ids));
    folder.refuses("prompts haiku --tokens", &["name the model", "-m"]);
    // Also for a text of one's own: the tokens that a run of it is fed.
    folder.write("own.txt", "a text of my own");
    for given in ["@own.txt", "'a text of my own'", "@own.txt --raw", "@own.txt --system 'be brief'"] {
        let ids = folder.qdiff(&format!("prompts {given} --tokens -m model.gguf")).exits(0).stdout;
        let (_, report, _) = folder.told(&format!("run -m model.gguf -n 0 --subject cpu --prompt {given}"));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&format!("[{}]", ids.trim())).unwrap(),
            report["run"]["tokens"]
        );
    }
    folder.refuses("prompts @own.txt --tokens", &["name the model", "-m"]);
    folder.refuses("prompts haikku", &["no built-in prompt is called `haikku`; did you mean `haiku`?"]);
    folder.refuses_options("prompts --tokens", &["<NAME>"]);
}
