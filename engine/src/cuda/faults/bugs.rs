//! Bugs written into the text of a kernel: `kernels/faults/*.diff`, one file a theme.
//!
//! A bug begins with `@@ name file.cu`, with more files where it is in a header that several kernels read, and the block
//! format if it is of one. After that lines begin with `-` (they occur in the kernel's file or a header of it, once),
//! `+` (they replace those) or a space (both); an empty line ends an edit, and another may follow. Lines before the
//! first bug and those that begin with `#` are comments.

use crate::cuda::kernels::{File, included};
use crate::quant::GgmlType;
use std::collections::HashSet;
use std::sync::LazyLock;

/// The themes.
pub(super) const THEMES: &[(&str, &str)] = &[
    ("products.diff", include_str!("../../../kernels/faults/products.diff")),
    ("tiles.diff", include_str!("../../../kernels/faults/tiles.diff")),
    ("blocks.diff", include_str!("../../../kernels/faults/blocks.diff")),
    ("rows.diff", include_str!("../../../kernels/faults/rows.diff")),
    ("attention.diff", include_str!("../../../kernels/faults/attention.diff")),
    ("decode.diff", include_str!("../../../kernels/faults/decode.diff")),
    ("digits.diff", include_str!("../../../kernels/faults/digits.diff")),
    ("experts.diff", include_str!("../../../kernels/faults/experts.diff")),
    ("prefill.diff", include_str!("../../../kernels/faults/prefill.diff")),
];

/// A kernel with a bug in it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Bug {
    /// What it is called, in kebab case.
    pub name: &'static str,
    /// The files of the kernels that have it.
    pub files: Vec<File>,
    /// The format of the weights that it is about, if of one.
    pub format: Option<GgmlType>,
    /// The old text, and the new one.
    pub edits: Vec<(String, String)>,
}

impl Bug {
    /// The text of one of its kernels and of that one's headers with the bug in it.
    pub fn program(&self, file: File) -> String {
        let right = flattened(file.path(), &mut HashSet::new());
        self.edits.iter().fold(right, |text, (old, new)| text.replacen(old, new, 1))
    }
}

/// The text of a file, with that of each header where it is first included.
pub(super) fn flattened(path: &'static str, seen: &mut HashSet<&'static str>) -> String {
    let known = |wanted: &str| included().find(|(path, _)| *path == wanted);
    let (_, text) = known(path).unwrap_or_else(|| panic!("no kernel file {path}"));
    let mut all = String::new();
    for line in text.lines() {
        match line.strip_prefix("#include \"").and_then(|rest| known(rest.trim_end_matches('"'))) {
            Some((header, _)) if seen.insert(header) => all += &flattened(header, seen),
            Some(_) => {}
            None if line == "#pragma once" => {}
            None => all += &format!("{line}\n"),
        }
    }
    all
}

/// Every bug that is written into a kernel.
pub fn bugs() -> &'static [Bug] {
    static BUGS: LazyLock<Vec<Bug>> = LazyLock::new(|| THEMES.iter().flat_map(|(_, text)| parse(text)).collect());
    &BUGS
}

/// The bug of a name.
pub fn bug(name: &str) -> Option<&'static Bug> {
    bugs().iter().find(|bug| bug.name == name)
}

fn parse(text: &'static str) -> Vec<Bug> {
    let mut bugs: Vec<Bug> = Vec::new();
    let mut fresh = true;
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("@@ ") {
            bugs.push(begun(head));
            fresh = true;
        } else if line.is_empty() {
            fresh = true;
        } else if let (Some(bug), false) = (bugs.last_mut(), line.starts_with('#')) {
            if std::mem::take(&mut fresh) {
                bug.edits.push(Default::default());
            }
            let (Some((old, new)), (kind, line)) = (bug.edits.last_mut(), line.split_at(1)) else { continue };
            if kind != "+" {
                *old += &format!("{line}\n");
            }
            if kind != "-" {
                *new += &format!("{line}\n");
            }
        }
    }
    bugs
}

/// A bug without edits, of its first line.
fn begun(head: &'static str) -> Bug {
    let mut words = head.split(' ');
    let mut bug = Bug { name: words.next().unwrap_or(""), files: Vec::new(), format: None, edits: Vec::new() };
    for word in words {
        let file = File::ALL.iter().copied().find(|file| file.path() == word);
        let format = GgmlType::ALL_SUPPORTED.iter().copied().find(|ty| ty.to_string() == word);
        assert!(file.is_some() || format.is_some(), "{head}: {word} is no kernel and no format");
        bug.files.extend(file);
        bug.format = bug.format.or(format);
    }
    bug
}
