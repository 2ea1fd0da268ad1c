//! Every golden yields what it must, against llama.cpp on this machine.

use qdiff_tests::{markdown, real_folder};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn goldens() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(markdown::root().join("goldens")).unwrap();
    // The folder also has results of other kinds, for REPORT.md.
    let mut all: Vec<PathBuf> =
        folders.map(|entry| entry.unwrap().path()).filter(|p| p.join("manifest.json").is_file()).collect();
    all.sort();
    all
}

#[test]
fn every_golden_yields_what_it_must() {
    let work = real_folder();
    let all = goldens();
    assert!(all.len() >= 7, "goldens are missing: {all:?}");
    for golden in all {
        let expected = std::fs::read(golden.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let more: Vec<&str> = expected["arguments"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
        let (code, report, text) = work.judged(&format!("--subject 'capture:{}' {}", golden.display(), more.join(" ")));
        let text = format!("{}\n{text}", golden.display());
        assert_eq!(expected["exit"], code, "{text}");
        let verdict = &report["verdict"];
        let findings = verdict["findings"].as_array().unwrap();
        let of = |pick: &dyn Fn(&Value) -> Value| findings.iter().map(pick).collect::<Value>();
        assert_eq!(of(&|f| f["stage"].clone()), expected["origins"], "{text}");
        assert_eq!(of(&|f| f["cause"]["name"].clone()), expected["causes"], "{text}");
        assert_eq!(verdict["coverage"]["judged"], expected["judged"], "{text}");
    }
}

/// A repository is no place for gigabytes.
#[test]
fn goldens_stay_small() {
    let size = |path: &Path| std::fs::metadata(path.join("capture.npz")).unwrap().len();
    let total: u64 = goldens().iter().map(|g| size(g)).sum();
    assert!(total <= 6 << 20, "{total} bytes");
}
