//! The SHA-256 of a model, read anew only where the file may have changed: hashing gigabytes takes longer than a prompt.

use qdiff_engine::gguf::{Gguf, Part};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Smaller files are hashed in less time than a look into the cache is worth.
const LEAST: u64 = 1 << 25;

/// A change this soon after another may leave the file system's time as it was, in seconds.
const GRAIN: i64 = 2;

/// SHA-256 of the bytes in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    sha256_of([bytes])
}

/// SHA-256 of what these make one after the other, in hexadecimal.
fn sha256_of<'a>(all: impl IntoIterator<Item = &'a [u8]>) -> String {
    use sha2::Digest as _;
    let mut digest = sha2::Sha256::new();
    all.into_iter().for_each(|bytes| digest.update(bytes));
    hexadecimal(digest)
}

fn hexadecimal(digest: sha2::Sha256) -> String {
    use sha2::Digest as _;
    digest.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// SHA-256 of a model's files one after the other, in hexadecimal, as `cat MODEL-*-of-0000N.gguf | sha256sum` prints it, or of a
/// folder `cat config.json *.safetensors | sha256sum`: from the
/// cache if the file system says that the files are those hashed before (device, inode, size, and times of the last
/// change to content and to inode, which no program sets back). A cache that cannot be used is no error.
pub fn of_model(model: &Gguf) -> String {
    let files: Vec<_> = model.parts().iter().filter_map(|part| part.path.as_deref().zip(part.opened())).collect();
    kept_or(&files, || Some(sha256_of(model.parts().iter().map(Part::bytes)))).unwrap_or_default()
}

/// The same of the file that this program was started from; `None` where it cannot be read.
pub fn of_program() -> Option<String> {
    of_file(&std::env::current_exe().ok()?)
}

/// The same of any file; `None` where it cannot be read.
pub fn of_file(path: &Path) -> Option<String> {
    let before = std::fs::metadata(path).ok()?;
    kept_or(&[(path, &before)], || read_through(path, |_| {}).ok())
}

/// The same, always read; `told` is given the number of bytes so far.
///
/// # Errors
/// If the file cannot be read.
pub fn read_through(path: &Path, mut told: impl FnMut(usize)) -> std::io::Result<String> {
    use sha2::Digest as _;
    use std::io::Read as _;
    let mut file = std::fs::File::open(path)?;
    let (mut digest, mut block, mut done) = (sha2::Sha256::new(), vec![0; 1 << 20], 0);
    loop {
        let n = file.read(&mut block)?;
        if n == 0 {
            return Ok(hexadecimal(digest));
        }
        digest.update(&block[..n]);
        done += n;
        told(done);
    }
}

/// The hash of these files as the file system described them when they were opened.
fn kept_or(files: &[(&Path, &Metadata)], hash: impl FnOnce() -> Option<String>) -> Option<String> {
    let Some((line, changed)) = identity(files.iter().map(|(_, opened)| *opened)) else { return hash() };
    let Some(kept) = folder().map(|folder| folder.join(&sha256(line.as_bytes())[..32])) else { return hash() };
    if let Some(hash) = std::fs::read_to_string(&kept).ok().and_then(|text| read(&text, &line)) {
        return Some(hash);
    }
    let hash = hash()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs() as i64);
    let after: Option<Vec<Metadata>> = files.iter().map(|(path, _)| std::fs::metadata(path).ok()).collect();
    if changed + GRAIN < now && after.and_then(|all| identity(all.iter())).is_some_and(|(after, _)| after == line) {
        // Written beside and renamed: a reader never sees half a line.
        let part = kept.with_extension(format!("{}.part", std::process::id()));
        let _ = std::fs::write(&part, format!("{hash} {line}\n")).and_then(|()| std::fs::rename(&part, &kept));
    }
    Some(hash)
}

/// The hash in a file of the cache, if it is of the file that `line` describes.
fn read(text: &str, line: &str) -> Option<String> {
    let (hash, of) = text.strip_suffix('\n')?.split_once(' ')?;
    (of == line && hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit())).then(|| hash.to_owned())
}

/// What the file system says of files that are worth a place in the cache together, and when one of them changed last.
fn identity<'a>(all: impl Iterator<Item = &'a Metadata> + Clone) -> Option<(String, i64)> {
    let changed = all.clone().map(|m| m.ctime()).max()?;
    let line = |m: &Metadata| {
        format!(
            "{} {} {} {}.{:09} {}.{:09}",
            m.dev(),
            m.ino(),
            m.len(),
            m.mtime(),
            m.mtime_nsec(),
            m.ctime(),
            m.ctime_nsec()
        )
    };
    let lines: Vec<String> = all.clone().map(line).collect();
    (all.map(Metadata::len).sum::<u64>() >= LEAST).then(|| (lines.join(", "), changed))
}

fn folder() -> Option<PathBuf> {
    let folder = qdiff_engine::cache_folder()?.join("hashes");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_kept_for_the_very_file_only() {
        let hash = sha256(b"");
        assert_eq!(read(&format!("{hash} 1 2 3\n"), "1 2 3"), Some(hash.clone()));
        assert_eq!(read(&format!("{hash} 1 2 3\n"), "1 2 4"), None);
        // Half a line, and no hash.
        assert_eq!(read(&format!("{hash} 1 2 3"), "1 2 3"), None);
        assert_eq!(read("0123 1 2 3\n", "1 2 3"), None);
    }

    #[test]
    fn a_file_that_changes_has_another_identity() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        // Sparse: the sizes matter, not the bytes.
        let identity_at = |length| {
            file.as_file().set_len(length).expect("the file grows");
            identity(file.path().metadata().iter()).map(|(line, _)| line)
        };
        assert_eq!(identity_at(LEAST - 1), None);
        let (one, other) = (identity_at(LEAST), identity_at(LEAST + 1));
        assert!(one.is_some() && other.is_some() && one != other, "{one:?} {other:?}");
        // Of several files each counts, and their order.
        let second = tempfile::NamedTempFile::new().expect("a file");
        let (a, b) = (file.path(), second.path());
        let of = |path: &Path| path.metadata().expect("it is there");
        let both = |paths: [&Path; 2]| identity(paths.map(of).iter()).map(|(line, _)| line);
        assert!(both([a, b]).is_some() && both([a, b]) != both([b, a]) && both([a, b]) != other);
    }
}
