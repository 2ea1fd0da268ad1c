//! Refused and accepted files; `tests/tests/suite/gguf_vs_ggml.rs` compares with llama.cpp itself.

pub(crate) mod writer;

use proptest::prelude::*;

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
    assert_eq!((f.version, f.alignment), (3, 64));
    assert_eq!(f.data_offset % 64, 0);
    assert_eq!(f.bytes().len() as u64, f.data_offset + 140);
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
    assert_eq!(opened.bytes(), small());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn headers() {
    File::new(0, 0).read().unwrap();
    File(vec![]).refused("is empty");
    File(b"PK\x03\x04rest".to_vec()).refused(r#"it starts with "PK\x03\x04rest""#);
    File(b"version https://git-lfs.github.com/spec/v1".to_vec()).refused("git lfs pull");
    for (version, says) in [(0, "version 0"), (1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")] {
        File(b"GGUF".to_vec()).u32(version).i64(0).i64(0).refused(says);
    }
    File(b"GGUF".to_vec()).u32(2).i64(0).i64(0).read().unwrap();
    File::new(-1, 0).refused("number of tensors, -1");
    File::new(0, -1).refused("number of metadata entries, -1");
    File::new(i64::MAX, 0).refused("truncated");
    File::new(0, i64::MAX).refused("truncated");
}

#[test]
fn entries() {
    File::new(0, 1).i64(-1).refused("limit of 2^30");
    File::new(0, 1).i64(1 << 29).refused("truncated");
    File::new(0, 1).str(b"").u32(4).u32(1).refused("empty key");
    File::new(0, 1).str(b"a\0").u32(4).u32(1).refused(r#"key "a\x00" is not UTF-8"#);
    File::new(0, 1).str(b"\xff").u32(4).u32(1).refused(r#"key "\xff" is not UTF-8"#);
    File::new(0, 1).str(b"k").u32(13).u32(1).refused("invalid type 13");
    File::new(0, 2).kv_u32("k", 1).kv_u32("k", 1).refused(r#"key "k" occurs twice"#);
    File::new(0, 1).str(b"k").u32(9).u32(9).i64(0).refused("array in an array");
    File::new(0, 1).str(b"k").u32(9).u32(8).i64(500_000_000).refused("truncated");
    File::new(0, 1).str(b"k").u32(9).u32(0).i64(-1).refused("limit of 2^30");
    File::new(0, 1).str(b"k").u32(9).u32(4).i64(0).read().unwrap();
    for alignment in [0, 13] {
        File::new(0, 1).kv_u32("general.alignment", alignment).refused("power of 2");
    }
    File::new(0, 1).str(b"general.alignment").u32(10).i64(32).refused("of type u64");
    File::new(0, 1).str(b"general.alignment").u32(9).u32(4).i64(1).u32(32).refused("of type arr");
    File::new(1, 1).kv_u32("general.alignment", 1 << 30).tensor("a", &[1], 0, 0).data(32, 4).refused("truncated");
    let f = File::new(1, 1).kv_u32("general.alignment", 1).tensor("ab", &[1], 0, 0).data(1, 4);
    assert_eq!(f.read().unwrap().data_offset % 2, 1);
}

#[test]
fn tensors() {
    let one = |dims: &[i64], ty| File::new(1, 0).tensor("t", dims, ty, 0).data(32, 4096);
    one(&[4], 0).read().unwrap();
    let long = "x".repeat(64);
    File::new(1, 0).tensor(&long, &[1], 0, 0).data(32, 4).refused("has 64 bytes");
    File::new(1, 0).tensor(&long[1..], &[1], 0, 0).data(32, 4).read().unwrap();
    one(&[1; 5], 0).refused("5 dimensions");
    one(&[-1], 0).refused("negative dimension, -1");
    one(&[1 << 32, 1 << 32], 0).refused("too large");
    one(&[(1 << 62) - 1], 0).refused("too large");
    one(&[1 << 40], 0).refused("truncated");
    one(&[i64::MAX], 0).refused("too large");
    one(&[1], 4).refused("removed type 4");
    one(&[1], 43).refused("removed type 43");
    one(&[1], u32::MAX).refused("removed type");
    one(&[33], 8).refused("rows of 33, no multiple of Q8_0's block of 32");
    one(&[], 8).refused("rows of 1");
    one(&[256], 10).read().unwrap();
    File::new(1, 0).tensor("t", &[1], 0, 32).data(32, 99).refused("offset 32, expected 0");
    File::new(2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data(32, 99).refused(r#"tensor "t" occurs twice"#);
    // Two sizes whose sum wraps around 64 bits.
    let huge = 0x7fff_ffff_ffff_ffc0;
    File::new(2, 0).tensor("a", &[huge], 24, 0).tensor("b", &[huge], 24, huge).data(32, 99).refused("t");
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

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Gguf::from_bytes(bytes.clone());
        let _ = Gguf::from_bytes([&b"GGUF\x03\0\0\0"[..], &bytes].concat());
    }

    #[test]
    fn mutations_never_panic(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut bytes = small();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(f) = Gguf::from_bytes(bytes) {
            for t in &f.tensors {
                prop_assert_eq!(f.data(t).len() as u64, t.size);
                let _ = (t.rows(), t.row_len(), t.elements());
            }
        }
    }
}
