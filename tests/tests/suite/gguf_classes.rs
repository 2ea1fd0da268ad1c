//! The classes of bad GGUF files, and of odd ones that are good: what qdiff's parser says of each. `gguf_vs_ggml.rs` asks
//! llama.cpp about the same files.

use super::gguf_files::{Case, Expected, array, build, classes, refused, small, stricter, string, taken, u32_value};
use qdiff_engine::gguf::Gguf;

/// What the parser says: nothing, or one line that has the words.
#[track_caller]
fn check(case: &Case) {
    let said = Gguf::from_bytes(case.bytes.clone()).err().map(|e| e.to_string());
    match (case.expected, said) {
        (Expected::Taken, said) => assert_eq!(said, None),
        (Expected::Refused(words) | Expected::Stricter(words, _), Some(said)) => {
            let all = words.iter().all(|word| said.contains(word));
            assert!(all && !said.contains('\n'), "{said:?} does not say {words:?}");
        }
        (expected, None) => panic!("accepted: {expected:?}"),
    }
}

/// A header of these numbers and nothing after it.
fn header(version: u32, tensors: i64, entries: i64) -> Vec<u8> {
    [&b"GGUF"[..], &version.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
}

/// A file of one entry with this key and value.
fn entry(key: &str, value: Vec<u8>) -> Vec<u8> {
    build(&[(key, value)], &[], 1, 0)
}

/// A value of a type of fixed length: its type, and eight bytes.
fn value(ty: u32, bytes: [u8; 8]) -> Vec<u8> {
    [&ty.to_le_bytes()[..], &bytes].concat()
}

/// A file of one tensor, with more data than any of these need.
fn tensor(dims: &[i64], ty: u32) -> Vec<u8> {
    build(&[], &[("t", dims, ty, 0)], 32, 4096)
}

/// The file with `bytes` in the place of those at `at`.
fn with(mut file: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

/// Types by ggml's numbers.
const F32: u32 = 0;
const Q8_0: u32 = 8;
const I8: u32 = 24;

/// The largest size that is a multiple of the alignment: two of them exceed 64 bits.
const HUGE: i64 = 0x7fff_ffff_ffff_ffc0;

/// Where the first key's length stands, and the name's of the first tensor in a file without entries.
const FIRST: usize = 24;

classes! {
    check;

    bad_magic: [
        refused(&[r#"it starts with "PK\x03\x04rest""#], b"PK\x03\x04rest".to_vec()),
        refused(&["git lfs pull"], b"version https://git-lfs.github.com/spec/v1".to_vec()),
        refused(&["is a web page"], b"<!DOCTYPE html>".to_vec()),
        refused(&["starts with \"GGML"], with(small(), 0, b"GGML")),
    ];
    empty_file: [refused(&["is empty"], Vec::new())];
    version_0: [refused(&["version 0"], header(0, 0, 0))];
    version_1: [refused(&["version 1"], header(1, 0, 0))];
    version_of_the_future: [refused(&["version 4"], header(4, 0, 0)), refused(&["version 4294967295"], header(u32::MAX, 0, 0))];
    byte_swapped: [refused(&["big-endian"], header(3 << 24, 0, 0)), refused(&["big-endian"], header(2 << 24, 0, 0))];
    an_empty_file_of_valid_header_loads: [taken(header(3, 0, 0)), taken(header(2, 0, 0))];
    a_negative_number_of_entries: [refused(&["number of metadata entries, -1"], header(3, 0, -1))];
    a_negative_number_of_tensors: [refused(&["number of tensors, -1"], header(3, -1, 0))];
    more_entries_than_there_are: [refused(&["truncated"], header(3, 0, i64::MAX)), refused(&["truncated"], header(3, 0, 1))];
    more_tensors_than_there_are: [refused(&["truncated"], header(3, i64::MAX, 0)), refused(&["truncated"], header(3, 1, 0))];

    a_bad_key_size: [
        refused(&["string of 18446744073709551615 bytes", "limit of 2^30"], with(small(), FIRST, &[0xff; 8])),
        refused(&["truncated"], with(small(), FIRST, &(1_u64 << 29).to_le_bytes())),
    ];
    an_empty_key: [refused(&["entry 0 has an empty key"], entry("", u32_value(1)))];
    a_bad_value_type: [
        refused(&[r#"key "k" has invalid type 13"#], entry("k", value(13, [1; 8]))),
        refused(&[r#"key "k" has invalid type 13"#], entry("k", array(13, 0, &[]))),
    ];
    a_duplicate_key: [
        refused(&[r#"key "k" occurs twice"#], build(&[("k", u32_value(1)), ("k", u32_value(2))], &[], 1, 0)),
    ];
    an_alignment_that_is_no_power_of_two: [
        refused(&["general.alignment is 13", "power of 2"], entry("general.alignment", u32_value(13))),
        refused(&["general.alignment is 0", "power of 2"], entry("general.alignment", u32_value(0))),
    ];
    an_alignment_beyond_the_file: [
        refused(&["truncated"], build(&[("general.alignment", u32_value(1 << 30))], &[("t", &[1], F32, 0)], 32, 4)),
        taken(entry("general.alignment", u32_value(1 << 30))),
    ];
    an_alignment_of_another_type: [
        refused(&["general.alignment is of type u64"], entry("general.alignment", value(10, [32, 0, 0, 0, 0, 0, 0, 0]))),
        refused(&["general.alignment is of type arr"], entry("general.alignment", array(4, 1, &[32, 0, 0, 0]))),
    ];
    an_array_in_an_array: [refused(&[r#"key "k""#, "array in an array"], entry("k", array(9, 0, &[])))];
    half_a_billion_strings_in_a_small_file: [refused(&["truncated"], entry("k", array(8, 500_000_000, &[])))];
    an_array_beyond_all_limits: [
        refused(&["limit of 2^30"], entry("k", array(0, -1, &[]))),
        refused(&["limit of 2^30"], entry("k", array(8, (1 << 30) + 1, &[]))),
    ];
    an_empty_array_loads: [taken(entry("k", array(4, 0, &[]))), taken(entry("k", array(8, 0, &[])))];
    bools_of_any_byte_load: [0, 1, 2, 255].map(|byte| taken(entry("k", [&7_u32.to_le_bytes()[..], &[byte]].concat())));
    /// llama.cpp cuts keys and names at the first NUL, and shows other bytes as they are.
    names_that_are_no_text: [
        stricter("llama.cpp cuts it at the NUL", &[r#"key "a\x00" is not UTF-8"#], entry("a\0", u32_value(1))),
        stricter("no text", &[r#"key "\xffb" is not UTF-8"#], with(entry("ab", u32_value(1)), FIRST + 8, &[0xff])),
        stricter("no text", &[r#"name "\xff" is not UTF-8"#], with(tensor(&[1], F32), FIRST + 8, &[0xff])),
    ];

    a_bad_tensor_name_size: [
        refused(&["has 64 bytes", "limit of 63"], build(&[], &[(&"x".repeat(64), &[1], F32, 0)], 32, 4)),
        taken(build(&[], &[(&"x".repeat(63), &[1], F32, 0)], 32, 4)),
        refused(&["limit of 2^30"], with(tensor(&[1], F32), FIRST, &[0xff; 8])),
    ];
    five_dimensions: [refused(&[r#"tensor "t" has 5 dimensions"#], tensor(&[1; 5], F32))];
    a_negative_dimension: [
        refused(&["negative dimension, -1"], tensor(&[-1], F32)),
        refused(&["negative dimension, -1"], tensor(&[1, -1], F32)),
    ];
    more_elements_than_can_be_counted: [
        refused(&[r#"tensor "t" is too large"#], tensor(&[1 << 32, 1 << 32], F32)),
        refused(&["too large"], tensor(&[1 << 31, 1 << 31, 2], I8)),
        refused(&["too large"], tensor(&[i64::MAX, 2], I8)),
    ];
    more_bytes_than_can_be_counted: [
        refused(&["too large"], tensor(&[(1 << 62) - 1], F32)),
        refused(&["too large"], tensor(&[i64::MAX], F32)),
    ];
    two_sizes_whose_sum_wraps_around: [
        refused(&["truncated"], build(&[], &[("a", &[HUGE], I8, 0), ("b", &[HUGE], I8, HUGE)], 32, 64)),
    ];
    a_bad_tensor_type: [
        refused(&[r#"tensor "t" has unknown or removed type 4"#], tensor(&[32], 4)),
        refused(&["removed type 43"], tensor(&[32], 43)),
        refused(&["removed type 4294967295"], tensor(&[32], u32::MAX)),
    ];
    a_bad_offset: [
        refused(&["at offset 32, expected 0"], build(&[], &[("t", &[1], F32, 32)], 32, 99)),
        refused(&["expected 0"], build(&[], &[("t", &[1], F32, -1)], 32, 99)),
    ];
    an_offset_against_the_alignment: [
        refused(&[r#"tensor "b" is at offset 4, expected 32"#], build(&[], &[("a", &[1], F32, 0), ("b", &[1], F32, 4)], 32, 99)),
        refused(&["is at offset 32, expected 64"], build(
            &[("general.alignment", u32_value(64))], &[("a", &[1], F32, 0), ("b", &[1], F32, 32)], 64, 99,
        )),
    ];
    a_duplicate_tensor_name: [
        refused(&[r#"tensor "t" occurs twice"#], build(&[], &[("t", &[1], F32, 0), ("t", &[1], F32, 32)], 32, 99)),
    ];
    rows_that_are_no_whole_blocks: [
        refused(&["rows of 33, no multiple of Q8_0's block of 32"], tensor(&[33], Q8_0)),
        refused(&["rows of 1,"], tensor(&[], Q8_0)),
        taken(tensor(&[64], Q8_0)),
    ];
    tensors_of_size_zero_load: [
        taken(tensor(&[0], F32)),
        taken(tensor(&[0, 5], F32)),
        taken(tensor(&[32, 0], Q8_0)),
        taken(tensor(&[1 << 62, 0, 4], F32)),
        taken(tensor(&[0, 1 << 62, 1 << 62], F32)),
    ];
    a_scalar_loads: [taken(tensor(&[], F32))];
    data_beyond_the_end: [
        refused(&["truncated", "the tensor data"], build(&[], &[("t", &[1 << 40], F32, 0)], 32, 4096)),
        refused(&["truncated", "the tensor data"], build(&[], &[("t", &[4], F32, 0)], 32, 15)),
        taken(build(&[], &[("t", &[4], F32, 0)], 32, 16)),
    ];
    an_alignment_of_one_loads: [
        taken(build(&[("general.alignment", u32_value(1))], &[("ab", &[1], F32, 0), ("c", &[1], F32, 4)], 1, 8)),
    ];

    /// A string may hold any bytes: what is no text is found by whoever needs text.
    strings_of_any_bytes_load: [taken({
        let mut text = 8_u32.to_le_bytes().to_vec();
        string(&mut text, b"\xff\0");
        entry("k", text)
    })];
}
