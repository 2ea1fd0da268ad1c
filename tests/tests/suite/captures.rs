//! Captures on disk: recorded runs are judged like live ones, parts of one are
//! judged honestly.

use qdiff_tests::npz::tamper;
use qdiff_tests::recording::record;
use qdiff_tests::{folder, headline, judged, qdiff, qdiff_with, screen, stderr, stdout};
use serde_json::Value;
use std::path::Path;

fn statuses(report: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let stages = report["verdict"]["stages"].as_array().unwrap();
    stages.iter().map(|s| (text(&s["stage"]), text(&s["status"]))).collect()
}

#[test]
fn a_recorded_run_gets_the_verdict_of_the_live_one() {
    let folder = folder();
    let folder = folder.path();
    for (name, fault) in [("clean", None), ("faulty", Some("rope-base@L01"))] {
        let inject: Vec<&str> = fault.map_or(vec![], |f| vec!["--inject", f]);
        // The reference chooses the tokens in a live run: record it too, and
        // the subject on the same ones.
        record(folder, &format!("{name}-llama"), &["--runner", "llama"]);
        record(folder, name, &inject);
        let (live_code, live, _) = judged(folder, &[&["-n", "2"], &inject[..]].concat());
        let subject = format!("capture:{name}");
        let (code, recorded, text) = judged(folder, &["--subject", &subject]);
        assert_eq!(code, live_code, "{text}");
        assert_eq!(code, i32::from(fault.is_some()), "{text}");
        assert_eq!(statuses(&recorded), statuses(&live), "{text}");
        assert!(text.contains("cpu (recorded)"), "{text}");
        if fault.is_some() {
            assert!(text.contains("explains the residual"), "{text}");
        }
    }
    // New tolerances on an old capture.
    let (code, ..) = judged(folder, &["--subject", "capture:faulty", "--tolerance", "*_rope=5"]);
    assert_eq!(code, 0);
}

#[test]
fn two_captures_need_no_engine() {
    let folder = folder();
    let folder = folder.path();
    record(folder, "a", &["-n", "0"]);
    record(folder, "b", &["-n", "0", "--runner", "llama"]);
    let (code, report, text) = judged(folder, &["--subject", "capture:a", "--reference", "capture:b"]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(report["reference"]["name"], "llama.cpp (cpu) (recorded)");
}

/// What was not captured, and no later stage shows, is missing: no pass, and
/// the coverage says so.
#[test]
fn a_part_is_judged_as_a_part() {
    let folder = folder();
    let folder = folder.path();
    record(folder, "part", &["--stages", "q_*"]);
    let (code, report, text) = judged(folder, &["--subject", "capture:part"]);
    assert_eq!(code, 3, "{text}");
    let of = |stage: &str| statuses(&report).into_iter().find(|(s, _)| s == stage).unwrap().1;
    assert_eq!(of("L00.q_biased"), "match");
    assert_eq!(of("L00.ffn_down"), "covered");
    assert_eq!(of("L01.ffn_down"), "missing");
    let coverage = &report["verdict"]["coverage"];
    assert!(coverage["judged"].as_u64() < coverage["asked"].as_u64());
    assert!(text.starts_with("INCOMPLETE"), "{text}");
    // What is missing is told, and the least to capture as well is enough.
    let gap = &report["gap"];
    assert_eq!(
        gap["rows"].as_u64().unwrap(),
        coverage["asked"].as_u64().unwrap() - coverage["judged"].as_u64().unwrap()
    );
    assert!(gap["stages"].as_array().unwrap().contains(&"L01.ffn_down".into()), "{gap}");
    assert_eq!(gap["add"], serde_json::json!(["logits"]), "{text}");
    assert!(text.contains("missing ") && text.contains("logits to what is captured of the subject"), "{text}");
    record(folder, "enough", &["--stages", "q_*,logits"]);
    let (code, report, text) = judged(folder, &["--subject", "capture:enough"]);
    assert_eq!((code, &report["gap"]), (0, &Value::Null), "{text}");
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
        let (code, report, text) = judged(folder, &["--subject", &format!("capture:{name}")]);
        assert_eq!(code, 1, "{name}\n{text}");
        // The engine computed on from the right values: what reads the changed
        // tensor does not follow from it any more, and is the only other origin.
        let findings = report["verdict"]["findings"].as_array().unwrap();
        assert!(findings.len() <= 2, "{name}\n{text}");
        let headline = headline(&text);
        for part in *expected {
            assert!(headline.contains(part), "{name}: `{part}` is not in: {headline}");
        }
    }
}

/// Faults that share no code with any hypothesis: bytes of a capture changed
/// from outside. Each is found at its stage, and described.
#[test]
fn a_tampered_capture_is_located_and_described() {
    let folder = folder();
    let folder = folder.path();
    record(folder, "good", &[]);
    let cases: [(&str, &str, Change, &[&str]); 5] = [
        (
            "head",
            "step2/L01.attn_context",
            |x| x[64..128].fill(0.0),
            &["L01.attn_context", "position 36, at decode step 2", "head 1", "are zero"],
        ),
        ("logit", "prefill/logits", |x| x[5 * 512 + 300] += 1.0, &["logits", "position 5", "1 of", "one column, 300"]),
        (
            "scaled",
            "prefill/L00.ffn_down",
            |x| x.iter_mut().for_each(|v| *v *= 0.5),
            &["L00.ffn_down", "in every column", "scaled by 0.500000"],
        ),
        ("tail", "step1/L00.ffn_up", |x| x[480..].fill(9.0), &["L00.ffn_up", "a tail, columns 480 to 511"]),
        ("nan", "step1/L01.q_proj", |x| x[3] = f32::NAN, &["L01.q_proj", "position 35"]),
    ];
    changes_are_found(folder, "good", &cases);
}

/// One wrong head of one layer, and one wrong position at decode step 5: each
/// is found, and said exactly.
#[test]
fn one_head_and_one_position_are_located_exactly() {
    let folder = folder();
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
            &["L00.ffn_act", "at decode step 5", "one-row-wrong:position=39", "position 39 at step 5 alone"],
        ),
    ];
    changes_are_found(folder, "good", &cases);
}

/// Two captures and the model: the verdict of a run. Without the model: how far
/// apart they are, what is wrong whatever the weights are, and never a pass.
#[test]
fn two_captures_are_compared() {
    let folder = folder();
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
    assert!(text.starts_with("DIVERGED at L01.q_proj: NaN in step1, element 3"), "{text}");
    screen().bind(|| insta::assert_snapshot!("compare_nan", text));

    // What cannot be held against each other is refused, with or without a model.
    record(folder, "other", &["--tokens", "5,6,7"]);
    record(folder, "parts", &["--ubatch", "8"]);
    for (other, why) in
        [("other", "different tokens"), ("parts", "steps of different size"), ("absent", "absent/manifest.json")]
    {
        for model in [&[][..], &["-m", "model.gguf"]] {
            let (code, text) = compare(&[&["mine", other], model].concat());
            assert_eq!(code, Some(2), "{other}: {text}");
            assert!(text.contains(why), "{other}: {text}");
        }
    }
    // What is set for every run does not turn the one into the other.
    let ambient = qdiff_with(folder, &[("QDIFF_MODEL", "model.gguf")], &["compare", "mine", "theirs"]);
    assert_eq!(ambient.status.code(), Some(3));
    assert!(stdout(&ambient).contains("mode       without a model"), "{}", stdout(&ambient));
    let (code, text) = compare(&["mine", "theirs", "--tolerance", "logits=1"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("need the model"), "{text}");
}

/// What a capture says of its tokens is not asked for a second time.
#[test]
fn a_capture_and_a_prompt_exclude_each_other() {
    let folder = folder();
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
    ] {
        let output = qdiff(folder.path(), &[command, &extra].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let expected = format!("'{}' cannot be used with a capture", extra[0]);
        assert!(said.contains(&expected), "{said}");
    }
    // A command that is about captures alone does not know such options.
    for extra in [["--ubatch", "8"], ["--prompt", "haiku"], ["--inject", "rope-base"], ["--subject", "cpu"]] {
        let output = qdiff(folder.path(), &[&compare[..], &extra].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(&format!("unexpected argument '{}'", extra[0])), "{}", stderr(&output));
    }
}
