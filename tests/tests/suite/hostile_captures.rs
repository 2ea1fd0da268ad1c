//! What is no capture is refused, and what a capture says of itself is not
//! believed.

use qdiff_tests::npz::{retitle, tamper};
use qdiff_tests::{folder, python};
use serde_json::{Value, json};

#[test]
fn what_is_no_capture_is_refused() {
    let folder = folder();
    folder.record("good", "--stages logits");
    let run = "run -m model.gguf --subject";
    let refused = |subject: &str, expected: &[&str]| folder.refuses(&format!("{run} {subject}"), expected);
    refused("capture:absent", &["absent", "manifest.json and capture.npz"]);
    let runners = "possible values: auto, cpu, cuda, cuda-fast, llama, llama-cuda, capture:DIR";
    folder.refuses_options(&format!("{run} nonsense"), &[runners]);
    refused("capture:good --inject rope-base", &["--inject"]);

    folder.create("bad");
    std::fs::copy(folder.join("good/capture.npz"), folder.join("bad/capture.npz")).unwrap();
    for (at, value, expected) in [
        ("/schema_version", json!(99), &["schema_version 99", "record it again"][..]),
        ("/schema_version", Value::Null, &["has no schema_version; add \"schema_version\": "]),
        ("/model_sha256", json!("00"), &["another model", "-m"]),
        ("/arithmetic/accumulation", json!("f16"), &["accumulation", "linear", "attention"]),
        ("/arithmetic/attention", json!([{"context": "q8_0"}]), &["weights need a format without them"]),
        ("/arithmetic/linear", json!([{"weights": "q9_9"}]), &["no weight format is called `q9_9`"]),
        (
            "/kv",
            json!("f16"),
            &["bad/manifest.json: the key `kv` is beside `arithmetic`", "\"arithmetic\": { \"kv\": … }"],
        ),
        ("/decoded", json!([]), &["step1/", "belongs to no stage"]),
        // The logits of two tokens where the manifest speaks of one: cut short
        // nowhere, but absurdly larger than the stage when there are many.
        ("/tokens", json!([1]), &["prefill/", "elements"]),
        ("/decoded/0", json!(99_999_999), &["99999999", "vocabulary"]),
        ("/decoded", json!(vec![1; 5000]), &["context of 2048"]),
    ] {
        let mut manifest = folder.json("good/manifest.json");
        let (object, key) = at.rsplit_once('/').unwrap();
        match manifest.pointer_mut(object).unwrap() {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
            object => object[key] = value,
        }
        folder.write("bad/manifest.json", manifest.to_string());
        refused("capture:bad", expected);
    }
    folder.write("bad/manifest.json", folder.text("good/manifest.json"));
    folder.write("bad/capture.npz", "no archive");
    refused("capture:bad", &["bad", "npz"]);
    folder.refuses("record -m model.gguf --out good", &["exists"]);
}

/// A finite value computed from an infinite one is no match.
#[test]
fn garbage_after_infinity_is_no_pass() {
    let folder = folder();
    folder.record("bad", "");
    let capture = folder.join("bad/capture.npz");
    tamper(&capture, "prefill/L01.q_proj", |x| x.fill(f32::INFINITY));
    tamper(&capture, "prefill/L01.q_biased", |x| x.fill(7.0));
    let (code, _, text) = folder.judged("--subject capture:bad --stages q_biased");
    assert_eq!(code, 1, "{text}");
}

/// An array of another rank or extent than its stage's is refused, also where
/// the number of elements is right: numpy's header is edited in place.
#[test]
fn shapes_that_lie_are_refused() {
    let folder = folder();
    for (name, array, from, to) in [
        ("scores", "prefill/L00.attn_scores", "(4, 35, 35, )", "(140, 1, 35,)"),
        ("flat", "prefill/L00.q_rope", "(35, 4, 64, )", "(8960,      )"),
        ("columns", "prefill/logits", "(35, 512, )", "(17920, 1,)"),
    ] {
        folder.record(name, "");
        retitle(&folder.join(name).join("capture.npz"), array, from, to);
        folder.refuses(&format!("run -m model.gguf --subject capture:{name}"), &["has shape"]);
    }
}

/// A name from a manifest or of a file steers no terminal, coloured or not.
#[test]
fn hostile_names_are_shown_not_obeyed() {
    let folder = folder();
    folder.record("mine", "-n 0 --stages logits");
    folder.record("theirs", "-n 0 --stages logits");
    let mut manifest = folder.json("mine/manifest.json");
    manifest["engine"] = "\u{1b}]0;owned\u{7}\u{1b}[2J".into();
    folder.write("mine/manifest.json", manifest.to_string());
    for other in ["theirs", "no\u{1b}[2Jne"] {
        let all = folder.qdiff(&format!("compare mine {other} --color always")).to_string();
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
    folder.record("good", "-n 0 --stages logits --compress");
    folder.record("bomb", "-n 0 --stages logits --compress");
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
        (small, 20_000_000, 0, "`prefill/logits`: is no npy array of ours: its header claims 2"),
        ("b'('", 60_000, 0, "`prefill/logits`: is no npy array"),
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
        python(&folder, &numpy);
        folder.refuses("compare bomb good", &[expected]);
        let said = folder.qdiff("compare bomb good").stderr;
        assert!(said.len() < 1000, "{} bytes", said.len());
    }
}

/// What stands before an archive in its file, a hole of any size, lets it unpack to no more.
#[test]
fn a_hole_before_an_archive_buys_nothing() {
    let folder = folder();
    folder.record("good", "-n 0 --stages logits --compress");
    folder.record("bomb", "-n 0 --stages logits --compress");
    python(
        &folder,
        "import struct, zipfile\n\
         header = b\"{'descr': '<f4', 'fortran_order': False, 'shape': (35, 4000000), }\"\n\
         with open('bomb/capture.npz', 'w+b') as f:\n\
         \x20   f.seek(1 << 40)\n\
         \x20   with zipfile.ZipFile(f, 'w', zipfile.ZIP_DEFLATED) as z:\n\
         \x20       z.writestr('prefill/logits.npy', b'\\x93NUMPY\\x01\\x00' + struct.pack('<H', len(header)) + header)\n",
    );
    folder.refuses("compare bomb good", &["more than such a file can hold"]);
}

/// What numpy refuses is refused: a wrong checksum, and elements after the last.
/// Two arrays of one name, of which numpy takes either, are refused too.
#[test]
fn archives_that_do_not_agree_with_themselves_are_refused() {
    let folder = folder();
    folder.record("good", "-n 0 --stages logits");
    let good = std::fs::read(folder.join("good/capture.npz")).unwrap();
    let refused = |expected: &str| folder.refuses("run -m model.gguf --subject capture:good", &[expected]);
    folder.edit("good/capture.npz", |npz| {
        let header = npz.windows(6).position(|w| w == b"\x93NUMPY").unwrap();
        npz[header + 128] ^= 1;
    });
    refused("checksum");
    for (rewrite, expected) in [
        ("'a'); z.writestr(name, data", "two arrays of one name"),
        ("'w'); z.writestr(name, data + b'more'", "goes on after its last element"),
    ] {
        folder.write("good/capture.npz", &good);
        python(
            &folder,
            &format!(
                "import warnings, zipfile; warnings.simplefilter('ignore')\n\
                 z = zipfile.ZipFile('good/capture.npz'); name = z.namelist()[0]; data = z.read(name); z.close()\n\
                 z = zipfile.ZipFile('good/capture.npz', {rewrite}); z.close()"
            ),
        );
        refused(expected);
    }
}

/// A header of many brackets is refused at once; its parser would never end.
#[test]
fn brackets_within_brackets_are_refused() {
    let folder = folder();
    folder.record("deep", "-n 0 --stages logits");
    let padded = |text: &str| format!("{text:<62}");
    let deep = padded(&format!(" 'shape': {}", "(".repeat(40)));
    let shape = padded(" 'shape': (35, 512, ), }");
    retitle(&folder.join("deep/capture.npz"), "prefill/logits", &shape, &deep);
    folder.refuses("run -m model.gguf --subject capture:deep", &["nests brackets deeper"]);
    folder.refuses("compare deep deep", &["nests brackets deeper"]);
}
