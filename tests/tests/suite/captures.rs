//! Captures on disk: recorded runs are judged like live ones, parts of one are
//! judged honestly.

use qdiff_tests::containers::{arrays, write_npy};
use qdiff_tests::npz::{self, tamper};
use qdiff_tests::{Told, folder, headline, screen};
use serde_json::Value;

#[test]
fn a_recorded_run_gets_the_verdict_of_the_live_one() {
    let folder = folder();
    for (name, inject, expected) in [("clean", "", 0), ("faulty", "--inject rope-base@L01", 1)] {
        folder.record(name, inject);
        let (live_code, live, _) = folder.judged(&format!("-n 2 {inject}"));
        let (code, recorded, text) = folder.judged(&format!("--subject capture:{name}"));
        assert_eq!((code, live_code), (expected, expected), "{text}");
        assert_eq!(recorded.statuses(), live.statuses(), "{text}");
        assert!(text.contains("cpu (recorded)"), "{text}");
        assert_eq!(text.contains("explains the residual"), expected == 1, "{text}");
    }
    // New tolerances on an old capture.
    let (code, ..) = folder.judged("--subject capture:clean --tolerance *_rope=1e-12");
    assert_eq!(code, 1);
}

#[test]
fn two_captures_need_no_engine() {
    let folder = folder();
    folder.record("a", "-n 0");
    folder.record("b", "-n 0 --runner llama");
    let (code, report, text) = folder.judged("--subject capture:a --reference capture:b");
    assert_eq!(code, 0, "{text}");
    assert_eq!(report["reference"]["name"], "llama.cpp (cpu) (recorded)");
}

/// What was not captured, and no later stage shows, is missing: no pass, and
/// the coverage says so.
#[test]
fn a_part_is_judged_as_a_part() {
    let folder = folder();
    folder.record("part", "--stages q_*");
    let (code, report, text) = folder.judged("--subject capture:part");
    assert_eq!(code, 3, "{text}");
    for status in [("L00.q_biased", "match"), ("L00.ffn_down", "covered"), ("L01.ffn_down", "missing")] {
        assert!(report.statuses().contains(&status), "{status:?}: {text}");
    }
    let rows = |of: &str| report["verdict"]["coverage"][of].as_u64().unwrap();
    assert!(rows("judged") < rows("asked"));
    assert!(text.starts_with("INCOMPLETE"), "{text}");
    // The report names what was not captured, and the smallest addition is enough.
    let gap = &report["gap"];
    assert_eq!(gap["rows"], rows("asked") - rows("judged"));
    assert!(gap["stages"].as_array().unwrap().contains(&"L01.ffn_down".into()), "{gap}");
    assert_eq!(gap["add"], serde_json::json!(["logits"]), "{text}");
    assert!(text.contains("missing ") && text.contains("logits to the capture of the subject"), "{text}");
    folder.record("enough", "--stages q_*,logits");
    let (code, report, text) = folder.judged("--subject capture:enough");
    assert_eq!((code, &report["gap"]), (0, &Value::Null), "{text}");
}

/// Changes the values of an array.
type Change = fn(&mut [f32]);

/// Copies of a capture with one array changed, by name: each is found where the
/// change is, and the headline has these words.
fn changes_are_found(recorded: &str, cases: &[(&str, &str, Change, &[&str])]) {
    let folder = folder();
    folder.record("good", recorded);
    for (name, array, change, expected) in cases {
        tamper(&folder.copied("good", name), array, *change);
        let (code, report, text) = folder.judged(&format!("--subject capture:{name}"));
        assert_eq!(code, 1, "{name}\n{text}");
        // The engine computed on from the right values: what reads the changed
        // tensor does not follow from it any more, and is the only other origin.
        let findings = report.findings();
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
    changes_are_found(
        "",
        &[
            (
                "head",
                "step2/L01.attn_context",
                |x| x[64..128].fill(0.0),
                &["L01.attn_context", "position 36, at decode step 2", "zeros are there instead"],
            ),
            (
                "logit",
                "prefill/logits",
                |x| x[5 * 512 + 300] += 1.0,
                &["logits", "position 5", "1 of", "one column, 300"],
            ),
            (
                "scaled",
                "prefill/L00.ffn_down",
                |x| x.iter_mut().for_each(|v| *v *= 0.5),
                &["L00.ffn_down", "the right value times 0.5 is there instead", "in the prefill only"],
            ),
            (
                "tail",
                "step1/L00.ffn_up",
                |x| x[480..].fill(9.0),
                &["L00.ffn_up", "the constant 9 is there instead", "from column 480 on"],
            ),
            ("nan", "step1/L01.q_proj", |x| x[3] = f32::NAN, &["L01.q_proj", "position 35"]),
            // Nothing was added to the values that belong there.
            ("constant", "prefill/logits", |x| x.fill(420.5), &["logits", "the constant 420.5 is there instead"]),
        ],
    );
}

/// A factor of all values is no factor with an offset that rounding hides, and values that are all the same are no right ones
/// to which something was added.
#[test]
fn a_constant_and_a_factor_are_told_as_what_they_are() {
    let folder = folder();
    folder.record("scaled", "-n 0 --inject scaled:by=1.1@L01.ffn_down");
    let (_, _, text) = folder.judged("--subject capture:scaled");
    assert!(text.contains("(scaled:by=1.1)") && !text.contains("offset"), "{text}");
    folder.record("constant", "-n 0");
    npz::revalue(&folder.join("constant/capture.npz"), |all| all.values_mut().for_each(|values| values.fill(448.0)));
    let (code, _, text) = folder.judged("--subject capture:constant");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("the constant 448 is there instead") && !text.contains("offset"), "{text}");
}

/// One wrong head of one layer, and one wrong position at decode step 5: each
/// is found, and said exactly.
#[test]
fn one_head_and_one_position_are_located_exactly() {
    changes_are_found(
        "-n 5",
        &[
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
        ],
    );
}

/// Two captures and the model: the verdict of a run. Without the model: how far
/// apart they are, what is wrong with any weights, and never a pass.
#[test]
fn two_captures_are_compared() {
    let folder = folder();
    folder.record("mine", "");
    // On the same tokens, those of the decode steps too.
    for like in ["faulty --inject rope-base@L01", "theirs --runner llama", "nan"] {
        folder.qdiff(&format!("record -m model.gguf --like mine --out {like}")).exits(0);
    }
    tamper(&folder.join("nan/capture.npz"), "step1/L01.q_proj", |x| x[3] = f32::NAN);
    for (captures, code, verdict, snapshot) in [
        ("mine theirs -m model.gguf", 0, "MATCH", ""),
        ("faulty theirs -m model.gguf", 1, "DIVERGED at L01.q_rope", ""),
        ("mine theirs", 3, "INCOMPLETE: without the model", "compare"),
        ("faulty theirs", 3, "INCOMPLETE: without the model", ""),
        // A value that is not finite is wrong with any weights.
        ("nan theirs", 1, "DIVERGED at L01.q_proj: NaN in step1, element 3", "compare_nan"),
        ("mine nan", 1, "DIVERGED at L01.q_proj: NaN in the reference's step1, element 3", ""),
    ] {
        let text = folder.qdiff(&format!("compare {captures}")).exits(code).stdout;
        assert!(text.starts_with(verdict), "{text}");
        assert!(code != 3 || text.contains("0 % judged"), "{text}");
        if !snapshot.is_empty() {
            screen().bind(|| insta::assert_snapshot!(snapshot, text));
        }
    }
    // Without a model the widths of a head and of a row are not known.
    let mut flat = arrays(&folder.join("mine"));
    for array in flat.iter_mut().filter(|a| a.name == "prefill/L00.q_rope") {
        array.shape = vec![array.shape[0], array.shape[1] * array.shape[2]];
    }
    write_npy(&folder.join("flat"), &flat);
    folder.write("flat/manifest.json", folder.text("mine/manifest.json"));
    folder.refuses("compare flat theirs", &["prefill/L00.q_rope", ", _, _], where only the model says what _ is"]);
    // What cannot be held against each other is refused, with or without a model.
    folder.record("other", "--tokens 5,6,7");
    folder.record("parts", "--ubatch 8");
    for (other, why, model) in [
        ("other", "different tokens", "-m model.gguf"),
        ("other", "different tokens", ""),
        ("parts", "steps of different size", ""),
        ("absent", "absent/manifest.json", "-m model.gguf"),
        ("absent", "absent/manifest.json", ""),
    ] {
        folder.refuses(&format!("compare mine {other} {model}"), &[why]);
    }
    // What is set for every run does not turn the one into the other.
    let ambient = folder.qdiff_with(&[("QDIFF_MODEL", "model.gguf")], "compare mine theirs").exits(3);
    assert!(ambient.stdout.contains("mode       without a model"), "{ambient}");
    folder.refuses_options("compare mine theirs --tolerance logits=1", &["need the model"]);
}

/// What a capture says of its tokens is not asked for a second time.
#[test]
fn a_capture_and_a_prompt_exclude_each_other() {
    let folder = folder();
    for (line, option, value) in [
        ("run --reference capture:mine", "--prompt", "haiku"),
        ("run --reference capture:mine", "--tokens", "1,2"),
        ("run --subject capture:mine", "--length", "9"),
        ("run --subject capture:mine", "-n", "2"),
        ("logits --reference capture:mine", "-n", "2"),
    ] {
        let expected = format!("'{option}' cannot be used with a capture");
        folder.refuses_options(&format!("{line} -m model.gguf {option} {value}"), &[&expected]);
    }
    // A command that is about captures alone does not know such options.
    for (option, value) in [("--ubatch", "8"), ("--prompt", "haiku"), ("--inject", "rope-base"), ("--subject", "cpu")] {
        let expected = format!("unexpected argument '{option}'");
        folder.refuses_options(&format!("compare -m model.gguf mine theirs {option} {value}"), &[&expected]);
    }
}

/// Two runs of one engine that fed the same tokens otherwise should agree: each is judged on its own operands, and the one
/// that is wrong is named, with its first stage and position.
#[test]
fn runs_that_fed_the_same_tokens_otherwise_are_judged_each_by_itself() {
    let folder = folder();
    folder.record("whole", "-n 0 --tokens 3,1,4,1,5,9,2,6");
    folder.record("parts", "-n 0 --tokens 3,1,4,1,5,9,2,6 --ubatch 3");
    folder.record("broken", "-n 0 --tokens 3,1,4,1,5,9,2,6 --ubatch 3");
    // A row of the cache as the second part finds it.
    tamper(&folder.join("broken/capture.npz"), "prefill@3/L01.v_cache", |x| x[4 * 128 + 7] += 1.0);
    let told =
        |captures: &str, code: i32| folder.qdiff(&format!("compare -m model.gguf {captures}")).exits(code).stdout;
    for captures in ["whole parts", "parts whole"] {
        let text = told(captures, 0);
        assert!(text.starts_with("MATCH: every stage is correct, in one batch and in parts of 3"), "{text}");
    }
    let text = told("whole broken", 1);
    let words =
        "wrong from token 4 on when fed in parts of 3: decode or cache, at L01.v_cache; in one batch it is right";
    assert!(headline(&text).contains(words), "{text}");
    // As a prompt and what was decoded after it.
    folder.qdiff("record -m model.gguf --out decoded -n 2 --tokens 3,1,4,1").exits(0);
    let all: Vec<String> = ["tokens", "decoded"]
        .iter()
        .flat_map(|of| folder.json("decoded/manifest.json")[of].as_array().unwrap().clone())
        .map(|id| id.to_string())
        .collect();
    folder.record("together", &format!("-n 0 --tokens {}", all.join(",")));
    let text = told("decoded together", 0);
    assert!(headline(&text).contains("in one batch and as 4 tokens, then 2 one by one"), "{text}");
    folder.refuses(
        "run -m model.gguf --subject capture:whole --reference capture:parts",
        &["`qdiff compare whole parts -m MODEL`"],
    );
}

/// Without a model the number of layers is unknown; names of more than any model has ended in a panic.
#[test]
fn captures_of_more_layers_than_a_model_has_are_refused() {
    let folder = folder();
    for out in ["a", "b"] {
        folder.record(out, "-n 0");
    }
    for (layer, refused) in [("511", false), ("512", true), ("18446744073709551615", true)] {
        npz::rename(&folder.join("a/capture.npz"), |name| name.replace("/L01.", &format!("/L{layer}.")));
        if refused {
            folder.refuses("compare a b", &["a or b has arrays of layer", "512 layers at most"]);
        } else {
            folder.told("compare a b");
        }
        npz::rename(&folder.join("a/capture.npz"), |name| name.replace(&format!("/L{layer}."), "/L01."));
    }
}
