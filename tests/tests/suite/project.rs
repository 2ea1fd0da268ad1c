//! What holds for many runs: qdiff.toml, the environment, how much is printed.

use qdiff_tests::{Folder, Said, folder, markdown};
use serde_json::{Value, json};

/// A folder with a model, and what its qdiff.toml says.
fn project(text: &str) -> Folder {
    let folder = folder();
    folder.write("qdiff.toml", text);
    folder
}

#[test]
fn a_project_sets_what_is_not_said() {
    let folder =
        project("model = \"model.gguf\"\nsubject = \"cpu\"\nreference = \"cpu\"\ntolerance = [\"*.q_rope=0.5\"]\n");
    folder.create("deep/down");
    // Its paths are from its own folder, wherever qdiff is called. The command line wins over the environment, and that
    // over the file.
    let none = [("QDIFF_REFERENCE", "none")];
    for (environment, typed, code, reference, tolerance) in [
        (&[][..], "", 0, "cpu", "*.q_rope=0.5"),
        (&none, "", 3, "none", "*.q_rope=0.5"),
        (&none, "--reference llama --tolerance logits=0.5", 0, "llama.cpp (cpu)", "logits=0.5"),
    ] {
        let mut run = folder.command(&format!("run -n 1 --json r.json {typed}"));
        run.current_dir(folder.join("deep/down")).envs(environment.iter().copied());
        let screen = Said::from(run.output().unwrap()).exits(code).stdout;
        let report = folder.json("deep/down/r.json");
        assert_eq!(report["reference"]["name"], reference);
        assert!(typed.is_empty() || report["run"]["tolerance"] == json!([tolerance]), "{report}");
        // The report names a tolerance that was not typed, and the file that set it.
        let told = screen.contains(&format!("tolerance  {tolerance} (set by "));
        assert_eq!(told, typed.is_empty(), "{screen}");
        let command = report["run"]["command"].as_str().unwrap();
        assert!(command.contains(&format!("--tolerance '{tolerance}'")) || !typed.is_empty(), "{command}");
    }
}

/// A rule that a project's file set is the same rule where it is typed: such a report was never verified.
#[test]
fn a_report_with_tolerances_of_a_project_is_verified() {
    let folder = project("model = \"model.gguf\"\nsubject = \"cpu\"\ntolerance = [\"*.q_rope=0.5\"]\n");
    folder.qdiff("run -n 1 --json r.json").exits(0);
    folder.qdiff("report r.json --verify").exits(0);
}

/// The documented file is taken as it stands.
#[test]
fn the_example_is_a_project() {
    let folder = project(&markdown::read("docs/example.qdiff.toml"));
    folder.create("models");
    std::fs::rename(folder.join("model.gguf"), folder.join("models/model.gguf")).unwrap();
    for line in [
        "record -n 0 --out dump",
        "run",
        // Sides that run do not take the project's capture.
        "generate --subject cpu -n 1",
        "weights",
        "sweep -n 1 --sizes 2 --prompt one-token --length 4",
    ] {
        folder.qdiff(line).exits(0);
    }
    // Its report does not take the place of another capture's.
    assert!(folder.join("qdiff-report/dump/report.json").is_file());
}

#[test]
fn prompts_of_a_project() {
    let folder = project("model = \"model.gguf\"\nprompts = \"prompts.txt\"\n");
    folder.write("prompts.txt", "one-token\nHello there\n");
    for (prompt, verdict) in [("", "2 runs: 2 MATCH"), ("--prompt one-token", "MATCH")] {
        let said = folder.qdiff(&format!("run -n 0 --subject cpu {prompt}"));
        assert!(said.stdout.starts_with(verdict), "{said}");
    }
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
        folder.refuses("run -n 0", expected);
        // Help is given all the same.
        folder.qdiff("run --help").exits(0);
    }
}

/// Settings that decide a verdict come from the command line or a file, not from the environment.
#[test]
fn the_environment_sets_no_tolerance_and_no_fault() {
    let folder = project("model = \"model.gguf\"");
    let environment = [("QDIFF_TOLERANCE", "logits=9"), ("QDIFF_INJECT", "rope-base")];
    folder.qdiff_with(&environment, "run -n 0 --subject cpu --json r.json").exits(0);
    let report = folder.json("r.json");
    assert_eq!(report["subject"]["injected"], json!([]));
    assert_eq!(report["run"]["tolerance"], Value::Null);
}

#[test]
fn quiet_verbose_and_a_log() {
    let folder = project("model = \"model.gguf\"");
    let run = |extra: &str| folder.qdiff(&format!("run -n 0 --subject cpu {extra}"));
    let quiet = run("-q --json r.json");
    assert!(quiet.stdout.starts_with("MATCH: "), "{quiet}");
    assert!(quiet.stdout.lines().skip(1).all(|l| l.starts_with("  ")), "{quiet}");
    assert_eq!(quiet.stderr, "");
    assert_eq!(run("").stderr, "");
    let once = run("-v").stderr;
    assert!(once.contains("s] running cpu") && once.contains("s] judging against f64"), "{once}");
    let twice = run("-vv").stderr;
    assert!(twice.contains("llama_model_loader") && twice.len() > once.len(), "{twice}");
    assert_eq!(run("--log run.log").stderr, "");
    let log = folder.text("run.log");
    assert!(log.contains("s] running cpu") && log.contains("llama_model_loader"), "{log}");
    folder.refuses("run -n 0 --log absent/run.log", &["--log: cannot write absent/run.log"]);
}

/// Lists that a script reads.
#[test]
fn lists_as_json() {
    let folder = folder();
    let (_, file, screen) = folder.told("inspect model.gguf");
    let tokens = file["metadata"].as_array().unwrap().iter().find(|e| e["key"] == "tokenizer.ggml.tokens").unwrap();
    assert_eq!((&tokens["of"], tokens["value"].as_array().unwrap().len()), (&"str".into(), 8), "{tokens}");
    assert!(screen.contains(&format!("tokenizer.ggml.tokens = {} str: \"", tokens["count"])), "{screen}");
    assert!(!screen.contains("= arr"), "{screen}");
    assert!(file["graph"]["stage_names"].as_array().unwrap().contains(&"q_rope".into()));
    let (_, all, _) = folder.told("mutations list");
    assert!(all.as_array().unwrap().iter().any(|m| m["name"] == "rope-base" && m["params"][0]["name"] == "base"));
    assert_eq!(folder.told("mutations show rope-base").1["name"], "rope-base");
    let (_, devices, _) = folder.told("devices");
    assert!(devices["runners"].as_array().unwrap().iter().any(|r| r["name"] == "cpu" && r["lacks"] == Value::Null));
}

#[test]
fn prompts_show_their_text_and_ids() {
    let folder = folder();
    let all = folder.qdiff("prompts").stdout;
    assert!(all.contains("\"Write a haiku about GPU computing.\""), "{all}");
    let ids = folder.qdiff("prompts -m model.gguf").stdout;
    assert!(ids.contains("1 token: "), "{ids}");
    assert!(ids.contains("512 tokens: "), "{ids}");
}
