//! Captures changed from outside, array by array.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read as _, Write as _};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Writes the archive at `path` again with what `change` makes of each array, a numpy file by its name such as
/// `prefill/logits`; without those of which it makes nothing.
///
/// # Panics
/// If it is no archive, or cannot be written.
pub fn rewrite(path: &Path, mut change: impl FnMut(&str, Vec<u8>) -> Option<Vec<u8>>) {
    let mut from = ZipArchive::new(Cursor::new(std::fs::read(path).unwrap())).unwrap();
    let mut to = ZipWriter::new(File::create(path).unwrap());
    for i in 0..from.len() {
        let mut entry = from.by_index(i).unwrap();
        let name = entry.name().unwrap().into_owned();
        let mut npy = Vec::new();
        entry.read_to_end(&mut npy).unwrap();
        if let Some(npy) = change(name.trim_end_matches(".npy"), npy) {
            to.start_file(&name, SimpleFileOptions::default().compression_method(CompressionMethod::Stored)).unwrap();
            to.write_all(&npy).unwrap();
        }
    }
    to.finish().unwrap();
}

/// Changes the bytes of one array.
fn edit(path: &Path, array: &str, change: impl Fn(&mut [u8])) {
    let mut found = false;
    rewrite(path, |name, mut npy| {
        if name == array {
            change(&mut npy);
            found = true;
        }
        Some(npy)
    });
    assert!(found, "no array {array}");
}

/// Gives the arrays of an archive other names.
///
/// # Panics
/// If it is no archive, or cannot be written.
pub fn rename(path: &Path, name: impl Fn(&str) -> String) {
    let mut all = Vec::new();
    rewrite(path, |old, npy| {
        all.push((name(old), npy));
        None
    });
    let mut to = ZipWriter::new(File::create(path).unwrap());
    for (name, npy) in all {
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        to.start_file(format!("{name}.npy"), stored).unwrap();
        to.write_all(&npy).unwrap();
    }
    to.finish().unwrap();
}

/// Replaces part of an array's numpy header by text of the same length.
///
/// # Panics
/// If the array or the text is not there.
pub fn retitle(path: &Path, array: &str, from: &str, to: &str) {
    edit(path, array, |npy| {
        let at = npy.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        npy[at..at + from.len()].copy_from_slice(to.as_bytes());
    });
}

/// The values of an array of f32.
///
/// # Panics
/// If the array is not there.
pub fn values(path: &Path, array: &str) -> Vec<f32> {
    let mut archive = ZipArchive::new(Cursor::new(std::fs::read(path).unwrap())).unwrap();
    let mut npy = Vec::new();
    archive.by_name(&format!("{array}.npy")).unwrap().read_to_end(&mut npy).unwrap();
    npy[data(&npy)..].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Where the values of a numpy file begin.
pub fn data(npy: &[u8]) -> usize {
    10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]))
}

/// Changes the f32 values of an array.
///
/// # Panics
/// If the array is not there.
pub fn tamper(path: &Path, array: &str, change: impl Fn(&mut [f32])) {
    edit(path, array, |npy| {
        let start = data(npy);
        let (stored, _) = npy[start..].as_chunks_mut();
        let mut values: Vec<f32> = stored.iter().map(|b| f32::from_le_bytes(*b)).collect();
        change(&mut values);
        for (bytes, value) in stored.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
    });
}

/// The values of every array, by name, as `change` makes them; shapes stay.
///
/// # Panics
/// If it is no archive of f32.
pub fn revalue(path: &Path, change: impl FnOnce(&mut BTreeMap<String, Vec<f32>>)) {
    let mut all = BTreeMap::new();
    rewrite(path, |name, npy| {
        let (stored, _) = npy[data(&npy)..].as_chunks();
        all.insert(name.to_owned(), stored.iter().map(|b| f32::from_le_bytes(*b)).collect());
        Some(npy)
    });
    change(&mut all);
    rewrite(path, |name, npy| {
        let values = all[name].iter().flat_map(|v| v.to_le_bytes());
        Some(npy[..data(&npy)].iter().copied().chain(values).collect())
    });
}
