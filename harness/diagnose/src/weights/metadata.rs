//! The metadata of two files, key by key.

use qdiff_engine::gguf::{ArrayValue, Gguf, Value, split};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a text that are shown.
const SHOWN: usize = 60;
/// Bytes of them before the place where two texts part.
const BEFORE: usize = 12;

/// A key that two files do not share, or under which they say different things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyDiff {
    /// The key.
    pub key: String,
    /// The first entry that differs, where both files hold an array of equal length.
    pub index: Option<usize>,
    /// The value in the first file; absent if the file does not have the key.
    pub got: Option<String>,
    /// The value in the other file; absent if that file does not have the key.
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

/// Whether a key describes the file and nothing is computed by it. The alignment of the data is no property of them, nor
/// is into how many files they were split.
fn describes(key: &str) -> bool {
    let split = [split::NO, split::COUNT, split::TENSORS].contains(&key);
    split || key.starts_with("general.") && key != "general.architecture"
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
    let diff = |index, got, want| Some(KeyDiff { key: key.to_owned(), index, got, want, computes: !describes(key) });
    match (got, want) {
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() && a.type_name() == b.type_name() => {
            let (at, (a, b)) = parted(a, b)?;
            diff(Some(at), Some(a), Some(b))
        }
        (Some(Value::String(a)), Some(Value::String(b))) if a != b => {
            let (a, b) = ends(a, b);
            diff(None, Some(a), Some(b))
        }
        // NaN is NaN.
        (Some(a), Some(b)) if a == b || brief(a) == brief(b) => None,
        (None, None) => None,
        (got, want) => diff(None, got.map(brief), want.map(brief)),
    }
}

/// The first entry in which two arrays differ, and both entries.
fn parted(a: &ArrayValue, b: &ArrayValue) -> Option<(usize, (String, String))> {
    if let (ArrayValue::String(a), ArrayValue::String(b)) = (a, b) {
        let (at, (a, b)) = a.iter().zip(b.iter()).enumerate().find(|(_, (a, b))| a != b)?;
        return Some((at, ends(a, b)));
    }
    let (a, b) = (a.json(usize::MAX), b.json(usize::MAX));
    let pairs = a.as_array()?.iter().zip(b.as_array()?);
    let (at, (a, b)) = pairs.enumerate().find(|(_, (a, b))| a != b)?;
    Some((at, (a.to_string(), b.to_string())))
}

/// Two texts that differ, each from shortly before where they part.
fn ends(a: &[u8], b: &[u8]) -> (String, String) {
    let from = a.iter().zip(b).take_while(|(a, b)| a == b).count().saturating_sub(BEFORE);
    let end = |text: &[u8]| {
        let shown = text[from..text.len().min(from + SHOWN)].escape_ascii();
        let (before, after) = (if from > 0 { "…" } else { "" }, if text.len() > from + SHOWN { "…" } else { "" });
        format!("\"{before}{shown}{after}\"")
    };
    (end(a), end(b))
}

/// A value, or of an array how long it is; with its type.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("{} {}", array.len(), array.type_name()),
        Value::String(text) => ends(text, b"").0,
        plain => format!("{} ({})", plain.json(1), plain.type_name()),
    }
}
