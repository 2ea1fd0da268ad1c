//! Every golden yields what it must, against llama.cpp on this machine.

use qdiff_tests::{qdiff, real_model, stderr, stdout};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn goldens() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../goldens");
    let mut all: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        // Results of other kinds stand beside them, for REPORT.md.
        .filter(|p| p.join("manifest.json").is_file())
        .collect();
    all.sort();
    all
}

#[test]
fn every_golden_yields_what_it_must() {
    let work = tempfile::tempdir().unwrap();
    let all = goldens();
    assert!(all.len() >= 7, "goldens are missing: {all:?}");
    for golden in all {
        let expected = read(&golden.join("expected.json"));
        let subject = format!("capture:{}", golden.display());
        let model = real_model();
        let mut args = vec!["run", "-m", &model, "--subject", &subject, "--report", "report.json"];
        let more = expected["arguments"].as_array().unwrap();
        args.extend(more.iter().map(|a| a.as_str().unwrap()));
        let output = qdiff(work.path(), &args);
        let text = format!("{}\n{}{}", golden.display(), stdout(&output), stderr(&output));
        assert_eq!(output.status.code().map(i64::from), expected["exit"].as_i64(), "{text}");
        let verdict = &read(&work.path().join("report.json"))["verdict"];
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
