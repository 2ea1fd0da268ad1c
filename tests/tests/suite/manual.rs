//! Help, completions and manual pages: they exist for every command, and the
//! examples in them can be run.

use qdiff_tests::synth::{Synth, patch};
use qdiff_tests::{qdiff, qdiff_with, stderr, stdout};
use std::path::Path;

fn help(folder: &Path, command: &[&str]) -> String {
    let output = qdiff(folder, &[command, &["--help"]].concat());
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    stdout(&output)
}

/// Every command with its help, subcommands of commands included.
fn commands(folder: &Path, of: &[&str]) -> Vec<(Vec<String>, String)> {
    let text = help(folder, of);
    let own: Vec<String> = of.iter().map(|s| (*s).to_owned()).collect();
    let mut all = vec![(own.clone(), text.clone())];
    let listed = text.lines().skip_while(|l| *l != "Commands:").skip(1);
    for line in listed.take_while(|l| l.starts_with("  ")) {
        // Continued descriptions stand further to the right.
        let Some(name) = line.strip_prefix("  ").filter(|l| !l.starts_with(' ')) else {
            continue;
        };
        let name = name.split_whitespace().next().unwrap();
        if name != "help" {
            let path: Vec<&str> = of.iter().copied().chain([name]).collect();
            all.extend(commands(folder, &path));
        }
    }
    all
}

/// The lines under `Examples:`.
fn examples(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|l| *l != "Examples:").skip(1);
    lines.take_while(|l| l.starts_with("  ")).map(|l| l.trim().to_owned()).collect()
}

/// Splits as a shell does: blanks outside quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    assert!(!quoted, "a quote is open: {line}");
    words.push(word);
    words.retain(|w| !w.is_empty());
    words
}

/// What the examples read and must find.
fn stage(folder: &Path) {
    // Deep enough for the layers that examples name.
    let model = Synth { n_layers: 8, ..Synth::default() };
    model.write(&folder.join("model.gguf")).unwrap();
    let mut damaged = std::fs::read(folder.join("model.gguf")).unwrap();
    patch(&mut damaged, "blk.0.ffn_up.weight", |bytes| bytes[0] ^= 1);
    std::fs::write(folder.join("damaged.gguf"), damaged).unwrap();
    std::fs::write(folder.join("notes.txt"), "Some notes on kernels.").unwrap();
    for name in ["a.json", "b.json", "qdiff-report/haiku/report.json"] {
        std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        let output = qdiff(folder, &["run", "-m", "model.gguf", "-n", "0", "--json", name]);
        assert!(output.status.success(), "{}", stderr(&output));
    }
    std::fs::create_dir(folder.join("results")).unwrap();
    for (name, runner) in [("mine", "cpu"), ("llama", "llama")] {
        let record = ["record", "-m", "model.gguf", "-n", "0", "--runner", runner, "--out", name];
        let output = qdiff(folder, &record);
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

/// Every example of every command runs: on a small model instead of the
/// default one, and in a folder that has the files they name.
#[test]
fn every_example_runs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let all = commands(folder, &[]);
    assert!(all.len() > 10, "{}", all.len());
    let mut ran = 0;
    stage(folder);
    for (command, text) in &all {
        let examples = examples(text);
        let leaf = !text.contains("\nCommands:\n");
        assert!(!leaf || !examples.is_empty(), "{command:?} has no example");
        for example in examples {
            let words = words(&example);
            assert_eq!(words[0], "qdiff", "{example}");
            let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            // What is written must not be there yet.
            if let Some(at) = arguments.iter().position(|a| *a == "--out") {
                let _ = std::fs::remove_dir_all(folder.join(arguments[at + 1]));
            }
            let mut environment = vec![("QDIFF_MODEL", "model.gguf"), ("QDIFF_DECODE", "2")];
            // The score takes minutes, and score.rs runs it: here its
            // arguments are taken, and then there is nothing to run on.
            let score = arguments.starts_with(&["mutations", "score"]);
            if score {
                environment.push(("QDIFF_THREADS", "0"));
            }
            let output = qdiff_with(folder, &environment, &arguments);
            if score {
                let error = stderr(&output);
                assert_eq!(error, "qdiff: --threads must be at least 1\n", "{example}");
                ran += 1;
                continue;
            }
            // 1 is a verdict, and what an example with a fault is for.
            let code = output.status.code().unwrap();
            assert!(code < 2 || code == 3, "{example}: {code} {}", stderr(&output));
            ran += 1;
        }
    }
    assert!(ran >= 15, "only {ran} examples");
}

/// What is set for every run gives way to what is typed for one.
#[test]
fn the_environment_clashes_with_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    stage(folder);
    let environment =
        [("QDIFF_MODEL", "model.gguf"), ("QDIFF_PROMPT", "code"), ("QDIFF_DECODE", "2"), ("QDIFF_LENGTH", "5")];
    let record = ["record", "--like", "mine", "--out", "again"];
    let output = qdiff_with(folder, &environment, &record);
    assert!(output.status.success(), "{}", stderr(&output));
    let manifest = |name: &str| {
        let text = std::fs::read_to_string(folder.join(name).join("manifest.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["tokens"].clone()
    };
    assert_eq!(manifest("again"), manifest("mine"));
    for (typed, option, other) in [
        (&["record", "--like", "mine", "--out", "x", "-n", "1"][..], "like", "decode"),
        (&["run", "--prompts", "notes.txt", "--tokens", "1"], "prompts", "tokens"),
        (&["generate", "--nonce", "--prompt", "x"], "nonce", "prompt"),
    ] {
        let output = qdiff(folder, typed);
        assert_eq!(output.status.code(), Some(2), "{typed:?}");
        let clash = format!("'--{option}' cannot be used with '--{other}'");
        assert!(stderr(&output).contains(&clash), "{}", stderr(&output));
    }
}

/// What every command takes, under which heading, on one screen each.
#[test]
fn the_help_of_every_command() {
    let folder = tempfile::tempdir().unwrap();
    for (command, _) in commands(folder.path(), &[]) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let short = stdout(&qdiff(folder.path(), &[&words[..], &["-h"]].concat()));
        let name = std::iter::once("help").chain(words).collect::<Vec<_>>().join("_");
        insta::assert_snapshot!(name, short);
    }
}

#[test]
fn completions_know_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let all = commands(folder.path(), &[]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = qdiff(folder.path(), &["completions", shell]);
        assert!(output.status.success(), "{shell}: {}", stderr(&output));
        let text = stdout(&output);
        for (command, _) in &all {
            for word in command {
                assert!(text.contains(word), "{shell} does not know {word}");
            }
        }
    }
    // The shell that every machine has takes them: commands, and names of every kind.
    let script = stdout(&qdiff(folder.path(), &["completions", "bash"]));
    for (typed, expected) in [
        ("ru", "run"),
        ("run --inject qkv-bias-o", "qkv-bias-omitted"),
        ("run --stages attn_sc", "attn_scores"),
        ("run --subject llama-", "llama-cuda"),
        ("sweep --prompt hai", "haiku"),
    ] {
        let words: Vec<&str> = typed.split(' ').collect();
        let (at, last) = (words.len(), words.last().unwrap());
        let before = if at == 1 { "qdiff" } else { words[at - 2] };
        let script = format!(
            "{script}\nCOMP_WORDS=(qdiff {typed}); COMP_CWORD={at}; _qdiff qdiff '{last}' '{before}'; echo \"${{COMPREPLY[@]}}\""
        );
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        assert_eq!(stdout(&output).trim(), expected, "{typed}: {}", stderr(&output));
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let output = qdiff(folder.path(), &["man", "pages/man1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for (command, help) in commands(folder.path(), &[]) {
        let name: Vec<&str> = std::iter::once("qdiff").chain(command.iter().map(String::as_str)).collect();
        let path = folder.path().join(format!("pages/man1/{}.1", name.join("-")));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(page.contains(".TH "), "{}", path.display());
        assert_eq!(examples(&help).is_empty(), !page.contains("Examples:"), "{}", path.display());
    }
    let one = qdiff(folder.path(), &["man"]);
    assert!(stdout(&one).contains(".TH qdiff 1"), "{}", stdout(&one));
}
