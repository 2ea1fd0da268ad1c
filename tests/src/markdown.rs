//! Reading the project's own documents: their commands, code spans and links.

use std::path::{Path, PathBuf};

/// A markdown file of the repository.
pub struct Document {
    /// Where it is, from the root of the repository.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of a file of the repository.
///
/// # Panics
/// If it cannot be read.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every markdown file at the root, in `docs/`, `docs/engine/`, and in `goldens/`.
///
/// # Panics
/// If one cannot be read.
pub fn documents() -> Vec<Document> {
    let mut all = Vec::new();
    for folder in ["", "docs/", "docs/engine/", "goldens/"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder of documents") {
            let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                let path = format!("{folder}{name}");
                all.push(Document { text: read(&path), path });
            }
        }
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

impl Document {
    /// The lines within fenced blocks, or those outside of them.
    fn lines(&self, fenced: bool) -> impl Iterator<Item = &str> {
        let mut inside = false;
        self.text.lines().filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            inside == fenced && !fence
        })
    }

    /// The lines of all fenced blocks, without the prompt `$ `. A line that ends in a backslash goes on in the next one.
    pub fn block_lines(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for line in self.lines(true).map(|line| line.strip_prefix("$ ").unwrap_or(line)) {
            match all.last_mut().and_then(|last| Some((last.strip_suffix('\\')?.to_owned(), last))) {
                Some((begun, last)) => *last = begun + line.trim_start(),
                None => all.push(line.to_owned()),
            }
        }
        all
    }

    /// The text outside fenced blocks.
    fn prose(&self) -> String {
        self.lines(false).collect::<Vec<_>>().join("\n")
    }

    /// The code spans outside fenced blocks, each on one line.
    ///
    /// # Panics
    /// If a span does not end.
    pub fn spans(&self) -> Vec<String> {
        let prose = self.prose();
        let mut spans = Vec::new();
        let mut rest = prose.as_str();
        while let Some(at) = rest.find('`') {
            let opened = &rest[at..];
            let ticks = opened.len() - opened.trim_start_matches('`').len();
            let (fence, after) = opened.split_at(ticks);
            // A backtick that is escaped opens nothing.
            if rest[..at].ends_with('\\') {
                rest = after;
                continue;
            }
            let end = after.find(fence).unwrap_or_else(|| panic!("{}: no end of `{after:.40}", self.path));
            spans.push(after[..end].split_whitespace().collect::<Vec<_>>().join(" "));
            rest = &after[end + ticks..];
        }
        spans
    }

    /// The targets of links and pictures that are files of the repository.
    pub fn links(&self) -> Vec<PathBuf> {
        let here = root().join(&self.path);
        let folder = here.parent().expect("a file has a folder");
        let prose = self.prose();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        targets.filter(|t| !t.is_empty() && !t.contains("://")).map(|t| folder.join(t)).collect()
    }
}

/// The words of a command line as a shell splits them, up to a comment, a pipe or the next command.
pub fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, ';') => break,
            (None, '#' | '|' | '&' | '>') if word.is_none() => break,
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}
