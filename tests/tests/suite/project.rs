//! What holds for many runs: qdiff.toml, the environment, how much is said.

use qdiff_tests::synth::Synth;
use qdiff_tests::{qdiff, qdiff_with, stderr, stdout};
use serde_json::Value;
use std::path::Path;

/// A folder with a model, and what its qdiff.toml says.
fn project(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Synth::default().write(&folder.path().join("model.gguf")).unwrap();
    std::fs::write(folder.path().join("qdiff.toml"), text).unwrap();
    folder
}

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("r.json")).unwrap()).unwrap()
}

#[test]
fn a_project_sets_what_is_not_said() {
    let folder =
        project("model = \"model.gguf\"\nsubject = \"cpu\"\nreference = \"cpu\"\ntolerance = [\"*.q_rope=5\"]\n");
    let below = folder.path().join("deep/down");
    std::fs::create_dir_all(&below).unwrap();
    // Its paths are from its own folder, wherever qdiff is called.
    let output = qdiff(&below, &["run", "-n", "1", "--json", "r.json"]);
    let screen = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let of = report(&below);
    assert_eq!(of["reference"]["name"], "cpu");
    // A tolerance that nobody typed is told, and so is who set it.
    assert!(screen.contains("tolerance  *.q_rope=5 (set by "), "{screen}");
    assert!(of["run"]["command"].as_str().unwrap().contains("--tolerance '*.q_rope=5'"), "{of}");
    // The command line wins over the environment, and that over the file.
    let environment = [("QDIFF_REFERENCE", "none")];
    let output = qdiff_with(&below, &environment, &["run", "-n", "1", "--json", "r.json"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let typed = ["run", "-n", "1", "--json", "r.json", "--reference", "llama", "--tolerance", "logits=1"];
    let output = qdiff_with(&below, &environment, &typed);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(report(&below)["reference"]["name"], "llama.cpp (cpu)");
    assert_eq!(report(&below)["run"]["tolerance"], serde_json::json!(["logits=1"]));
}

/// The documented file is taken as it stands.
#[test]
fn the_example_is_a_project() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/qdiff.toml");
    let folder = project(&std::fs::read_to_string(example).unwrap());
    let folder = folder.path();
    std::fs::create_dir(folder.join("models")).unwrap();
    std::fs::rename(folder.join("model.gguf"), folder.join("models/model.gguf")).unwrap();
    let recorded = qdiff(folder, &["record", "-n", "0", "--out", "dump"]);
    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    let judged = qdiff(folder, &["run"]);
    assert_eq!(judged.status.code(), Some(0), "{}{}", stdout(&judged), stderr(&judged));
    // Sides that run do not take the project's capture.
    let generated = qdiff(folder, &["generate", "--subject", "cpu", "-n", "1"]);
    assert_eq!(generated.status.code(), Some(0), "{}", stderr(&generated));
    let weights = qdiff(folder, &["weights"]);
    assert_eq!(weights.status.code(), Some(0), "{}", stderr(&weights));
    let swept = qdiff(folder, &["sweep", "-n", "1", "--sizes", "2", "--prompt", "one-token", "--length", "4"]);
    assert_eq!(swept.status.code(), Some(0), "{}", stderr(&swept));
    // Its report does not take the place of another capture's.
    assert!(folder.join("qdiff-report/dump/report.json").is_file());
}

#[test]
fn prompts_of_a_project() {
    let folder = project("model = \"model.gguf\"\nprompts = \"prompts.txt\"\n");
    let folder = folder.path();
    std::fs::write(folder.join("prompts.txt"), "one-token\nHello there\n").unwrap();
    let all = qdiff(folder, &["run", "-n", "0", "--subject", "cpu"]);
    assert!(stdout(&all).starts_with("2 runs: 2 MATCH"), "{}{}", stdout(&all), stderr(&all));
    let one = qdiff(folder, &["run", "-n", "0", "--subject", "cpu", "--prompt", "one-token"]);
    assert!(stdout(&one).starts_with("MATCH"), "{}{}", stdout(&one), stderr(&one));
}

#[test]
fn a_file_that_cannot_be_read_names_itself_and_the_key() {
    for (text, expected) in [
        ("modle = \"x\"", &["qdiff.toml", "line 1", "modle"][..]),
        ("\nsubject = \"cdua\"", &["qdiff.toml", "`subject`", "cdua"]),
        ("tolerance = [\"q_rope\"]", &["qdiff.toml", "`tolerance`", "GLOB=NUMBER"]),
        ("\n\ntolerance = 3", &["qdiff.toml", "line 3"]),
        ("model = ", &["qdiff.toml", "line 1"]),
    ] {
        let folder = project(text);
        let output = qdiff(folder.path(), &["run", "-n", "0"]);
        assert_eq!(output.status.code(), Some(2), "{text}");
        for word in expected {
            assert!(stderr(&output).contains(word), "{text}: {}", stderr(&output));
        }
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        // Help is given all the same.
        assert!(qdiff(folder.path(), &["run", "--help"]).status.success());
    }
}

/// What decides a verdict is typed or stands in a file, not in the environment.
#[test]
fn the_environment_sets_no_tolerance_and_no_fault() {
    let folder = project("model = \"model.gguf\"");
    let environment = [("QDIFF_TOLERANCE", "logits=9"), ("QDIFF_INJECT", "rope-base")];
    let output = qdiff_with(folder.path(), &environment, &["run", "-n", "0", "--subject", "cpu", "--json", "r.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(report(folder.path())["subject"]["injected"], serde_json::json!([]));
    assert_eq!(report(folder.path())["run"]["tolerance"], Value::Null);
}

#[test]
fn quiet_verbose_and_a_log() {
    let folder = project("model = \"model.gguf\"");
    let folder = folder.path();
    let run = |extra: &[&str]| qdiff(folder, &[&["run", "-n", "0", "--subject", "cpu"], extra].concat());
    let quiet = run(&["-q", "--json", "r.json"]);
    let said = stdout(&quiet);
    assert!(said.starts_with("MATCH: "), "{said}");
    assert!(said.lines().skip(1).all(|l| l.starts_with("  ")), "{said}");
    assert_eq!(stderr(&quiet), "");
    assert_eq!(stderr(&run(&[])), "");
    let once = stderr(&run(&["-v"]));
    assert!(once.contains("s] running cpu") && once.contains("s] judging against f64"), "{once}");
    let twice = stderr(&run(&["-vv"]));
    assert!(twice.contains("llama_model_loader") && twice.len() > once.len(), "{twice}");
    let logged = run(&["--log", "run.log"]);
    assert_eq!(stderr(&logged), "");
    let log = std::fs::read_to_string(folder.join("run.log")).unwrap();
    assert!(log.contains("s] running cpu") && log.contains("llama_model_loader"), "{log}");
    let refused = run(&["--log", "absent/run.log"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--log: cannot write absent/run.log"), "{}", stderr(&refused));
}

/// Lists that a script reads.
#[test]
fn lists_as_json() {
    let folder = project("");
    let folder = folder.path();
    let read = |args: &[&str]| -> (Value, String) {
        let output = qdiff(folder, &[args, &["--json", "r.json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        (report(folder), stdout(&output))
    };
    let (file, screen) = read(&["inspect", "model.gguf"]);
    let tokens = file["metadata"].as_array().unwrap().iter().find(|e| e["key"] == "tokenizer.ggml.tokens").unwrap();
    assert_eq!((&tokens["of"], tokens["value"].as_array().unwrap().len()), (&"str".into(), 8), "{tokens}");
    assert!(screen.contains(&format!("tokenizer.ggml.tokens = {} str: \"", tokens["count"])), "{screen}");
    assert!(!screen.contains("= arr"), "{screen}");
    assert!(file["graph"]["stage_names"].as_array().unwrap().contains(&"q_rope".into()));
    let (all, _) = read(&["mutations", "list"]);
    assert!(all.as_array().unwrap().iter().any(|m| m["name"] == "rope-base" && m["params"][0]["name"] == "base"));
    assert_eq!(read(&["mutations", "show", "rope-base"]).0["name"], "rope-base");
    let (devices, _) = read(&["devices"]);
    assert!(devices["runners"].as_array().unwrap().iter().any(|r| r["name"] == "cpu" && r["lacks"] == Value::Null));
}

#[test]
fn prompts_show_their_text_and_ids() {
    let folder = project("");
    let all = stdout(&qdiff(folder.path(), &["prompts"]));
    assert!(all.contains("\"Write a haiku about GPU computing.\""), "{all}");
    let ids = stdout(&qdiff(folder.path(), &["prompts", "-m", "model.gguf"]));
    assert!(ids.contains("1 token: "), "{ids}");
    assert!(ids.contains("512 tokens: "), "{ids}");
}
