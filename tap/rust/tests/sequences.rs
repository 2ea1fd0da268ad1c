//! The contents of the folder of a dump of several sequences.

use qdiff_tap::{Elements, Tap};
use serde_json::{Value, json};

#[test]
fn lines_say_whose_the_rows_are() {
    let folder = tempfile::tempdir().unwrap();
    let tap = Tap::in_folder(folder.path(), "mine", "").unwrap();
    tap.step(0, &[7, 8, 9]).unwrap();
    tap.sequences(&[0, 2, 2]).unwrap();
    tap.prefix(0, 2, 4).unwrap();
    tap.taken_back(0, 6).unwrap();
    tap.rows("slots", None, &[12i32, 40, 41], 1).unwrap();
    for sequence in [0, 2] {
        tap.add_of(sequence, "tables", None, Elements::of(vec![1], [3i64])).unwrap();
    }
    tap.end().unwrap();
    let lines = std::fs::read_to_string(folder.path().join("capture.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |sequence: usize, offset: usize| json!({"step": 0, "name": "tables", "dtype": "i64", "shape": [1], "file": "capture.bin", "offset": offset, "sequence": sequence});
    assert_eq!(
        lines,
        [
            json!({"step": 0, "sequences": [0, 2, 2]}),
            json!({"step": 0, "prefixes": [[0, 2, 4]]}),
            json!({"step": 0, "taken_back": [[0, 6]]}),
            json!({"step": 0, "name": "slots", "dtype": "i32", "shape": [3, 1], "file": "capture.bin", "offset": 0}),
            of(0, 12),
            of(2, 20),
            json!({"end": 0, "first": 0, "tokens": [7, 8, 9]}),
        ]
    );
    assert!(tap.prefix(0, 1, 1).unwrap_err().to_string().contains("before the step began"));
    let other = tempfile::tempdir().unwrap();
    let tap = Tap::in_folder(other.path(), "mine", "").unwrap();
    tap.step(0, &[7, 8]).unwrap();
    assert!(tap.sequences(&[0]).unwrap_err().to_string().contains("has 2 tokens, and 1 sequences were named"));
}
