//! The metadata of two files, key by key.

use qdiff_engine::gguf::{Gguf, Value};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::fmt;

/// Characters of a value that are told.
const SHOWN: usize = 60;

/// A key that two files do not share, or under which they say different things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyDiff {
    /// The key.
    pub key: String,
    /// The first entry that differs, where both files hold an array of equal length.
    pub index: Option<usize>,
    /// What stands in the first file; absent where it does not have the key.
    pub got: Option<String>,
    /// What stands in the file it is held against; absent where that does not have the key.
    pub want: Option<String>,
    /// Whether a model is loaded or computed by it: else it describes the file, as a name or a licence does.
    pub computes: bool,
}

impl fmt::Display for KeyDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.index.map_or_else(String::new, |i| format!("[{i}]"));
        let key = &self.key;
        match (&self.got, &self.want) {
            (Some(got), Some(want)) => write!(f, "{key}{at}: {got} where {want} belongs"),
            (Some(got), None) => write!(f, "{key}: {got}, only in the file under suspicion"),
            (None, want) => {
                write!(f, "{key}: {}, only in the file it is held against", want.as_deref().unwrap_or_default())
            }
        }
    }
}

/// Whether a key describes the file and nothing is computed by it. The alignment of the data is no property of them.
fn describes(key: &str) -> bool {
    key.starts_with("general.") && key != "general.architecture"
}

/// Every key that differs, those by which something is computed first, else in the files' order.
pub(super) fn compare(ours: &Gguf, theirs: &Gguf) -> Vec<KeyDiff> {
    let of_ours = ours.metadata.iter().filter_map(|(key, value)| differ(key, Some(value), theirs.get(key)));
    let others = theirs.metadata.iter().filter(|(key, _)| ours.get(key).is_none());
    let mut found: Vec<_> = of_ours.chain(others.filter_map(|(key, value)| differ(key, None, Some(value)))).collect();
    found.sort_by_key(|diff| !diff.computes);
    found
}

fn differ(key: &str, got: Option<&Value>, want: Option<&Value>) -> Option<KeyDiff> {
    if got == want {
        return None;
    }
    let diff = |index, got: Option<String>, want: Option<String>| KeyDiff {
        key: key.to_owned(),
        index,
        got,
        want,
        computes: !describes(key),
    };
    let (Some(ours), Some(theirs)) = (got, want) else {
        return Some(diff(None, got.map(brief), want.map(brief)));
    };
    if let (Json::Array(a), Json::Array(b)) = (ours.json(usize::MAX), theirs.json(usize::MAX))
        && a.len() == b.len()
        && ours.type_name() == theirs.type_name()
    {
        let index = a.iter().zip(&b).position(|(a, b)| a != b);
        return index.map(|i| diff(Some(i), Some(shortened(&a[i])), Some(shortened(&b[i]))));
    }
    let (a, b) = (brief(ours), brief(theirs));
    // NaN is NaN; what only differs beyond what is told does differ.
    (a != b || ours.json(1) != theirs.json(1)).then(|| diff(None, Some(a), Some(b)))
}

/// A value, or of an array how long it is; with its type.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("{} {}", array.len(), array.type_name()),
        plain => format!("{} ({})", shortened(&plain.json(1)), plain.type_name()),
    }
}

fn shortened(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
