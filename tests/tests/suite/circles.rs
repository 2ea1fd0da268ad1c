//! No file imports in a circle, and no folder: whoever reads a file can do so with nothing in mind but those that it imports,
//! all the way down. Read from the source. A `mod` line, a re-export and a unit test are no imports: what a file takes through a
//! re-export it takes from the file that defines it.

use crate::house::{crates, sources};
use qdiff_tests::markdown;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The names of a path, such as `crate`, `model` and `Graph`.
type Names = Vec<String>;

/// A name that a `use` brings into a file, what it means, and whether others get it from there.
struct Use {
    public: bool,
    name: String,
    path: Names,
}

/// A file, as far as imports are concerned.
struct Source {
    file: PathBuf,
    uses: Vec<Use>,
    /// All but the `use` lines.
    code: String,
}

/// A crate: its files by the path of their module.
struct Crate(BTreeMap<Names, Source>);

fn names(text: &str) -> Names {
    text.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// The names that a tree such as `a::{b, c::{self, d as e}}` brings, each with its path.
fn expand(prefix: &[String], tree: &str, found: &mut Vec<(String, Names)>) {
    let Some((head, list)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name.trim())));
        let mut path: Names = prefix.iter().cloned().chain(names(path)).collect();
        path.pop_if(|last| last == "self");
        let name = name.or(path.last().map(String::as_str)).unwrap_or_default().to_owned();
        if !path.is_empty() {
            found.push((name, path));
        }
        return;
    };
    let prefix: Names = prefix.iter().cloned().chain(names(head)).collect();
    let (mut depth, mut item) = (0, String::new());
    for c in list.trim_end().trim_end_matches('}').chars().chain([',']) {
        depth += i32::from(c == '{') - i32::from(c == '}');
        match c {
            ',' if depth == 0 => expand(&prefix, std::mem::take(&mut item).trim(), found),
            c => item.push(c),
        }
    }
}

impl Source {
    fn of(file: &Path, text: &str) -> Self {
        let (mut uses, mut code) = (Vec::new(), String::new());
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let line = line.trim_start();
            let (public, rest) = match line.strip_prefix("pub") {
                Some(rest) => (true, rest.split_once(") ").map_or(rest, |(_, rest)| rest).trim_start()),
                None => (false, line),
            };
            let Some(tree) = rest.strip_prefix("use ") else {
                code += line;
                code.push('\n');
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.contains(';') {
                tree += lines.next().expect("a use ends");
            }
            let mut found = Vec::new();
            expand(&[], tree.split(';').next().unwrap(), &mut found);
            uses.extend(found.into_iter().map(|(name, path)| Use { public, name, path }));
        }
        Self { file: file.to_path_buf(), uses, code }
    }

    /// Every path of two or more names in the code.
    fn paths(&self) -> Vec<Names> {
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let all = self.code.split(|c| !word(c)).filter(|text| text.contains("::") && !text.starts_with(':'));
        all.map(names).filter(|path| path.len() > 1).collect()
    }

    fn defines(&self, name: &str) -> bool {
        let kinds = ["fn", "struct", "enum", "trait", "const", "static", "type", "macro_rules!"];
        kinds.iter().any(|kind| {
            let begins = format!("{kind} {name}");
            let word = |c: char| c.is_alphanumeric() || c == '_';
            self.code.match_indices(&begins).any(|(at, _)| !self.code[at + begins.len()..].starts_with(word))
        })
    }
}

impl Crate {
    fn of(files: impl IntoIterator<Item = (PathBuf, String)>) -> Self {
        let module = |file: &Path| {
            let mut names: Names =
                file.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
            names.pop_if(|last| last == "mod" || last == "lib");
            names
        };
        let files = files.into_iter().filter(|(file, _)| file != Path::new("main.rs"));
        Self(files.map(|(file, text)| (module(&file), Source::of(&file, &text))).collect())
    }

    /// A path as it is seen from the crate's root, if it is of this crate.
    fn whole(&self, module: &[String], path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => {
                let (_, above) = module.split_last()?;
                match rest.first().map(String::as_str) {
                    Some("super") => self.whole(above, rest),
                    _ => Some([above, rest].concat()),
                }
            }
            _ => self.0.contains_key(&[module, &path[..1]].concat()).then(|| [module, path].concat()),
        }
    }

    /// The module whose file defines the item at a path.
    fn definition(&self, path: &[String], seen: &mut BTreeSet<Names>) -> Option<Names> {
        if !seen.insert(path.to_vec()) {
            return None;
        }
        let length = (0..=path.len()).rev().find(|n| self.0.contains_key(&path[..*n]))?;
        let (module, rest) = path.split_at(length);
        let Some((name, rest)) = rest.split_first() else { return Some(module.to_vec()) };
        let source = &self.0[module];
        let whole = |path: &[String], rest: &[String]| Some([&self.whole(module, path)?, rest].concat());
        let brought = source.uses.iter().filter(|found| found.name == *name).find_map(|found| {
            let path = whole(&found.path, rest)?;
            self.definition(&path, seen)
        });
        if brought.is_some() || source.defines(name) {
            return brought.or(Some(module.to_vec()));
        }
        let all = source.uses.iter().filter(|found| found.name == "*");
        let through = all.filter_map(|all| {
            let path = whole(&all.path[..all.path.len() - 1], std::slice::from_ref(name))?;
            self.definition(&path, seen).filter(|found| self.0[found].defines(name))
        });
        // What a macro defines is taken for the file's.
        Some(through.last().unwrap_or_else(|| module.to_vec()))
    }

    /// The files that each file imports.
    fn imports(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut graph: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (module, source) in &self.0 {
            let mut taken: Vec<Names> = Vec::new();
            let paths = source.paths();
            for found in source.uses.iter().filter(|found| !found.public) {
                let Some(path) = self.whole(module, &found.path) else { continue };
                match self.0.contains_key(&path) {
                    // A module: what of it is named.
                    true => {
                        let of = paths.iter().filter(|of| of[0] == found.name);
                        taken.extend(of.map(|of| [&path, &of[1..]].concat()));
                    }
                    false if found.name == "*" => taken.push(path[..path.len() - 1].to_vec()),
                    false => taken.push(path),
                }
            }
            let brought = |name: &String| source.uses.iter().any(|found| found.name == *name);
            taken.extend(paths.iter().filter(|of| !brought(&of[0])).filter_map(|of| self.whole(module, of)));
            let files = taken.iter().filter_map(|path| self.definition(path, &mut BTreeSet::new()));
            let files = files.map(|of| self.0[&of].file.as_path()).filter(|file| *file != source.file);
            graph.entry(&source.file).or_default().extend(files);
        }
        graph
    }
}

/// The shortest way from `start` back to itself.
fn circle<T: Ord + Clone>(graph: &BTreeMap<T, BTreeSet<T>>, start: &T) -> Option<Vec<T>> {
    let mut open = std::collections::VecDeque::from([vec![start.clone()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = open.pop_front() {
        for next in graph.get(way.last()?).into_iter().flatten() {
            let longer: Vec<T> = way.iter().chain([next]).cloned().collect();
            if next == start {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                open.push_back(longer);
            }
        }
    }
    None
}

#[test]
fn no_file_and_no_folder_imports_in_a_circle() {
    let (mut arrows, mut wrong) = (0, Vec::new());
    for (folder, _) in crates() {
        let read = Crate::of(sources(&markdown::root().join(&folder).join("src")));
        let files = read.imports();
        arrows += files.values().map(BTreeSet::len).sum::<usize>();
        let shown = |file: &&Path| file.display().to_string();
        // The search for laws is being taken apart.
        let left =
            |way: &Vec<&Path>| folder == "harness/diagnose" && way.iter().all(|file| file.starts_with("diagnose"));
        let ways = files.keys().filter_map(|file| circle(&files, file)).filter(|way| !left(way));
        wrong.extend(
            ways.map(|way| format!("{folder}: {}", way.iter().map(shown).collect::<Vec<_>>().join(" imports "))),
        );
        // The folders and files directly below `src`.
        let top = |file: &&Path| file.iter().next().unwrap().to_string_lossy().trim_end_matches(".rs").to_owned();
        let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (file, imported) in files.iter().filter(|(file, _)| **file != Path::new("lib.rs")) {
            let others = imported.iter().map(top).filter(|other| *other != top(file));
            folders.entry(top(file)).or_default().extend(others);
        }
        let ways = folders.keys().filter_map(|module| circle(&folders, module));
        wrong.extend(ways.map(|way| format!("{folder}: {}", way.join(" imports "))));
    }
    assert!(wrong.is_empty(), "{} circles\n{}", wrong.len(), wrong.join("\n"));
    assert!(arrows >= 1500, "only {arrows} imports were found: they are no longer read");
}

/// The reader sees every form of an import, and through re-exports.
#[test]
fn every_form_of_an_import_is_read() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\npub use a::{One, c::Two as Other};"),
        ("a/mod.rs", "pub mod c;\nmod d;\npub(crate) use d::*;\npub struct One;"),
        ("a/c.rs", "use super::{\n    One,\n    Four as Five,\n};\npub struct Two;"),
        ("a/d.rs", "use std::fmt;\npub struct Four;\nfn of() { crate::b::three() }"),
        ("b.rs", "use crate::{a::c::{self, Two}, Other};\npub fn three() { c::new(); super::One }"),
    ];
    let read = Crate::of(files.map(|(file, text)| (PathBuf::from(file), text.to_owned())));
    let imports = read.imports();
    let of = |file: &str| imports[Path::new(file)].iter().map(|f| f.display().to_string()).collect::<Vec<_>>();
    assert_eq!(of("a/c.rs"), ["a/d.rs", "a/mod.rs"]);
    assert_eq!(of("a/d.rs"), ["b.rs"]);
    assert_eq!(of("b.rs"), ["a/c.rs", "a/mod.rs"]);
    assert!(of("a/mod.rs").is_empty() && of("lib.rs").is_empty());
    let way = circle(&imports, &Path::new("b.rs")).expect("a circle");
    assert_eq!(way, ["b.rs", "a/c.rs", "a/d.rs", "b.rs"].map(Path::new));
}
