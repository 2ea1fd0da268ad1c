//! `qdiff run --prompts`: many prompts, the worst first, in parts.

use qdiff_tests::synth::Synth;
use qdiff_tests::{qdiff, stderr, stdout};
use serde_json::Value;
use std::path::Path;

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Synth::default().write(&folder.path().join("model.gguf")).unwrap();
    std::fs::write(folder.path().join("prompts.txt"), "haiku\n\nWhat is a matrix?\none-token\n").unwrap();
    folder
}

fn run(folder: &Path, extra: &[&str]) -> (Option<i32>, String, String) {
    let mut args = vec!["run", "-m", "model.gguf", "-n", "2", "--subject", "cpu"];
    args.extend(extra);
    let output = qdiff(folder, &args);
    (output.status.code(), stdout(&output), stderr(&output))
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// First words of the rows below the heading.
fn rows(screen: &str) -> Vec<(String, String)> {
    let table = screen.split("first origin\n").nth(1).unwrap_or("");
    table
        .lines()
        .take_while(|l| !l.starts_with("reports"))
        .filter_map(|l| {
            let mut words = l.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        })
        .collect()
}

#[test]
fn prompts_of_a_file() {
    let folder = folder();
    let (code, screen, said) = run(folder.path(), &["--prompts", "prompts.txt", "--json-dir", "out"]);
    assert_eq!(code, Some(0), "{screen}{said}");
    assert!(screen.starts_with("3 runs: 3 MATCH"), "{screen}");
    let mut names: Vec<String> = rows(&screen).into_iter().map(|r| r.0).collect();
    names.sort();
    assert_eq!(names, ["haiku", "one-token", "prompts.txt:3"]);
    assert_eq!(
        files(&folder.path().join("out")),
        ["0000-prompts_txt_1.json", "0001-prompts_txt_3.json", "0002-prompts_txt_4.json"]
    );
    let text = std::fs::read(folder.path().join("out/0001-prompts_txt_3.json")).unwrap();
    let report: Value = serde_json::from_slice(&text).unwrap();
    let command = report["run"]["command"].as_str().unwrap();
    assert!(command.contains("--prompt 'What is a matrix?'"), "{command}");
}

#[test]
fn parts_are_put_together_and_the_worst_comes_first() {
    let folder = folder();
    let prompts = folder.path().join("prompts");
    std::fs::create_dir(&prompts).unwrap();
    for (name, text) in [("b.txt", "Two"), ("a.txt", "One"), ("c.txt", "Three"), ("d.md", "no prompt")] {
        std::fs::write(prompts.join(name), text).unwrap();
    }
    // A fault in one part only, so that the runs differ.
    let fault = ["--inject", "rope-base@L01"];
    for (part, extra) in [("1/2", &[][..]), ("2/2", &fault[..])] {
        let mut args = vec!["--prompts", "prompts", "--shard", part, "--json-dir", "out"];
        args.extend(extra);
        let (code, screen, said) = run(folder.path(), &args);
        assert_eq!(code, Some(i32::from(part == "2/2")), "{screen}{said}");
    }
    assert_eq!(files(&folder.path().join("out")), ["0000-a.json", "0001-b.json", "0002-c.json"]);
    let all = ["0000-a", "0001-b", "0002-c"].map(|n| format!("out/{n}.json"));
    let mut args = vec!["report"];
    args.extend(all.iter().map(String::as_str));
    args.extend(["--report", "all.md"]);
    let output = qdiff(folder.path(), &args);
    let screen = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{screen}");
    assert!(screen.starts_with("3 runs: 1 DIVERGED, 2 MATCH"), "{screen}");
    assert_eq!(rows(&screen)[0], ("prompts/b.txt".into(), "DIVERGED".into()));
    assert!(screen.contains("L01.q_rope rope-base"), "{screen}");
    assert!(folder.path().join("all.md").is_file());
}

#[test]
fn one_bad_prompt_does_not_stop_the_others() {
    let folder = folder();
    let long = "many words ".repeat(3000);
    std::fs::write(folder.path().join("prompts.txt"), format!("haiku\n{long}\n@absent.txt\n")).unwrap();
    let (code, screen, said) = run(folder.path(), &["--prompts", "prompts.txt"]);
    assert_eq!(code, Some(2), "{screen}{said}");
    assert!(screen.contains("haiku"), "{screen}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains("prompts.txt:2: the prompt of"), "{said}");
    assert!(said.contains("absent.txt"), "{said}");
}

#[test]
fn what_cannot_be_a_batch() {
    let folder = folder();
    std::fs::write(folder.path().join("empty.txt"), "\n\n").unwrap();
    std::fs::write(folder.path().join("stdin.txt"), "-\n").unwrap();
    for (args, expected) in [
        (&["--prompts", "absent.txt"][..], "cannot read absent.txt"),
        (&["--prompts", "empty.txt"], "holds no prompt"),
        (&["--prompts", "stdin.txt"], "standard input"),
        (&["--prompts", "prompts.txt", "--shard", "4/4"], "use fewer parts"),
        (&["--prompts", "prompts.txt", "--shard", "0/4"], "PART/PARTS"),
        (&["--shard", "1/2"], "--prompts"),
        (&["--json-dir", "x"], "--prompts"),
        (&["--prompts", "prompts.txt", "--tokens", "1"], "--tokens"),
        (&["--prompts", "prompts.txt", "--json", "x.json"], "x.json"),
    ] {
        let (code, screen, said) = run(folder.path(), args);
        assert_eq!(code, Some(2), "{args:?}: {screen}");
        assert!(said.contains(expected), "{args:?}: {said}");
        assert_eq!(screen, "", "{args:?}");
    }
}

/// `qdiff report` of these files of `out`.
fn together(folder: &Path, names: &[&str]) -> (Option<i32>, String, String) {
    let paths: Vec<String> = names.iter().map(|n| format!("out/{n}.json")).collect();
    let mut args = vec!["report"];
    args.extend(paths.iter().map(String::as_str));
    let output = qdiff(folder, &args);
    (output.status.code(), stdout(&output), stderr(&output))
}

#[test]
fn a_batch_with_gaps_is_no_pass() {
    let folder = folder();
    let folder = folder.path();
    let batch = ["--prompts", "prompts.txt", "--json-dir", "out"];
    let all = ["haiku", "One", "Two"];
    let write = |prompts: &[&str]| {
        std::fs::write(folder.join("prompts.txt"), prompts.join("\n")).unwrap();
    };
    let names = [1, 2, 3].map(|n| format!("{:04}-prompts_txt_{n}", n - 1));
    let names = [0, 1, 2].map(|i| names[i].as_str());
    write(&all);
    assert_eq!(run(folder, &batch).0, Some(0));
    assert_eq!(together(folder, &names).0, Some(0));
    // A part that was killed, whole or but for one prompt.
    for (some, expected) in [
        (&names[..2], "1 of 3 runs of a batch missing: prompt 3"),
        (&names[1..2], "2 of 3 runs of a batch missing: prompt 1, 3"),
    ] {
        let (code, screen, said) = together(folder, some);
        assert_eq!(code, Some(3), "{screen}{said}");
        assert!(screen.starts_with("INCOMPLETE: "), "{screen}");
        assert!(screen.contains(expected), "{screen}");
    }
    // Nor is it one in the files made of them.
    let files = names[..2].iter().map(|n| format!("out/{n}.json"));
    let mut args = vec!["report".to_owned()];
    args.extend(files);
    args.extend(["--report", "all.xml", "--report", "all.md"].map(str::to_owned));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert_eq!(qdiff(folder, &args).status.code(), Some(3));
    let [xml, markdown] = ["all.xml", "all.md"].map(|f| std::fs::read_to_string(folder.join(f)).unwrap());
    let suites = roxmltree::Document::parse(&xml).unwrap();
    assert_eq!(suites.root_element().attribute("errors"), Some("1"), "{xml}");
    assert!(markdown.starts_with("**INCOMPLETE:** 1 of 3"), "{markdown}");
    // A prompt that fails stands as a failure, though it once was a match.
    write(&["haiku", "@absent.txt", "Two"]);
    assert_eq!(run(folder, &batch).0, Some(2));
    let failure = std::fs::read(folder.join("out").join(format!("{}.json", names[1]))).unwrap();
    let failure: Value = serde_json::from_slice(&failure).unwrap();
    assert_eq!(failure["kind"], "failure");
    assert_eq!((&failure["batch"]["number"], &failure["batch"]["of"]), (&2.into(), &3.into()));
    let (code, screen, said) = together(folder, &names);
    assert_eq!(code, Some(2), "{screen}{said}");
    assert!(said.contains("absent.txt"), "{said}");
    assert!(screen.starts_with("2 runs: 2 MATCH"), "{screen}");
    // What is left of a longer batch does not count into a shorter one.
    write(&all[..2]);
    assert_eq!(run(folder, &batch).0, Some(0));
    assert_eq!(together(folder, &names[..2]).0, Some(0));
    let (code, screen, said) = together(folder, &names);
    assert_eq!(code, Some(2), "{screen}{said}");
    assert!(said.contains("different batches"), "{said}");
    let output = qdiff(folder, &["schema", "failure"]);
    assert!(stdout(&output).contains("\"batch\""), "{}", stderr(&output));
}
