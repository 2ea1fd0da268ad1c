//! What keeps the house in order, read from its source.

use qdiff_engine::model::{ARCHITECTURES, KINDS, skeleton};
use qdiff_tests::{Said, markdown};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every Rust file below `folder`, as a path from it, with its text but for
/// comments and its unit tests.
pub fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
                let lines = code.lines().filter(|l| !l.trim_start().starts_with("//"));
                let code = lines.collect::<Vec<_>>().join("\n");
                found.push((path.strip_prefix(folder).unwrap().to_path_buf(), code));
            }
        }
    }
    found.sort();
    found
}

/// The folders of the crates that qdiff is made of, with their names.
pub fn crates() -> Vec<(String, String)> {
    let manifest = std::fs::read_to_string(markdown::root().join("Cargo.toml")).unwrap();
    let members = manifest.split("members = [").nth(1).and_then(|text| text.split(']').next()).unwrap();
    let named = |folder: &str| match folder.rsplit('/').next().unwrap() {
        "harness" => (folder.to_owned(), "qdiff".to_owned()),
        last => (folder.to_owned(), format!("qdiff-{last}")),
    };
    members.split(", ").map(|folder| named(folder.trim_matches('"'))).filter(|(folder, _)| folder != "tests").collect()
}

/// The string literals of `code`, as they are written.
fn literals(code: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), code);
    while let Some(at) = rest.find('"') {
        let (before, text) = (&rest[..at], &rest[at + 1..]);
        if before.ends_with('\'') {
            rest = text;
            continue;
        }
        // `r#"` ends with as many marks as it began with, and escapes nothing.
        let marks = before.len() - before.trim_end_matches('#').len();
        let raw = before.trim_end_matches('#').ends_with('r');
        let end = match raw {
            true => text.find(&format!("\"{}", "#".repeat(marks))),
            false => text
                .char_indices()
                .scan(false, |escaped, (i, c)| {
                    let open = *escaped || c != '"';
                    *escaped = c == '\\' && !*escaped;
                    Some((i, open))
                })
                .find(|(_, open)| !open)
                .map(|(i, _)| i),
        };
        let end = end.expect("a literal ends");
        found.push(&text[..end]);
        rest = &text[end + 1..];
    }
    found
}

#[test]
fn every_form_of_a_literal_is_read() {
    let code = r##"f("a", '"', "b\"c\\", r"d\", r#"e"f"#, b"g")"##;
    assert_eq!(literals(code), ["a", "b\\\"c\\\\", "d\\", "e\"f", "g"]);
}

/// docs/unsafe.md says of every `unsafe` what the source says.
#[test]
fn every_unsafe_stands_in_the_table_with_its_contract() {
    let table = Command::new(markdown::root().join("scripts/unsafe-table")).arg("--check").output().unwrap();
    Said::from(table).exits(0);
}

/// A stage or a tensor is spelled where its graph declares it, and nowhere else:
/// code that names a stage is wrong for the next architecture.
#[test]
fn stages_and_tensors_are_spelled_in_the_model_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut stages, mut tensors, mut files) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (_, build) in ARCHITECTURES {
        for node in skeleton(*build, KINDS).nodes {
            stages.insert(node.id.name);
            // An op and a kernel are called as their files.
            files.insert(node.op.name().to_owned());
            let suffix = |name: &str| name.trim_start_matches("blk.0.").trim_start_matches("blk.1.").to_owned();
            tensors.extend(node.weights.iter().map(|w| suffix(&w.name)));
        }
    }
    for folder in ["engine/kernels", "engine/kernels/fused"] {
        let names = std::fs::read_dir(root.join(folder)).unwrap();
        files.extend(names.map(|f| f.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()));
    }
    // A command is called so as well.
    assert!(stages.remove("logits") && stages.len() > 20 && tensors.len() > 15);
    let mut spelled = Vec::new();
    for (folder, _) in crates() {
        for (file, code) in sources(&root.join(&folder).join("src")) {
            if file.starts_with("model") || file.ends_with("tests.rs") {
                continue;
            }
            // For the command line: examples in its help.
            let help = file.starts_with("cli/args");
            for literal in literals(&code) {
                let stage = stages.contains(literal) && !(folder == "engine" && files.contains(literal));
                if stage || (!help && tensors.iter().any(|t| literal.contains(t.as_str()))) {
                    spelled.push(format!("{folder}/src/{}: {literal:?}", file.display()));
                }
            }
        }
    }
    assert!(spelled.is_empty(), "{}", spelled.join("\n"));
}

/// Who judges, compares and reports knows an op by its anatomy, and never by its name.
#[test]
fn ops_are_named_by_engines_and_mutations_alone() {
    let mut named = Vec::new();
    for folder in ["oracle", "runners", "verdict", "compare", "report", "src"].map(|name| format!("harness/{name}")) {
        let root = markdown::root().join(&folder);
        for (file, code) in sources(&root).into_iter().filter(|(file, _)| !file.ends_with("tests.rs")) {
            let lines = code.lines().filter(|line| line.contains("Op::") || line.contains("op.name()"));
            named.extend(lines.map(|line| format!("{folder}/{}: {}", file.display(), line.trim())));
        }
    }
    assert!(named.is_empty(), "{}", named.join("\n"));
}

/// `scripts/fuzz` builds with the versions of its own lock file, which no other build reads.
#[test]
fn what_is_fuzzed_is_locked_with_all_that_it_needs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let lock = read("fuzz/Cargo.lock");
    for (folder, name) in crates().into_iter().filter(|(_, name)| name != "qdiff-lab") {
        let manifest = read(&format!("{folder}/Cargo.toml"));
        let needed = manifest.split("\n[dependencies]\n").nth(1).and_then(|text| text.split("\n[").next()).unwrap();
        let locked = lock.split(&format!("\nname = \"{name}\"\n")).nth(1).and_then(|text| text.split("\n\n").next());
        let locked = locked.unwrap_or_else(|| panic!("fuzz/Cargo.lock has no {name}"));
        for needed in
            needed.lines().filter_map(|line| line.split(['.', ' ']).next()).filter(|needed| !needed.is_empty())
        {
            let has = [format!("\"{needed}\""), format!("\"{needed} ")].iter().any(|entry| locked.contains(entry));
            assert!(has, "{needed} of {name}: run `cargo update -w --manifest-path fuzz/Cargo.toml`");
        }
    }
}
