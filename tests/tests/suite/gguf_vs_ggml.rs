//! Which GGUF files are accepted: qdiff's parser against the pinned llama.cpp's (`llama_says.rs`).

use super::gguf_classes;
use super::gguf_files::{array, build, small, u32_value};
use super::llama_says::{Asked, loaded};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use qdiff_engine::gguf::{Gguf, Problem};
use qdiff_engine::quant::GgmlType;

/// Compares on each file; returns how many were accepted by both.
fn compare(files: &[Vec<u8>]) -> usize {
    let mut accepted = 0;
    for (bytes, theirs) in files.iter().zip(loaded(files, Asked::Header)) {
        let ours = Gguf::from_bytes(bytes.clone());
        match (&ours, theirs) {
            (Ok(_), true) => accepted += 1,
            (Err(_), false) => {}
            // The documented exceptions: NUL bytes and other than UTF-8 in names.
            (Err(e), true) if matches!(e.problem, Problem::Name { .. }) => {}
            // ... and sizes that wrap around in llama.cpp.
            (Err(e), true) if wraps_around(&e.problem) => {}
            _ => panic!(
                "llama.cpp loads it: {theirs}, qdiff: {:?}, for \"{}\"",
                ours.map(|_| ()).map_err(|e| e.to_string()),
                bytes.escape_ascii()
            ),
        }
    }
    accepted
}

/// Whether llama.cpp's `ggml_nbytes`, elements of a row times bytes of a block
/// before the division by at most 256, overflowed.
fn wraps_around(problem: &Problem) -> bool {
    match problem {
        Problem::Overflow(_) => true,
        Problem::Truncated { needed, .. } => *needed >= 1 << 56,
        _ => false,
    }
}

#[test]
fn truncations_agree() {
    let whole = small();
    let files: Vec<_> = (0..=whole.len()).map(|n| whole[..n].to_vec()).collect();
    assert_eq!(compare(&files), 1, "only the whole file loads");
}

/// Every bit of a small file, flipped.
#[test]
fn bit_flips_agree() {
    let original = small();
    let files: Vec<_> = (0..8 * original.len())
        .map(|bit| {
            let mut f = original.clone();
            f[bit / 8] ^= 1 << (bit % 8);
            f
        })
        .collect();
    let accepted = compare(&files);
    assert!(
        (1000..files.len() - 1000).contains(&accepted),
        "{accepted} of {} files were accepted by both",
        files.len()
    );
}

/// The classes of bad files: llama.cpp refuses what the parser refuses, except where the parser is stricter on purpose.
#[test]
fn classes_agree() {
    gguf_classes::all().agree(Asked::Header);
}

#[test]
fn hand_made_files_agree() {
    let mut files = vec![small()];
    for version in [0, 1, 2, 3, 4, 3 << 24, u32::MAX] {
        let mut f = build(&[], &[], 1, 0);
        f[4..8].copy_from_slice(&u32::to_le_bytes(version));
        files.push(f);
    }
    for at in [8, 16] {
        for n in [-1, 1, 1 << 40, i64::MAX] {
            let mut f = build(&[], &[], 1, 0);
            f[at..at + 8].copy_from_slice(&i64::to_le_bytes(n));
            files.push(f);
        }
    }
    for alignment in [0, 1, 2, 13, 32, 4096, 1 << 30, 1 << 31, u32::MAX] {
        let kv = [("general.alignment", u32_value(alignment))];
        for n in [0, 1, 4096] {
            files.push(build(&kv, &[], 1, n));
            files.push(build(&kv, &[("ab", &[1], 0, 0)], 1, n));
        }
    }
    for value in [
        array(4, 1, &[32, 0, 0, 0]),
        [&10_u32.to_le_bytes()[..], &[32, 0, 0, 0, 0, 0, 0, 0]].concat(),
        [&5_u32.to_le_bytes()[..], &[32, 0, 0, 0]].concat(),
    ] {
        files.push(build(&[("general.alignment", value)], &[], 1, 0));
    }
    for ty in 0..15 {
        for n in [-1, 0, 1, 2, 1 << 30, (1 << 30) + 1, 500_000_000] {
            files.push(build(&[("k", array(ty, n, &[1; 24]))], &[], 1, 0));
        }
        for value in [0, 1, 255] {
            files.push(build(&[("k", [&ty.to_le_bytes()[..], &[value; 8]].concat())], &[], 1, 0));
        }
    }
    files.push(build(&[("", u32_value(1))], &[], 1, 0));
    files.push(build(&[("k", u32_value(1)), ("k", u32_value(2))], &[], 1, 0));
    files.push(build(&[("general.alignment\0", u32_value(13))], &[], 1, 0));
    let huge = 0x7fff_ffff_ffff_ffc0;
    let small: &[&[i64]] = &[
        &[],
        &[0],
        &[1],
        &[4],
        &[32],
        &[33],
        &[256],
        &[32, 2],
        &[1; 4],
        &[1; 5],
        &[-1],
        &[1, -1],
        &[0, 5],
        &[5, 0],
        &[1 << 60],
        &[huge],
    ];
    let large: &[&[i64]] = &[
        &[1 << 32, 1 << 32],
        &[1 << 31, 1 << 31],
        &[(1 << 62) - 1],
        &[1 << 62, 0, 4],
        &[1 << 62, 4, 0],
        &[0, 1 << 62, 1 << 62],
        &[i64::MAX],
        &[i64::MAX, 1],
        &[i64::MAX, 2],
        &[1 << 59, 16],
    ];
    for dims in small.iter().chain(large) {
        for ty in [0, 1, 2, 4, 8, 12, 24, 30, 31, 39, 43, u32::MAX] {
            files.push(build(&[], &[("t", dims, ty, 0)], 32, 4096));
            files.push(build(&[], &[("t", dims, ty, 0)], 32, 0));
        }
    }
    for ty in 0..50 {
        files.push(build(&[], &[("t", &[256], ty, 0)], 32, 4096));
        // Rows of no whole blocks; and data a byte too short, and just long enough.
        let Some(known) = GgmlType::from_id(ty) else { continue };
        let (block, bytes) = (known.block_size() as i64, known.type_size());
        for n in [block - 1, block + 1, 3 * block] {
            files.push(build(&[], &[("t", &[n, 2], ty, 0)], 32, 6 * bytes));
        }
        files.push(build(&[], &[("t", &[3 * block, 2], ty, 0)], 32, 6 * bytes - 1));
    }
    let long = "x".repeat(65);
    for n in [0, 1, 62, 63, 64, 65] {
        files.push(build(&[], &[(&long[..n], &[1], 0, 0)], 32, 4));
    }
    for second in [0, 4, 31, 32, 33, 64, -1] {
        for n in [35, 36, 64] {
            files.push(build(&[], &[("a", &[1], 0, 0), ("b", &[1], 0, second)], 32, n));
            files.push(build(&[], &[("a", &[1], 0, 0), ("a", &[1], 0, second)], 32, n));
        }
    }
    files.push(build(&[], &[("a", &[huge], 24, 0), ("b", &[huge], 24, huge)], 32, 64));
    let accepted = compare(&files);
    assert!(accepted > 50, "only {accepted} of {} files were accepted by both", files.len());
}

#[test]
fn mutations_agree() {
    let original = small();
    // Mostly in the header, where it matters; small numbers and extremes more often than others.
    let byte = prop_oneof![any::<u8>(), 0_u8..16, Just(0xff), Just(0x80)];
    let edits = proptest::collection::vec((0..original.len(), byte), 1..4);
    let mut runner = TestRunner::deterministic();
    let files: Vec<_> = (0..1500)
        .map(|_| {
            let mut f = original.clone();
            for (at, byte) in edits.new_tree(&mut runner).expect("a value").current() {
                f[at] = byte;
            }
            f
        })
        .collect();
    let accepted = compare(&files);
    assert!(accepted > 50, "only {accepted} of {} files were accepted by both", files.len());
}
