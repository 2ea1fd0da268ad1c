//! What is read of a file; `tests/tests/suite/gguf_classes.rs` has the classes of bad files, and `gguf_vs_ggml.rs` asks
//! llama.cpp about them.

pub(crate) mod writer;

use super::*;
use writer::File;

/// Metadata of the kinds that matter and two tensors; no padding at the end.
fn small() -> Vec<u8> {
    File::new(2, 4)
        .kv_u32("general.alignment", 64)
        .str(b"name")
        .u32(8)
        .str(b"not utf-8: \xff")
        .kv_texts("tokens", &[b"a", b"bc"])
        .str(b"flag")
        .u32(7)
        .raw(&[5])
        .tensor("a", &[32, 2], 8, 0)
        .tensor("b", &[3], 0, 128)
        .data(64, 128 + 12)
        .0
}

#[test]
fn a_small_file_reads_back() {
    let f = Gguf::from_bytes(small()).unwrap();
    let [part] = f.parts() else { panic!("one file") };
    assert_eq!((f.version, part.alignment), (3, 64));
    assert_eq!(part.data_offset % 64, 0);
    assert_eq!(f.size(), part.data_offset + 140);
    assert_eq!(f.get("general.alignment").and_then(Value::as_u64), Some(64));
    assert_eq!(f.get("name").and_then(Value::as_str), None);
    let tokens = f.get("tokens").and_then(Value::as_strings).unwrap();
    assert_eq!(tokens.iter().collect::<Vec<_>>(), [&b"a"[..], b"bc"]);
    assert_eq!(f.get("flag").and_then(Value::as_bool), Some(true));
    let a = f.tensor("a").unwrap();
    assert_eq!((a.elements(), a.row_len(), a.rows(), a.size), (64, 32, 2, 68));
    let b = f.tensor("b").unwrap();
    assert_eq!(f.data(b), [7; 12]);
    assert_eq!(f.tensors[1], *b);
    assert!(f.tensor("c").is_none());
}

#[test]
fn truncation_at_every_byte_is_refused() {
    let whole = small();
    for n in 1..whole.len() {
        let error = Gguf::from_bytes(whole[..n].to_vec()).expect_err("accepted").to_string();
        let says = format!("is truncated: {n} bytes, at least ");
        assert!(error.contains(&says) && error.contains("fetch it again"), "{n}: {error}");
    }
}

#[test]
fn paths_that_are_no_files_are_named() {
    let open = |path: &Path| Gguf::open(path).unwrap_err().to_string();
    let dir = std::env::temp_dir();
    assert!(open(&dir).contains("is a directory"));
    assert_eq!(open(Path::new("/no/such.gguf")), "/no/such.gguf: no such file; check the path");
    let path = dir.join(format!("qdiff-gguf-{}.gguf", std::process::id()));
    std::fs::write(&path, b"").unwrap();
    assert!(open(&path).contains("is empty"));
    std::fs::write(&path, small()).unwrap();
    let opened = Gguf::open(&path).unwrap();
    assert_eq!(opened.parts()[0].bytes(), small());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn empty_tensors_load() {
    for dims in [&[0][..], &[0, 5], &[5, 0], &[1 << 62, 0, 4], &[0, 1 << 62, 1 << 62]] {
        let f = File::new(1, 0).tensor("t", dims, 0, 0).data(32, 0).read().unwrap();
        let t = &f.tensors[0];
        assert_eq!((t.elements(), t.rows(), t.size, f.data(t).len()), (0, 0, 0, 0));
    }
    let f = File::new(1, 0).tensor("scalar", &[], 0, 0).data(32, 4).read().unwrap();
    assert_eq!((f.tensors[0].rows(), f.tensors[0].row_len()), (1, 1));
}
