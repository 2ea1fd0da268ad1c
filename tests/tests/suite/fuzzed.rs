//! The fuzz targets on their committed corpora (`fuzz/corpus/TARGET/*`), as any compiler builds them.

use qdiff_tests::fuzz::TARGETS;
use qdiff_tests::markdown::root;

/// Bytes of all corpora.
const MOST: u64 = 300_000;

#[test]
fn every_corpus_is_replayed() {
    let corpora = root().join("fuzz/corpus");
    let mut bytes = 0;
    for (name, target) in TARGETS {
        let files = std::fs::read_dir(corpora.join(name)).unwrap_or_else(|e| panic!("corpus of {name}: {e}"));
        let mut files: Vec<_> = files.map(|f| f.unwrap().path()).collect();
        files.sort();
        assert!(!files.is_empty(), "the corpus of {name} is empty");
        for path in files {
            let input = std::fs::read(&path).unwrap();
            bytes += input.len() as u64;
            let done = std::panic::catch_unwind(|| target(&input));
            assert!(done.is_ok(), "{} breaks a promise", path.display());
        }
    }
    assert!(bytes < MOST, "the corpora have {bytes} bytes");
}

/// Each target is a program of `fuzz/`, and nothing else is.
#[test]
fn every_target_is_a_program() {
    let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
    let named: Vec<&str> =
        manifest.lines().filter_map(|l| l.strip_prefix("name = \"fuzz-")?.strip_suffix('"')).collect();
    assert_eq!(named, TARGETS.map(|(name, _)| name));
}
