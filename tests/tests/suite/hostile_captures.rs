//! What is no capture is refused, and what a capture says of itself is not
//! believed.

use qdiff_tests::npz::{retitle, tamper};
use qdiff_tests::recording::record;
use qdiff_tests::{folder, judged, qdiff, stderr, stdout};
use serde_json::{Value, json};

#[test]
fn what_is_no_capture_is_refused() {
    let folder = folder();
    let folder = folder.path();
    record(folder, "good", &["--stages", "logits"]);
    let refused = |extra: &[&str], expected: &[&str]| {
        let mut args = vec!["run", "-m", "model.gguf", "--json", "none.json"];
        args.extend(extra);
        let output = qdiff(folder, &args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{extra:?}: {message}");
        for part in expected {
            assert!(message.contains(part), "{extra:?}: `{part}` is not in: {message}");
        }
        assert!(!folder.join("none.json").exists());
    };
    refused(&["--subject", "capture:absent"], &["absent", "manifest.json and capture.npz"]);
    refused(
        &["--subject", "nonsense"],
        &["possible values: auto, cpu, cuda, cuda-fast, llama, llama-cuda, capture:DIR"],
    );
    refused(&["--subject", "capture:good", "--inject", "rope-base"], &["--inject"]);

    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let target = folder.join(name);
        std::fs::create_dir(&target).unwrap();
        std::fs::copy(folder.join("good/capture.npz"), target.join("capture.npz")).unwrap();
        let text = std::fs::read(folder.join("good/manifest.json")).unwrap();
        let mut manifest: Value = serde_json::from_slice(&text).unwrap();
        change(&mut manifest);
        std::fs::write(target.join("manifest.json"), manifest.to_string()).unwrap();
    };
    edit("version", &|m| m["schema_version"] = json!(99));
    refused(&["--subject", "capture:version"], &["schema_version 99", "record it again"]);
    edit("model", &|m| m["model_sha256"] = json!("00"));
    refused(&["--subject", "capture:model"], &["another model", "-m"]);
    edit("arithmetic", &|m| m["arithmetic"]["accumulation"] = json!("f16"));
    refused(&["--subject", "capture:arithmetic"], &["accumulation", "linear", "attention"]);
    edit("blocks", &|m| m["arithmetic"]["attention"] = json!([{"scores": "q8_0"}]));
    refused(&["--subject", "capture:blocks"], &["must have no blocks"]);
    edit("format", &|m| m["arithmetic"]["linear"] = json!([{"weights": "q9_9"}]));
    refused(&["--subject", "capture:format"], &["no weight format is called `q9_9`"]);
    edit("steps", &|m| m["decoded"] = json!([]));
    refused(&["--subject", "capture:steps"], &["step1/", "belongs to no stage"]);
    // The logits of two tokens where the manifest speaks of one: cut short
    // nowhere, but absurdly larger than the stage when there are many.
    edit("short", &|m| m["tokens"] = json!([1]));
    refused(&["--subject", "capture:short"], &["prefill/", "elements"]);
    edit("vocabulary", &|m| m["decoded"][0] = json!(99_999_999));
    refused(&["--subject", "capture:vocabulary"], &["99999999", "vocabulary"]);
    edit("context", &|m| m["decoded"] = json!(vec![1; 5000]));
    refused(&["--subject", "capture:context"], &["context of 2048"]);
    edit("broken", &|_| ());
    std::fs::write(folder.join("broken/capture.npz"), "no archive").unwrap();
    refused(&["--subject", "capture:broken"], &["broken", "npz"]);

    let again = qdiff(folder, &["record", "-m", "model.gguf", "--out", "good"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));
}

/// A finite value computed from an infinite one is no match.
#[test]
fn garbage_after_infinity_is_no_pass() {
    let folder = folder();
    let folder = folder.path();
    record(folder, "bad", &[]);
    let mut bytes = std::fs::read(folder.join("bad/capture.npz")).unwrap();
    tamper(&mut bytes, "prefill/L01.q_proj", |x| x.fill(f32::INFINITY));
    tamper(&mut bytes, "prefill/L01.q_biased", |x| x.fill(7.0));
    std::fs::write(folder.join("bad/capture.npz"), bytes).unwrap();
    let (code, _, text) = judged(folder, &["--subject", "capture:bad", "--stages", "q_biased"]);
    assert_eq!(code, 1, "{text}");
}

/// An array of another rank or extent than its stage's is refused, also where
/// the number of elements is right: numpy's header is edited in place.
#[test]
fn shapes_that_lie_are_refused() {
    let folder = folder();
    let folder = folder.path();
    for (name, array, from, to) in [
        ("scores", "prefill/L00.attn_scores", "(4, 35, 35, )", "(140, 1, 35,)"),
        ("flat", "prefill/L00.q_rope", "(35, 4, 64, )", "(8960,      )"),
        ("columns", "prefill/logits", "(35, 512, )", "(17920, 1,)"),
    ] {
        record(folder, name, &[]);
        let path = folder.join(name).join("capture.npz");
        let mut bytes = std::fs::read(&path).unwrap();
        retitle(&mut bytes, array, from, to);
        std::fs::write(&path, bytes).unwrap();
        let subject = format!("capture:{name}");
        let output = qdiff(folder, &["run", "-m", "model.gguf", "--subject", &subject]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stdout(&output));
        assert!(stderr(&output).contains("has shape"), "{name}: {}", stderr(&output));
    }
}

/// A name from a manifest or of a file steers no terminal, coloured or not.
#[test]
fn hostile_names_are_shown_not_obeyed() {
    let folder = folder();
    let folder = folder.path();
    for name in ["mine", "theirs"] {
        record(folder, name, &["-n", "0", "--stages", "logits"]);
    }
    let path = folder.join("mine/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut manifest: Value = serde_json::from_str(&text).unwrap();
    manifest["engine"] = "\u{1b}]0;owned\u{7}\u{1b}[2J".into();
    std::fs::write(&path, manifest.to_string()).unwrap();
    let bad = ["compare", "mine", "no\u{1b}[2Jne"];
    for args in [&["compare", "mine", "theirs"][..], &bad] {
        let output = qdiff(folder, &[args, &["--color", "always"]].concat());
        let all = stdout(&output) + &stderr(&output);
        assert!(all.contains(r"\u{1b}[2J"), "{all:?}");
        assert!(!all.contains("\u{1b}[2J"), "{all:?}");
        assert!(!all.contains('\u{7}'), "{all:?}");
    }
}

/// An archive that unpacks to far more than any stage has is refused, also
/// where no model says what a stage has.
#[test]
fn bombs_are_refused_without_a_model() {
    let folder = folder();
    let folder = folder.path();
    record(folder, "good", &["-n", "0", "--stages", "logits", "--compress"]);
    record(folder, "bomb", &["-n", "0", "--stages", "logits", "--compress"]);
    // Large data under an honest header; a large header under a small array,
    // one that parses and one that does not.
    let small = "b\"{'descr': '<f4', 'fortran_order': False, 'shape': (35, 8), }\"";
    for (header, blanks, data, expected) in [
        (
            "b\"{'descr': '<f4', 'fortran_order': False, 'shape': (35, 4000000), }\"",
            0,
            560,
            "more than such a file can hold",
        ),
        (small, 20_000_000, 0, "`prefill/logits.npy`: is no npy array of ours: its header claims 2"),
        ("b'('", 60_000, 0, "`prefill/logits.npy`: is no npy array"),
    ] {
        let numpy = format!(
            "import struct, zipfile\n\
             header, blanks = {header}, {blanks}\n\
             with zipfile.ZipFile('bomb/capture.npz', 'w', zipfile.ZIP_DEFLATED) as z:\n\
             \x20   with z.open('prefill/logits.npy', 'w') as f:\n\
             \x20       blanks += 63 - (len(header) + blanks + 12) % 64\n\
             \x20       f.write(b'\\x93NUMPY\\x02\\x00' + struct.pack('<I', len(header) + blanks + 1))\n\
             \x20       f.write(header + b' ' * blanks + b'\\n')\n\
             \x20       for _ in range({data}): f.write(bytes(1000000))\n"
        );
        let python = std::process::Command::new("python3").current_dir(folder).args(["-c", &numpy]).output().unwrap();
        assert!(python.status.success(), "{}", stderr(&python));
        let output = qdiff(folder, &["compare", "bomb", "good"]);
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        let message = stderr(&output);
        assert!(message.contains(expected), "{message}");
        assert!(message.len() < 1000, "{} bytes", message.len());
    }
}

/// What numpy refuses is refused: a wrong checksum, and elements after the last.
/// Two arrays of one name, of which numpy takes either, are refused too.
#[test]
fn archives_that_do_not_agree_with_themselves_are_refused() {
    let folder = folder();
    let folder = folder.path();
    record(folder, "good", &["-n", "0", "--stages", "logits"]);
    let path = folder.join("good/capture.npz");
    let good = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], expected: &str| {
        std::fs::write(&path, bytes).unwrap();
        let output = qdiff(folder, &["run", "-m", "model.gguf", "--subject", "capture:good"]);
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    };
    let mut bytes = good.clone();
    let values = bytes.windows(6).position(|w| w == b"\x93NUMPY").unwrap() + 128;
    bytes[values] ^= 1;
    refused(&bytes, "checksum");

    let rewritten = |python: &str| {
        std::fs::write(&path, &good).unwrap();
        let script = format!(
            "import warnings, zipfile; warnings.simplefilter('ignore')\n\
             z = zipfile.ZipFile('good/capture.npz'); name = z.namelist()[0]; data = z.read(name); z.close()\n\
             z = zipfile.ZipFile('good/capture.npz', {python}); z.close()"
        );
        let output = std::process::Command::new("python3").current_dir(folder).args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        std::fs::read(&path).unwrap()
    };
    refused(&rewritten("'a'); z.writestr(name, data"), "two arrays of one name");
    refused(&rewritten("'w'); z.writestr(name, data + b'more'"), "goes on after its last element");
}

/// A header of many brackets is refused at once; its parser would never end.
#[test]
fn brackets_within_brackets_are_refused() {
    let folder = folder();
    let folder = folder.path();
    record(folder, "deep", &["-n", "0", "--stages", "logits"]);
    let path = folder.join("deep/capture.npz");
    let mut bytes = std::fs::read(&path).unwrap();
    let padded = |text: &str| format!("{text:<62}");
    let deep = padded(&format!(" 'shape': {}", "(".repeat(40)));
    retitle(&mut bytes, "prefill/logits", &padded(" 'shape': (35, 512, ), }"), &deep);
    std::fs::write(&path, bytes).unwrap();
    for args in [&["run", "-m", "model.gguf", "--subject", "capture:deep"][..], &["compare", "deep", "deep"]] {
        let output = qdiff(folder, args);
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        assert!(stderr(&output).contains("nests brackets deeper"), "{}", stderr(&output));
    }
}
