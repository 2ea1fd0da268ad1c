//! Help, completions and manual pages: they exist for every command, and the
//! examples in them can be run.

use qdiff_tests::synth::{Synth, base_vocab, patch};
use qdiff_tests::{Folder, Said, empty, folder, folder_with};

fn help(command: &str) -> String {
    empty().qdiff(&format!("{command} --help")).exits(0).stdout
}

/// Every command of both programs.
fn all_commands() -> Vec<(String, String)> {
    [commands(""), commands("qdiff-lab")].concat()
}

/// Every command with its help, subcommands of commands included.
fn commands(of: &str) -> Vec<(String, String)> {
    let text = help(of);
    let mut all = vec![(of.to_owned(), text.clone())];
    let listed = text.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| l.starts_with("  "));
    // Continued descriptions stand further to the right.
    for line in listed.map(|l| &l[2..]).filter(|l| !l.starts_with(' ')) {
        let name = line.split_whitespace().next().unwrap();
        if name != "help" {
            all.extend(commands(format!("{of} {name}").trim_start()));
        }
    }
    all
}

/// The lines under `Examples:`.
fn examples(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|l| *l != "Examples:").skip(1);
    lines.take_while(|l| l.starts_with("  ")).map(|l| l.trim().to_owned()).collect()
}

/// What the examples read and must find.
fn stage() -> Folder {
    // Deep enough for the layers that examples name.
    let folder = folder_with(&Synth { n_layers: 8, n_ff: 256, n_vocab: base_vocab(), ..Synth::default() });
    std::fs::copy(folder.join("model.gguf"), folder.join("damaged.gguf")).unwrap();
    folder.edit("damaged.gguf", |file| patch(file, "blk.0.ffn_up.weight", |bytes| bytes[0] ^= 1));
    folder.write("notes.txt", "Some notes on kernels.");
    folder.create("qdiff-report/haiku");
    folder.create("results");
    folder.qdiff("run -m model.gguf -n 0 --json a.json").exits(0);
    for copy in ["b.json", "qdiff-report/haiku/report.json"] {
        folder.write(copy, folder.text("a.json"));
    }
    folder.record("mine", "-n 0 --runner cpu");
    folder.record("llama", "-n 0 --runner llama");
    folder.record("trainer", "-n 0 --runner llama");
    folder.record("rollout", "-n 0 --runner cpu");
    // A command that is there, and is no engine.
    folder.write("engine", "#!/bin/sh\nexit 1\n");
    std::fs::set_permissions(folder.join("engine"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// Every example of every command runs: on a small model instead of the
/// default one, and in a folder that has the files they name.
#[test]
fn every_example_runs() {
    let folder = stage();
    let all = all_commands();
    assert!(all.len() > 10, "{}", all.len());
    let mut ran = 0;
    for (command, text) in &all {
        let examples = examples(text);
        let leaf = !text.contains("\nCommands:\n");
        assert!(!leaf || !examples.is_empty(), "{command} has no example");
        for example in examples {
            let line = example.strip_prefix("qdiff ").unwrap_or(&example);
            assert!(line != example || line.starts_with("qdiff-lab "), "{example}");
            // What is written must not be there yet.
            if let Some((_, out)) = line.split_once("--out ") {
                let _ = std::fs::remove_dir_all(folder.join(out.split(' ').next().unwrap()));
            }
            // The score takes minutes, and score.rs runs it: here its
            // arguments are taken, and then there is nothing to run on.
            let score = line.starts_with("qdiff-lab score");
            let environment = [("QDIFF_MODEL", "model.gguf"), ("QDIFF_DECODE", "2"), ("QDIFF_THREADS", "0")];
            let said = folder.qdiff_with(&environment[..if score { 3 } else { 2 }], line);
            if score {
                assert_eq!(said.stderr, "qdiff: --threads must be at least 1\n", "{example}");
            } else {
                // 1 is a verdict, and what an example with a fault is for.
                // A battery of what is no engine has no verdict.
                let no_engine = line.contains("./engine") && said.stderr.contains("no case could be run");
                assert!([0, 1, 3].contains(&said.code) || no_engine, "{example}: {said}");
            }
            ran += 1;
        }
    }
    assert!(ran >= 15, "only {ran} examples");
}

/// What is set for every run gives way to what is typed for one.
#[test]
fn the_environment_clashes_with_nothing() {
    let folder = folder();
    folder.record("mine", "-n 0");
    let environment =
        [("QDIFF_MODEL", "model.gguf"), ("QDIFF_PROMPT", "code"), ("QDIFF_DECODE", "2"), ("QDIFF_LENGTH", "5")];
    folder.qdiff_with(&environment, "record --like mine --out again").exits(0);
    assert_eq!(folder.json("again/manifest.json")["tokens"], folder.json("mine/manifest.json")["tokens"]);
    for (typed, option, other) in [
        ("record --like mine --out x -n 1", "like", "decode"),
        ("run --prompts notes.txt --tokens 1", "prompts", "tokens"),
        ("generate --nonce --prompt x", "nonce", "prompt"),
    ] {
        folder.refuses_options(typed, &[&format!("'--{option}' cannot be used with '--{other}'")]);
    }
}

/// What every command takes, under which heading, on one screen each.
#[test]
fn the_help_of_every_command() {
    for (command, _) in all_commands() {
        let short = empty().qdiff(&format!("{command} -h")).stdout;
        let name = format!("help {command}").trim_end().replace(' ', "_");
        insta::assert_snapshot!(name, short);
    }
}

#[test]
fn completions_know_every_command() {
    let all = commands("");
    let script = |shell: &str| empty().qdiff(&format!("completions {shell}")).exits(0).stdout;
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = script(shell);
        for word in all.iter().flat_map(|(command, _)| command.split(' ')) {
            assert!(text.contains(word), "{shell} does not know {word}");
        }
        for placeholder in ["{weight}", "{input}", "{stage}"] {
            assert!(!text.contains(placeholder), "{shell} shows {placeholder}");
        }
    }
    // The shell that every machine has takes them: commands, and names of every kind.
    let script = script("bash");
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
        // Longer than what one argument may hold.
        let folder = empty();
        folder.write("complete.sh", script);
        let output = std::process::Command::new("bash").arg(folder.join("complete.sh")).output().unwrap();
        assert_eq!(Said::from(output).stdout.trim(), expected, "{typed}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = empty();
    folder.qdiff("man pages/man1").exits(0);
    for (command, help) in commands("") {
        let path = format!("pages/man1/{}.1", format!("qdiff {command}").trim_end().replace(' ', "-"));
        let page = folder.text(&path);
        assert!(page.contains(".TH "), "{path}");
        assert_eq!(examples(&help).is_empty(), !page.contains("Examples:"), "{path}");
    }
    let one = folder.qdiff("man").stdout;
    assert!(one.contains(".TH qdiff 1"), "{one}");
}
