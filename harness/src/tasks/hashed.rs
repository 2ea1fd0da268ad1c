//! What the hash of a model is of, as a command that prints the hash.

use super::quote;
use qdiff_engine::gguf::Gguf;
use std::path::Path;

/// Files that are named one by one.
const NAMED: usize = 2;

/// The command that prints the SHA-256 of a model of several files, which qdiff hashes one after the other: `cat m/config.json
/// m/model.safetensors | sha256sum`. `None` for a model of one file.
pub(super) fn command(model: &Gguf) -> Option<String> {
    let files: Vec<&Path> = model.parts().iter().filter_map(|part| part.path.as_deref()).collect();
    if files.len() < 2 || files.len() < model.parts().len() {
        return None;
    }
    // The files of weights are in the order of their names, as a pattern of the shell gives them.
    let (beside, weights) =
        files.split_at(files.iter().take_while(|path| path.extension().is_some_and(|e| e == "json")).count());
    let pattern = Some(weights).filter(|weights| weights.len() > NAMED).and_then(pattern);
    let each = |paths: &[&Path]| paths.iter().map(|path| quote(&path.display().to_string())).collect::<Vec<_>>();
    let weights = pattern.map_or_else(|| each(weights), |pattern| vec![pattern]);
    Some(format!("cat {} | sha256sum", [each(beside), weights].concat().join(" ")))
}

/// `m/model-*.safetensors`, where that names these files in this order and no others of their folder.
fn pattern(files: &[&Path]) -> Option<String> {
    let names: Vec<&str> = files.iter().map(|path| path.file_name()?.to_str()).collect::<Option<_>>()?;
    let (first, rest) = names.split_first()?;
    let shared = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let backwards = |name: &str| name.bytes().rev().map(char::from).collect::<String>();
    let begins = rest.iter().map(|name| shared(first, name)).min()?;
    let ends = rest.iter().map(|name| shared(&backwards(first), &backwards(name))).min()?;
    let (begin, end) = (first.get(..begins)?, first.get(first.len().checked_sub(ends)?..)?);
    let folder = files.first()?.parent()?;
    let named = |name: &str| name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end);
    let there = folder.read_dir().ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let fits = names.is_sorted() && there.filter(|name| named(name)).count() == files.len();
    let plain = |text: &str| quote(text) == text;
    let place = folder.join(begin).display().to_string();
    // What a shell would take for more than a name is quoted one by one.
    (fits && plain(&place) && (end.is_empty() || plain(end))).then(|| format!("{place}*{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_names_the_files_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let names = [
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
        ];
        let paths = names.map(file);
        paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
        let files = paths.each_ref().map(|path| path.as_path());
        let told = pattern(&files).unwrap();
        assert_eq!(told, file("model-0000*-of-00003.safetensors").display().to_string());
        // Another file that the pattern names too.
        std::fs::write(file("model-00009-of-00003.safetensors"), "").unwrap();
        assert_eq!(pattern(&files), None);
    }
}
