//! Every way a run can be refused: one clear line with the remedy, exit 2, no
//! panic, nothing written.

use qdiff_tests::synth::Synth;
use qdiff_tests::{qdiff, stderr, stdout};
use std::path::Path;

/// Runs and asserts a refusal whose single line holds all of `expected`.
fn refused(folder: &Path, args: &[&str], expected: &[&str]) {
    let before = files(folder);
    let output = qdiff(folder, args);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert_eq!(stdout(&output), "", "{args:?}");
    assert!(!message.contains("panicked"), "{args:?}: {message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{args:?}: {message}");
    for part in expected {
        assert!(message.contains(part), "{args:?}: `{part}` is not in: {message}");
    }
    assert_eq!(files(folder), before, "{args:?} left something behind");
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn model(folder: &Path) -> Vec<u8> {
    let bytes = Synth::default().to_bytes();
    std::fs::write(folder.join("good.gguf"), &bytes).unwrap();
    bytes
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|w| w == what).unwrap()
}

#[test]
fn files_that_are_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let good = model(folder);
    let put = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    put("empty.gguf", b"");
    put("text.gguf", b"this is not a model at all, it is text");
    put("short.gguf", &good[..good.len() / 2]);
    put("header.gguf", &good[..100]);
    std::fs::create_dir(folder.join("folder")).unwrap();
    for command in ["run", "verify-oracle", "bench"] {
        let refuse = |name: &str, expected: &[&str]| {
            refused(folder, &[command, "--model", name], expected);
        };
        refuse("absent.gguf", &["absent.gguf", "no such file", "check the path"]);
        refuse("folder", &["folder", "directory"]);
        refuse("empty.gguf", &["empty.gguf", "empty"]);
        refuse("text.gguf", &["text.gguf", "GGUF"]);
        refuse("short.gguf", &["short.gguf", "again"]);
        refuse("header.gguf", &["header.gguf"]);
    }
    for command in ["inspect", "weights"] {
        refused(folder, &[command, "absent.gguf"], &["absent.gguf"]);
        refused(folder, &[command, "text.gguf"], &["GGUF"]);
    }
    refused(folder, &["run"], &["--model", "QDIFF_MODEL", "fetch-model"]);
}

#[test]
fn models_that_cannot_be_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let good = model(folder);

    // The value of general.architecture follows its key and type.
    let mut other = good.clone();
    let at = find(&other, b"general.architecture") + 20 + 4 + 8;
    assert_eq!(&other[at..at + 5], b"qwen2");
    other[at..at + 5].copy_from_slice(b"llama");
    std::fs::write(folder.join("llama.gguf"), &other).unwrap();
    refused(folder, &["run", "-m", "llama.gguf"], &["`llama`", "qwen2, qwen3", "Use a Qwen"]);

    // Behind a tensor's name: its number of axes, their extents, its type.
    let mut exotic = good.clone();
    // The last one, so that no other tensor's offset depends on its size.
    let names = Synth::default().tensor_names();
    let name = names.last().unwrap();
    assert!(name.ends_with("ffn_down.weight") || name == "output.weight", "{name} is no matrix");
    let mut key = (name.len() as u64).to_le_bytes().to_vec();
    key.extend(name.as_bytes());
    let at = find(&exotic, &key) + key.len() + 4 + 16;
    exotic[at..at + 4].copy_from_slice(&10u32.to_le_bytes());
    std::fs::write(folder.join("exotic.gguf"), &exotic).unwrap();
    refused(folder, &["run", "-m", "exotic.gguf"], &[name.as_str(), "Q2_K", "not supported", "requantise"]);

    let mut renamed = good;
    let at = find(&renamed, b"blk.0.attn_k.bias");
    renamed[at] = b'X';
    std::fs::write(folder.join("renamed.gguf"), &renamed).unwrap();
    refused(folder, &["run", "-m", "renamed.gguf"], &["blk.0.attn_k.bias", "missing"]);
}

#[test]
fn prompts_that_cannot_be_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder);
    let refuse = |args: &[&str], expected: &[&str]| {
        let mut all = vec!["run", "-m", "good.gguf"];
        all.extend(args);
        refused(folder, &all, expected);
    };
    refuse(&["--prompt", ""], &["prompt is empty", "qdiff prompts"]);
    refuse(&["--prompt", "@absent.txt"], &["absent.txt"]);
    std::fs::write(folder.join("bytes.txt"), b"a\xff\xfeb").unwrap();
    refuse(&["--prompt", "@bytes.txt"], &["bytes.txt", "byte 1 is not UTF-8", "save it as UTF-8"]);
    refuse(&["--prompt", "long", "-n", "9999"], &["context of 2048", "-n"]);
    refuse(&["--tokens", "1,99999"], &["99999", "vocabulary"]);
    refuse(&["--threads", "0"], &["--threads"]);
    refuse(&["-n", "18446744073709551615"], &["context of 2048"]);
}

#[test]
fn requests_that_select_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder);
    let refuse = |args: &[&str], expected: &[&str]| {
        let mut all = vec!["run", "-m", "good.gguf"];
        all.extend(args);
        refused(folder, &all, expected);
    };
    refuse(&["--stages", "q_rop"], &["`q_rop`", "did you mean `q_rope`", "qdiff inspect"]);
    refuse(&["--stages", "L01.ffn_donw"], &["did you mean `ffn_down`"]);
    refuse(&["--layers", "2"], &["layer 2", "0 to 1"]);
    refuse(&["--layers", "x"], &["`x`"]);
    refuse(&["--tolerance", "nothing=1e-3"], &["nothing"]);
    refuse(&["--tolerance", "q_rope"], &["GLOB=NUMBER"]);
    refuse(&["--inject", "no-such-bug"], &["no-such-bug", "`qdiff mutations` lists them"]);
    refuse(&["--inject", "rope-bsae@L01"], &["did you mean `rope-base`"]);
    refuse(&["--inject", "rope-base@L09"], &["layer 9", "0 to 1"]);
    refuse(&["--inject", "rope-base:theta=3"], &["base=NUMBER"]);
    refuse(&["--json", "absent/report.json"], &["absent/report.json", "folder you can write to"]);
    refuse(&["--json", "."], &["directory"]);
    refuse(&["--json", "-"], &["standard output"]);
    refuse(&["--json", "/dev/null"], &["no plain file"]);
    refuse(&["--tokens", "1,2", "-n", "0", "--positions", "999"], &["select nothing", "0 to 1"]);
    refuse(&["--stages", "L01.*", "--layers", "0"], &["select nothing"]);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = std::process::Command::new("bash")
        .args(["-o", "pipefail", "-c", "\"$0\" mutations | head -n 1 | tail -n 1"])
        .arg(qdiff_tests::binary())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}

/// An old report survives a run that is refused, and a new one is whole.
#[test]
fn a_report_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    model(folder);
    std::fs::write(folder.join("report.json"), "the old one").unwrap();
    let refused = qdiff(folder, &["run", "-m", "good.gguf", "--layers", "7", "--json", "report.json"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(folder.join("report.json")).unwrap(), "the old one");
    let ran = qdiff(folder, &["run", "-m", "good.gguf", "-n", "1", "--json", "report.json"]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr(&ran));
    let text = std::fs::read(folder.join("report.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["schema_version"], 3);
    assert_eq!(files(folder), ["good.gguf", "report.json"]);
}

/// `git bisect run` must not take trouble for a bad commit.
#[test]
fn bisect_skips_what_cannot_be_judged() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["run", "--bisect", "-m", "absent.gguf"][..],
        &["run", "--bisect", "--no-such-flag"],
        &["run", "--bisect", "--subject", "nonsense"],
    ] {
        let output = qdiff(folder.path(), args);
        assert_eq!(output.status.code(), Some(125), "{args:?}: {}", stderr(&output));
    }
}

/// A slip in a runner's name names the one that was meant.
#[test]
fn a_runner_that_does_not_exist() {
    let folder = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (&["run", "--subject", "cdua"][..], "'cuda'"),
        (&["run", "--subject", "none"], "capture:DIR"),
        (&["record", "--runner", "lama", "--out", "x"], "'llama'"),
        (&["generate", "--subject", "capture:mine"], "qdiff run --subject capture:mine"),
        (&["mutations", "show", "rope-bsae"], "did you mean `rope-base`"),
    ] {
        let output = qdiff(folder.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
}

/// What `bench` would pass over is refused.
#[test]
fn options_that_say_nothing_about_what_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["--length", "99"][..],
        &["--gemm", "cublas"],
        &["--alone"],
        &["--measure", "soak", "--rounds", "2"],
        &["--measure", "cuda", "--threads", "1"],
        &["--measure", "run", "--raw"],
        &["--measure", "tapped-prefill", "--baseline", "x.json"],
    ] {
        let output = qdiff(folder.path(), &[&["bench", "-m", "absent.gguf"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let option = args.iter().rfind(|a| a.starts_with("--") && **a != "--measure").unwrap();
        let said = stderr(&output);
        assert!(said.contains(&format!("'{option}' says nothing about what")), "{args:?}: {said}");
    }
    let decode = qdiff(folder.path(), &["bench", "-n", "2"]);
    assert!(stderr(&decode).contains("unexpected argument '-n'"), "{}", stderr(&decode));
    let prompt = qdiff(folder.path(), &["mutations", "score", "--prompt", "code"]);
    assert!(stderr(&prompt).contains("--model"), "{}", stderr(&prompt));
}
