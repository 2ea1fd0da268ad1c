//! Captures on disk: recorded runs are judged like live ones, parts of one are
//! judged honestly, and what is no capture is refused.

use qdiff_tests::synth::Synth;
use qdiff_tests::{headline, qdiff, screen, stderr, stdout};
use serde_json::{Value, json};
use std::path::Path;

fn setup() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Synth::default()
        .write(&folder.path().join("model.gguf"))
        .unwrap();
    folder
}

fn record(folder: &Path, out: &str, extra: &[&str]) {
    let steps = if extra.contains(&"-n") {
        &[][..]
    } else {
        &["-n", "2"]
    };
    let args = [&["record", "-m", "model.gguf", "--out", out], steps, extra].concat();
    let output = qdiff(folder, &args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

fn judge(folder: &Path, extra: &[&str]) -> (i32, Value, String) {
    let mut args = vec!["run", "-m", "model.gguf", "--json", "report.json"];
    args.extend(extra);
    let output = qdiff(folder, &args);
    let code = output.status.code().unwrap();
    assert_ne!(code, 2, "{}", stderr(&output));
    let json = serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap();
    (code, json, stdout(&output))
}

fn statuses(report: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let stages = report["verdict"]["stages"].as_array().unwrap();
    stages
        .iter()
        .map(|s| (text(&s["stage"]), text(&s["status"])))
        .collect()
}

#[test]
fn a_recorded_run_gets_the_verdict_of_the_live_one() {
    let folder = setup();
    let folder = folder.path();
    for (name, fault) in [("clean", None), ("faulty", Some("rope-base@L01"))] {
        let inject: Vec<&str> = fault.map_or(vec![], |f| vec!["--inject", f]);
        // The reference chooses the tokens in a live run: record it too, and
        // the subject on the same ones.
        record(folder, &format!("{name}-llama"), &["--runner", "llama"]);
        record(folder, name, &inject);
        let (live_code, live, _) = judge(folder, &[&["-n", "2"], &inject[..]].concat());
        let subject = format!("capture:{name}");
        let (code, recorded, text) = judge(folder, &["--subject", &subject]);
        assert_eq!(code, live_code, "{text}");
        assert_eq!(code, i32::from(fault.is_some()), "{text}");
        assert_eq!(statuses(&recorded), statuses(&live), "{text}");
        assert!(text.contains("cpu (recorded)"), "{text}");
        if fault.is_some() {
            assert!(text.contains("explains the residual"), "{text}");
        }
    }
    // New tolerances on an old capture.
    let (code, ..) = judge(
        folder,
        &["--subject", "capture:faulty", "--tolerance", "*_rope=5"],
    );
    assert_eq!(code, 0);
}

#[test]
fn two_captures_need_no_engine() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "a", &["-n", "0"]);
    record(folder, "b", &["-n", "0", "--runner", "llama"]);
    let (code, report, text) = judge(
        folder,
        &["--subject", "capture:a", "--reference", "capture:b"],
    );
    assert_eq!(code, 0, "{text}");
    assert_eq!(report["reference"]["name"], "llama.cpp (cpu) (recorded)");
}

/// What was not captured, and no later stage shows, is missing: no pass, and
/// the coverage says so.
#[test]
fn a_part_is_judged_as_a_part() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "part", &["--stages", "q_*"]);
    let (code, report, text) = judge(folder, &["--subject", "capture:part"]);
    assert_eq!(code, 3, "{text}");
    let of = |stage: &str| {
        statuses(&report)
            .into_iter()
            .find(|(s, _)| s == stage)
            .unwrap()
            .1
    };
    assert_eq!(of("L00.q_biased"), "match");
    assert_eq!(of("L00.ffn_down"), "covered");
    assert_eq!(of("L01.ffn_down"), "missing");
    let coverage = &report["verdict"]["coverage"];
    assert!(coverage["judged"].as_u64() < coverage["asked"].as_u64());
    assert!(text.starts_with("INCOMPLETE"), "{text}");
}

#[test]
fn what_is_no_capture_is_refused() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "good", &["--stages", "logits"]);
    let refused = |extra: &[&str], expected: &[&str]| {
        let mut args = vec!["run", "-m", "model.gguf", "--json", "none.json"];
        args.extend(extra);
        let output = qdiff(folder, &args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{extra:?}: {message}");
        for part in expected {
            assert!(
                message.contains(part),
                "{extra:?}: `{part}` is not in: {message}"
            );
        }
        assert!(!folder.join("none.json").exists());
    };
    refused(
        &["--subject", "capture:absent"],
        &["absent", "manifest.json and capture.npz"],
    );
    refused(
        &["--subject", "nonsense"],
        &["auto, cpu, cuda, cuda-fast, llama, llama-cuda, capture:DIR or (as reference) none"],
    );
    refused(
        &["--subject", "capture:good", "--inject", "rope-base"],
        &["--inject"],
    );

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
    refused(
        &["--subject", "capture:version"],
        &["schema_version 99", "record it again"],
    );
    edit("model", &|m| m["model_sha256"] = json!("00"));
    refused(&["--subject", "capture:model"], &["another model", "-m"]);
    edit("arithmetic", &|m| {
        m["arithmetic"]["accumulation"] = json!("f16")
    });
    refused(
        &["--subject", "capture:arithmetic"],
        &["accumulation", "linear", "attention"],
    );
    edit("blocks", &|m| {
        m["arithmetic"]["attention"] = json!([{"scores": "q8_0"}])
    });
    refused(&["--subject", "capture:blocks"], &["must have no blocks"]);
    edit("format", &|m| {
        m["arithmetic"]["linear"] = json!([{"weights": "q9_9"}])
    });
    refused(
        &["--subject", "capture:format"],
        &["no weight format is called `q9_9`"],
    );
    edit("steps", &|m| m["decoded"] = json!([]));
    refused(
        &["--subject", "capture:steps"],
        &["step1/", "belongs to no stage"],
    );
    // The logits of two tokens where the manifest speaks of one: cut short
    // nowhere, but absurdly larger than the stage when there are many.
    edit("short", &|m| m["tokens"] = json!([1]));
    refused(&["--subject", "capture:short"], &["prefill/", "elements"]);
    edit("vocabulary", &|m| m["decoded"][0] = json!(99_999_999));
    refused(
        &["--subject", "capture:vocabulary"],
        &["99999999", "vocabulary"],
    );
    edit("context", &|m| m["decoded"] = json!(vec![1; 5000]));
    refused(&["--subject", "capture:context"], &["context of 2048"]);
    edit("broken", &|_| ());
    std::fs::write(folder.join("broken/capture.npz"), "no archive").unwrap();
    refused(&["--subject", "capture:broken"], &["broken", "npz"]);

    let again = qdiff(folder, &["record", "-m", "model.gguf", "--out", "good"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));
}

/// Changes the values of an array.
type Change = fn(&mut [f32]);

/// Copies of a capture with one array changed, by name: each is found where the
/// change is, and the headline has these words.
fn changes_are_found(folder: &Path, good: &str, cases: &[(&str, &str, Change, &[&str])]) {
    for (name, array, change, expected) in cases {
        let target = folder.join(name);
        std::fs::create_dir(&target).unwrap();
        let manifest = "manifest.json";
        std::fs::copy(folder.join(good).join(manifest), target.join(manifest)).unwrap();
        let mut bytes = std::fs::read(folder.join(good).join("capture.npz")).unwrap();
        tamper(&mut bytes, array, *change);
        std::fs::write(target.join("capture.npz"), bytes).unwrap();
        let (code, report, text) = judge(folder, &["--subject", &format!("capture:{name}")]);
        assert_eq!(code, 1, "{name}\n{text}");
        // The engine computed on from the right values: what reads the changed
        // tensor does not follow from it any more, and is the only other origin.
        let findings = report["verdict"]["findings"].as_array().unwrap();
        assert!(findings.len() <= 2, "{name}\n{text}");
        let headline = headline(&text);
        for part in *expected {
            assert!(
                headline.contains(part),
                "{name}: `{part}` is not in: {headline}"
            );
        }
    }
}

/// Faults that share no code with any hypothesis: bytes of a capture changed
/// from outside. Each is found at its stage, and described.
#[test]
fn a_tampered_capture_is_located_and_described() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "good", &[]);
    let cases: [(&str, &str, Change, &[&str]); 5] = [
        (
            "head",
            "step2/L01.attn_context",
            |x| x[64..128].fill(0.0),
            &[
                "L01.attn_context",
                "positions 36 from decode step 2",
                "head 1",
                "are zero",
            ],
        ),
        (
            "logit",
            "prefill/logits",
            |x| x[5 * 512 + 300] += 1.0,
            &["logits", "positions 5", "1 of", "one column, 300"],
        ),
        (
            "scaled",
            "prefill/L00.ffn_down",
            |x| x.iter_mut().for_each(|v| *v *= 0.5),
            &["L00.ffn_down", "in every column", "scaled by 0.500000"],
        ),
        (
            "tail",
            "step1/L00.ffn_up",
            |x| x[480..].fill(9.0),
            &["L00.ffn_up", "a tail, columns 480 to 511"],
        ),
        (
            "nan",
            "step1/L01.q_proj",
            |x| x[3] = f32::NAN,
            &["L01.q_proj", "positions 35"],
        ),
    ];
    changes_are_found(folder, "good", &cases);
}

/// One wrong head of one layer, and one wrong position at decode step 5: each
/// is found, and said exactly.
#[test]
fn one_head_and_one_position_are_located_exactly() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "good", &["-n", "5"]);
    let cases: [(&str, &str, Change, &[&str]); 2] = [
        (
            "head",
            "prefill/L01.attn_context",
            // Head 2 of every position, with a rule of its own at each element.
            |x| {
                for (i, v) in x.iter_mut().enumerate() {
                    if i % 256 / 64 == 2 {
                        *v = (i as f32).sin();
                    }
                }
            },
            &["L01.attn_context", "one-head-wrong:head=2", "head 2"],
        ),
        (
            "step",
            "step5/L00.ffn_act",
            |x| {
                for (i, v) in x.iter_mut().enumerate() {
                    *v = (i as f32).cos();
                }
            },
            &[
                "L00.ffn_act",
                "from decode step 5 on",
                "one-row-wrong:position=39",
                "position 39 at step 5 alone",
            ],
        ),
    ];
    changes_are_found(folder, "good", &cases);
}

/// A finite value computed from an infinite one is no match.
#[test]
fn garbage_after_infinity_is_no_pass() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "bad", &[]);
    let mut bytes = std::fs::read(folder.join("bad/capture.npz")).unwrap();
    tamper(&mut bytes, "prefill/L01.q_proj", |x| x.fill(f32::INFINITY));
    tamper(&mut bytes, "prefill/L01.q_biased", |x| x.fill(7.0));
    std::fs::write(folder.join("bad/capture.npz"), bytes).unwrap();
    let (code, _, text) = judge(
        folder,
        &["--subject", "capture:bad", "--stages", "q_biased"],
    );
    assert_eq!(code, 1, "{text}");
}

/// An array of another rank or extent than its stage's is refused, also where
/// the number of elements is right: numpy's header is edited in place.
#[test]
fn shapes_that_lie_are_refused() {
    let folder = setup();
    let folder = folder.path();
    for (name, array, from, to) in [
        (
            "scores",
            "prefill/L00.attn_scores",
            "(4, 35, 35, )",
            "(140, 1, 35,)",
        ),
        (
            "flat",
            "prefill/L00.q_rope",
            "(35, 4, 64, )",
            "(8960,      )",
        ),
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
        assert!(
            stderr(&output).contains("has shape"),
            "{name}: {}",
            stderr(&output)
        );
    }
}

/// Replaces part of an array's numpy header by text of the same length.
fn retitle(npz: &mut [u8], array: &str, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let (start, end) = extent(npz, array);
    let magic = (0..start)
        .rfind(|&i| npz[i..].starts_with(b"\x93NUMPY"))
        .unwrap();
    let at = magic
        + npz[magic..start]
            .windows(from.len())
            .position(|w| w == from.as_bytes())
            .unwrap();
    npz[at..at + to.len()].copy_from_slice(to.as_bytes());
    seal(npz, array, magic, end);
}

/// Changes the f32 values of one stored array in an npz, checksum included.
fn tamper(npz: &mut [u8], array: &str, change: fn(&mut [f32])) {
    let (start, end) = extent(npz, array);
    let mut values: Vec<f32> = npz[start..end]
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    change(&mut values);
    for (bytes, v) in npz[start..end].chunks_mut(4).zip(&values) {
        bytes.copy_from_slice(&v.to_le_bytes());
    }
    let magic = (0..start)
        .rfind(|&i| npz[i..].starts_with(b"\x93NUMPY"))
        .unwrap();
    seal(npz, array, magic, end);
}

fn find(npz: &[u8], what: &[u8], from: usize) -> usize {
    from + npz[from..]
        .windows(what.len())
        .position(|w| w == what)
        .unwrap()
}

/// Where the values of a stored array begin and end.
fn extent(npz: &[u8], array: &str) -> (usize, usize) {
    let local = find(npz, format!("{array}.npy").as_bytes(), 0);
    let magic = find(npz, b"\x93NUMPY", local);
    let header = u16::from_le_bytes([npz[magic + 8], npz[magic + 9]]) as usize;
    let start = magic + 10 + header;
    let record = |w: &[u8]| [&b"PK\x03\x04"[..], b"PK\x01\x02", b"PK\x07\x08"].contains(&w);
    let next = npz[start..].windows(4).position(record).unwrap();
    (start, start + next / 4 * 4)
}

/// Mends the checksum, in the local header and in the central directory.
fn seal(npz: &mut [u8], array: &str, magic: usize, end: usize) {
    let name = format!("{array}.npy");
    let local = find(npz, name.as_bytes(), 0);
    let crc = crc32(&npz[magic..end]).to_le_bytes();
    npz[local - 16..local - 12].copy_from_slice(&crc);
    let central = find(npz, name.as_bytes(), local + name.len());
    npz[central - 30..central - 26].copy_from_slice(&crc);
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for b in bytes {
        crc ^= u32::from(*b);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & 0u32.wrapping_sub(crc & 1));
        }
    }
    !crc
}

/// Two captures and the model: the verdict of a run. Without the model: how far
/// apart they are, what is wrong whatever the weights are, and never a pass.
#[test]
fn two_captures_are_compared() {
    let folder = setup();
    let folder = folder.path();
    record(folder, "mine", &[]);
    // On the same tokens, those of the decode steps too.
    let like = |out: &str, extra: &[&str]| {
        let args = ["record", "-m", "model.gguf", "--like", "mine", "--out", out];
        let output = qdiff(folder, &[&args[..], extra].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    };
    like("faulty", &["--inject", "rope-base@L01"]);
    like("theirs", &["--runner", "llama"]);
    let compare = |args: &[&str]| {
        let output = qdiff(folder, &[&["compare"], args].concat());
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let model = ["-m", "model.gguf", "--report", "report.json"];
    let (code, text) = compare(&[&["mine", "theirs"], &model[..]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("MATCH"), "{text}");
    let (code, text) = compare(&[&["faulty", "theirs"], &model[..]].concat());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("DIVERGED at L01.q_rope"), "{text}");

    for subject in ["mine", "faulty"] {
        let (code, text) = compare(&[subject, "theirs"]);
        assert_eq!(code, Some(3), "{text}");
        assert!(text.starts_with("INCOMPLETE: without the model"), "{text}");
        assert!(text.contains("0 % judged"), "{text}");
        if subject == "mine" {
            screen().bind(|| insta::assert_snapshot!("compare", text));
        }
    }
    // What is not finite is wrong whatever the weights are.
    like("nan", &[]);
    let path = folder.join("nan/capture.npz");
    let mut bytes = std::fs::read(&path).unwrap();
    tamper(&mut bytes, "step1/L01.q_proj", |x| x[3] = f32::NAN);
    std::fs::write(&path, bytes).unwrap();
    let (code, text) = compare(&["nan", "theirs"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.starts_with("DIVERGED at L01.q_proj: NaN in step1, element 3"),
        "{text}"
    );
    screen().bind(|| insta::assert_snapshot!("compare_nan", text));

    // What cannot be held against each other is refused, with or without a model.
    record(folder, "other", &["--tokens", "5,6,7"]);
    record(folder, "parts", &["--ubatch", "8"]);
    for (other, why) in [
        ("other", "different tokens"),
        ("parts", "steps of different size"),
        ("absent", "absent/manifest.json"),
    ] {
        for model in [&[][..], &["-m", "model.gguf"]] {
            let (code, text) = compare(&[&["mine", other], model].concat());
            assert_eq!(code, Some(2), "{other}: {text}");
            assert!(text.contains(why), "{other}: {text}");
        }
    }
    let (code, text) = compare(&["mine", "theirs", "--tolerance", "logits=1"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("need the model"), "{text}");
}

/// An archive that unpacks to far more than any stage has is refused, also
/// where no model says what a stage has.
/// A name from a manifest or of a file steers no terminal, coloured or not.
#[test]
fn hostile_names_are_shown_not_obeyed() {
    let folder = setup();
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

/// What a capture says of its tokens is not asked for a second time.
#[test]
fn a_capture_and_a_prompt_exclude_each_other() {
    let folder = setup();
    let run = ["run", "-m", "model.gguf", "--subject", "capture:mine"];
    let against = ["run", "-m", "model.gguf", "--reference", "capture:mine"];
    let logits = ["logits", "-m", "model.gguf", "--reference", "capture:mine"];
    let compare = ["compare", "-m", "model.gguf", "mine", "theirs"];
    for (command, extra) in [
        (&against[..], ["--prompt", "haiku"]),
        (&against[..], ["--tokens", "1,2"]),
        (&run[..], ["--length", "9"]),
        (&run[..], ["-n", "2"]),
        (&logits[..], ["-n", "2"]),
        (&compare[..], ["--ubatch", "8"]),
    ] {
        let output = qdiff(folder.path(), &[command, &extra].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let expected = format!("'{}' cannot be used with a capture", extra[0]);
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn bombs_are_refused_without_a_model() {
    let folder = setup();
    let folder = folder.path();
    record(
        folder,
        "good",
        &["-n", "0", "--stages", "logits", "--compress"],
    );
    record(
        folder,
        "bomb",
        &["-n", "0", "--stages", "logits", "--compress"],
    );
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
        (
            small,
            20_000_000,
            0,
            "`prefill/logits.npy`: is no npy array of ours: its header claims 2",
        ),
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
        let python = std::process::Command::new("python3")
            .current_dir(folder)
            .args(["-c", &numpy])
            .output()
            .unwrap();
        assert!(python.status.success(), "{}", stderr(&python));
        let output = qdiff(folder, &["compare", "bomb", "good"]);
        assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
        let message = stderr(&output);
        assert!(message.contains(expected), "{message}");
        assert!(message.len() < 1000, "{} bytes", message.len());
    }
}
