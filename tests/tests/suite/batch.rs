//! `qdiff run --prompts`: many prompts, the worst first, in parts.

use qdiff_tests::{Folder, Said, files, folder as model};

fn folder() -> Folder {
    let folder = model();
    folder.write("prompts.txt", "haiku\n\nWhat is a matrix?\none-token\n");
    folder
}

fn run(folder: &Folder, extra: &str) -> Said {
    folder.qdiff(&format!("run -m model.gguf -n 2 --subject cpu {extra}"))
}

/// First words of the rows below the heading.
fn rows(screen: &str) -> Vec<[&str; 2]> {
    let table = screen.split("first origin\n").nth(1).unwrap_or("");
    let words = table.lines().take_while(|l| !l.starts_with("reports")).map(str::split_whitespace);
    words.filter_map(|mut w| Some([w.next()?, w.next()?])).collect()
}

#[test]
fn prompts_of_a_file() {
    let folder = folder();
    let screen = run(&folder, "--prompts prompts.txt --json-dir out").exits(0).stdout;
    assert!(screen.starts_with("3 runs: 3 MATCH"), "{screen}");
    let mut names: Vec<&str> = rows(&screen).into_iter().map(|r| r[0]).collect();
    names.sort();
    assert_eq!(names, ["haiku", "one-token", "prompts.txt:3"]);
    assert_eq!(
        files(&folder.join("out")),
        ["0000-prompts_txt_1.json", "0001-prompts_txt_3.json", "0002-prompts_txt_4.json"]
    );
    let report = folder.json("out/0001-prompts_txt_3.json");
    let command = report["run"]["command"].as_str().unwrap();
    assert!(command.contains("--prompt 'What is a matrix?'"), "{command}");
}

#[test]
fn parts_are_put_together_and_the_worst_comes_first() {
    let folder = folder();
    folder.create("prompts");
    for (name, text) in [("b.txt", "Two"), ("a.txt", "One"), ("c.txt", "Three"), ("d.md", "no prompt")] {
        folder.write(&format!("prompts/{name}"), text);
    }
    // A fault in one part only, so that the runs differ.
    for (part, code) in [("1/2", 0), ("2/2 --inject rope-base@L01", 1)] {
        run(&folder, &format!("--prompts prompts --json-dir out --shard {part}")).exits(code);
    }
    assert_eq!(files(&folder.join("out")), ["0000-a.json", "0001-b.json", "0002-c.json"]);
    let all = folder.qdiff("report out/0000-a.json out/0001-b.json out/0002-c.json --report all.md").exits(1);
    assert!(all.stdout.starts_with("3 runs: 1 DIVERGED, 2 MATCH"), "{all}");
    assert_eq!(rows(&all.stdout)[0], ["prompts/b.txt", "DIVERGED"]);
    assert!(all.stdout.contains("L01.q_rope rope-base"), "{all}");
    assert!(folder.join("all.md").is_file());
}

#[test]
fn one_bad_prompt_does_not_stop_the_others() {
    let folder = folder();
    folder.write("prompts.txt", format!("haiku\n{}\n@absent.txt\n", "many words ".repeat(3000)));
    let said = run(&folder, "--prompts prompts.txt").exits(2);
    assert!(said.stdout.contains("haiku"), "{said}");
    assert_eq!(said.stderr.lines().count(), 2, "{said}");
    assert!(said.stderr.contains("prompts.txt:2: the prompt of"), "{said}");
    assert!(said.stderr.contains("absent.txt"), "{said}");
}

#[test]
fn what_cannot_be_a_batch() {
    let folder = folder();
    folder.write("empty.txt", "\n\n");
    folder.write("stdin.txt", "-\n");
    for (args, expected) in [
        ("--prompts absent.txt", "cannot read absent.txt"),
        ("--prompts empty.txt", "holds no prompt"),
        ("--prompts stdin.txt", "standard input"),
        ("--prompts prompts.txt --shard 4/4", "use fewer parts"),
        ("--prompts prompts.txt --json x.json", "x.json"),
    ] {
        folder.refuses(&format!("run -m model.gguf -n 2 --subject cpu {args}"), &[expected]);
    }
    for (args, expected) in [
        ("--prompts prompts.txt --shard 0/4", "PART/PARTS"),
        ("--shard 1/2", "--prompts"),
        ("--json-dir x", "--prompts"),
        ("--prompts prompts.txt --tokens 1", "--tokens"),
    ] {
        folder.refuses_options(&format!("run -m model.gguf {args}"), &[expected]);
    }
}

#[test]
fn a_batch_with_gaps_is_no_pass() {
    let folder = folder();
    let batch = |prompts: &[&str], code| {
        folder.write("prompts.txt", prompts.join("\n"));
        run(&folder, "--prompts prompts.txt --json-dir out").exits(code);
    };
    let [first, second, third] = [1, 2, 3].map(|n| format!("out/{:04}-prompts_txt_{n}.json", n - 1));
    let together = |names: &[&str]| folder.qdiff(&format!("report {}", names.join(" ")));
    let all = [first.as_str(), &second, &third];
    batch(&["haiku", "One", "Two"], 0);
    together(&all).exits(0);
    // A part that was killed, whole or but for one prompt.
    for (some, expected) in [
        (&all[..2], "1 of 3 runs of a batch missing: prompt 3"),
        (&all[1..2], "2 of 3 runs of a batch missing: prompt 1, 3"),
    ] {
        let screen = together(some).exits(3).stdout;
        assert!(screen.starts_with("INCOMPLETE: ") && screen.contains(expected), "{screen}");
    }
    // Nor is it one in the files made of them.
    together(&[&first, &second, "--report all.xml --report all.md"]).exits(3);
    let (xml, markdown) = (folder.text("all.xml"), folder.text("all.md"));
    let suites = roxmltree::Document::parse(&xml).unwrap();
    assert_eq!(suites.root_element().attribute("errors"), Some("1"), "{xml}");
    assert!(markdown.starts_with("**INCOMPLETE:** 1 of 3"), "{markdown}");
    // A prompt that fails counts as a failure, though it once was a match.
    batch(&["haiku", "@absent.txt", "Two"], 2);
    let failure = folder.json(&second);
    assert_eq!(failure["kind"], "failure");
    assert_eq!((&failure["batch"]["number"], &failure["batch"]["of"]), (&2.into(), &3.into()));
    let said = together(&all).exits(2);
    assert!(said.stderr.contains("absent.txt"), "{said}");
    assert!(said.stdout.starts_with("2 runs: 2 MATCH"), "{said}");
    // What is left of a longer batch does not count into a shorter one.
    batch(&["haiku", "One"], 0);
    together(&all[..2]).exits(0);
    let said = together(&all).exits(2);
    assert!(said.stderr.contains("different batches"), "{said}");
    let schema = folder.qdiff("schema failure");
    assert!(schema.stdout.contains("\"batch\""), "{schema}");
}
