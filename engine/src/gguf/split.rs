//! Models in several files, as llama.cpp's `llama-gguf-split` writes them: `NAME-00001-of-00003.gguf` and so on.
//!
//! The first part holds the metadata and says how many parts there are; each holds tensors. What is demanded is what
//! `llama_model_loader` (llama-model-loader.cpp) demands, and one thing more: a key that a later part shares with the first
//! has the same value there, so that a part of another model is refused where the keys show it.

use super::error::Problem;
use super::{Gguf, GgufError, Value};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Which part a file is, from 0 on (u16).
pub const NO: &str = "split.no";
/// How many parts there are (u16).
pub const COUNT: &str = "split.count";
/// How many tensors all parts have (i32).
pub const TENSORS: &str = "split.tensors.count";

/// What each part has of its own, or may have.
const OWN: [&str; 2] = [NO, "general.alignment"];

/// Adds the other parts to `whole`, which was read from `path`, if it is one of several. Of their metadata nothing is
/// kept, so that memory stays within a small multiple of the first part and of all tensor entries.
///
/// # Errors
/// [`GgufError`], naming the part that is missing or does not fit.
pub(super) fn join(mut whole: Gguf, path: &Path) -> Result<Gguf, GgufError> {
    let of_first = |problem| GgufError { file: Some(path.to_owned()), problem };
    if whole.get(COUNT).is_none() {
        return Ok(whole);
    }
    let count = number(&whole, COUNT).map_err(of_first)?;
    if count < 2 {
        return Ok(whole);
    }
    let prefix = prefix(&whole, path, count).map_err(of_first)?;
    let tensors = match whole.get(TENSORS) {
        Some(&Value::I32(n)) if n >= 0 => n as usize,
        other => return Err(of_first(expected(TENSORS, "an i32", other))),
    };
    for no in 1..count {
        let path = name(prefix, no, count);
        let refused = |problem| GgufError { file: Some(path.clone()), problem };
        if matches!(path.try_exists(), Ok(false)) {
            let what = format!("no such file; it is part {} of {count} of the model: fetch it too", no + 1);
            return Err(refused(Problem::Parts(what)));
        }
        let part = Gguf::open_one(&path)?;
        let found = number(&part, NO).map_err(refused)?;
        if found != no {
            let what = format!("is part {} of a model, expected part {}; fetch it again", u32::from(found) + 1, no + 1);
            return Err(refused(Problem::Parts(what)));
        }
        let shared = part.metadata.iter().filter(|(key, _)| !OWN.contains(&key.as_str()));
        if let Some((key, _)) = shared.clone().find(|(key, value)| whole.get(key).is_some_and(|first| first != value)) {
            let what =
                format!("is a part of another model: its {key:?} differs from that of part 1; fetch all parts again");
            return Err(refused(Problem::Parts(what)));
        }
        whole.add(part).map_err(refused)?;
    }
    if whole.tensors.len() != tensors {
        let what = format!(
            "has {} tensors in {count} parts, and {TENSORS:?} says {tensors}; fetch all parts again",
            whole.tensors.len()
        );
        return Err(of_first(Problem::Parts(what)));
    }
    Ok(whole)
}

impl Gguf {
    /// Adds the tensors of another part.
    fn add(&mut self, part: Self) -> Result<(), Problem> {
        for mut tensor in part.tensors {
            if self.names.contains_key(&tensor.name) {
                let what = format!("tensor {:?} is in another part as well; fetch all parts again", tensor.name);
                return Err(Problem::Parts(what));
            }
            tensor.part = self.parts.len();
            self.names.insert(tensor.name.clone(), self.tensors.len());
            self.tensors.push(tensor);
        }
        self.parts.extend(part.parts);
        Ok(())
    }
}

/// What stands before the number of the part in the path of the first of `count`.
fn prefix<'a>(first: &Gguf, path: &'a Path, count: u16) -> Result<&'a [u8], Problem> {
    let bytes = path.as_os_str().as_bytes();
    let prefix_of = |no| bytes.strip_suffix(suffix(no, count).as_bytes()).filter(|prefix| !prefix.is_empty());
    let no = number(first, NO)?;
    if no != 0 {
        let first = prefix_of(no).map(|prefix| name(prefix, 0, count));
        let first = first.map_or_else(|| "part 1".to_owned(), |path| path.display().to_string());
        let what = format!("is part {} of {count} of a model; name its first part, {first}", u32::from(no) + 1);
        return Err(Problem::Parts(what));
    }
    prefix_of(0).ok_or_else(|| {
        let suffix = suffix(0, count);
        Problem::Parts(format!(
            "is part 1 of {count} of a model, whose name must end in NAME{suffix}; name all parts so"
        ))
    })
}

/// The end of the name of a part, as `llama_split_path` writes it.
fn suffix(no: u16, count: u16) -> String {
    format!("-{:05}-of-{count:05}.gguf", u32::from(no) + 1)
}

/// The path of a part.
fn name(prefix: &[u8], no: u16, count: u16) -> PathBuf {
    OsStr::from_bytes(&[prefix, suffix(no, count).as_bytes()].concat()).into()
}

/// A key of type u16.
fn number(part: &Gguf, key: &str) -> Result<u16, Problem> {
    match part.get(key) {
        Some(&Value::U16(n)) => Ok(n),
        other => Err(expected(key, "a u16", other)),
    }
}

fn expected(key: &str, what: &str, found: Option<&Value>) -> Problem {
    let found =
        found.map_or_else(|| "missing".to_owned(), |value| format!("{} ({})", value.json(1), value.type_name()));
    Problem::Parts(format!("key {key:?} of a model in parts is {found}, expected {what}; split the model again"))
}
