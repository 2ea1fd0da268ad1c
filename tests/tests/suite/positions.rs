//! Prompts in ubatches, and faults that begin at a position.

use qdiff_tests::{folder, headline, judged, qdiff, screen, stderr, stdout};
use serde_json::Value;

/// Of a stage whose operands are too large only some rows are looked at, and
/// they keep their positions; operands close by need not have been captured.
#[test]
fn causes_are_named_from_few_rows_and_few_stages() {
    let folder = folder();
    let long = &["--prompt", "long", "--length", "600", "-n", "0"][..];
    for (which, stages, fault, stage, cause) in [
        (long, "attn_context", "one-row-wrong:position=500@L01", "L01.attn_context", "one-row-wrong:position=500"),
        (&["-n", "1"], "attn_residual", "residual-wrong-side@L01", "L01.attn_residual", "residual-wrong-side"),
    ] {
        let (code, report, text) = judged(folder.path(), &[which, &["--stages", stages, "--inject", fault]].concat());
        assert_eq!(code, 1, "{fault}\n{text}");
        let first = &report["verdict"]["findings"][0];
        assert_eq!(first["stage"], stage, "{text}");
        assert_eq!(first["cause"]["name"], cause, "{text}");
    }
}

/// Whatever the size of the parts, both sides match and every row is judged.
#[test]
fn ubatches_of_any_size_match() {
    let folder = folder();
    for ubatch in ["1", "7", "35", "512"] {
        let (code, report, text) = judged(folder.path(), &["--ubatch", ubatch, "-n", "2"]);
        assert_eq!(code, 0, "{ubatch}\n{text}");
        let coverage = &report["verdict"]["coverage"];
        assert_eq!(coverage["asked"], coverage["judged"], "{ubatch}\n{text}");
    }
}

/// A fault that only later positions take is found at the first of them, and
/// its cause is named with the position, in whichever ubatch it falls.
#[test]
fn a_fault_from_a_position_on_is_found_there() {
    let folder = folder();
    for (fault, stage) in [("rope-base@L01.q_rope,p200..", "L01.q_rope"), ("logits-stale@p200..", "logits")] {
        let (code, report, text) = judged(
            folder.path(),
            &["--prompt", "long", "--raw", "--length", "300", "--ubatch", "64", "-n", "1", "--inject", fault],
        );
        assert_eq!(code, 1, "{fault}\n{text}");
        let first = &report["verdict"]["findings"][0];
        assert_eq!(first["stage"], stage, "{text}");
        let of = report["verdict"]["stages"].as_array().unwrap();
        let of = of.iter().find(|s| s["stage"] == stage).unwrap();
        assert_eq!(of["subject"]["first_bad"]["position"], 200, "{text}");
        let bad = of["subject"]["bad_positions"].as_array().unwrap();
        assert_eq!(bad.len(), 101, "{text}");
        let name = first["cause"]["name"].as_str().unwrap_or("none");
        assert!(name.starts_with(fault.split('@').next().unwrap()), "{fault}: {name}\n{text}");
        assert!(name.ends_with("@p200.."), "{name}");
        assert!(text.contains("from position 200 on"), "{text}");
    }
}

/// Only the rows of the positions asked for are kept, and that is what is judged.
#[test]
fn rows_of_chosen_positions_are_judged_alone() {
    let folder = folder();
    let folder = folder.path();
    let output = qdiff(
        folder,
        &[
            "record",
            "-m",
            "model.gguf",
            "--out",
            "part",
            "--ubatch",
            "8",
            "-n",
            "2",
            "--positions",
            "9,34-35",
            "--compress",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let chosen = ["--subject", "capture:part", "--positions", "9,34-35"];
    let (code, report, text) = judged(folder, &chosen);
    assert_eq!(code, 0, "{text}");
    // Of a whole run that is a part, and said to be one.
    let (code, whole, text) = judged(folder, &chosen[..2]);
    assert_eq!(code, 3, "{text}");
    let judged = |r: &Value| r["verdict"]["coverage"]["judged"].as_u64().unwrap();
    assert!(judged(&report) > 200, "{text}");
    assert!(judged(&whole) < whole["verdict"]["coverage"]["asked"].as_u64().unwrap());
}

/// The same tokens in one batch, in parts and token by token: where the three
/// differ says whether prefill, decode or the cache is to blame, in words.
#[test]
fn prefill_is_held_against_decode() {
    let folder = folder();
    for (fault, code, words) in [
        (None, 0, "MATCH: every stage is correct, in one batch, in parts of 7 and token by token"),
        (
            Some("qkv-bias-omitted@L01"),
            1,
            "DIVERGED: wrong at token 0: prefill, at L01.q_biased; however the tokens are fed",
        ),
        (
            Some("kv-position-stuck@L01"),
            1,
            "DIVERGED: wrong from token 1 on when fed token by token: decode or cache, at L01.k_cache",
        ),
        (
            Some("mask-missing@L00"),
            1,
            "DIVERGED: wrong from token 0 on in a batch: prefill, at L00.attn_weights; fed token by token the same tokens are right",
        ),
    ] {
        let mut args = vec!["sweep", "-m", "model.gguf", "-n", "2", "--length", "20"];
        args.extend(fault.map_or([].as_slice(), |_| ["--inject"].as_slice()));
        args.extend(fault);
        let output = qdiff(folder.path(), &args);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(code), "{text}{}", stderr(&output));
        assert!(headline(&text).starts_with(words), "{fault:?}\n{text}");
        let name = fault.map_or("clean", |f| f.split('@').next().unwrap_or(f));
        screen().bind(|| insta::assert_snapshot!(format!("sweep_{name}"), text));
    }
}

/// A run says in its first line where prefill and decode part.
#[test]
fn the_headline_tells_decode_from_prefill() {
    let folder = folder();
    let (_, _, text) = judged(folder.path(), &["-n", "3", "--inject", "kv-position-stuck@L01"]);
    assert!(headline(&text).contains("from decode step 1 on (the prefill is right: decode or cache)"), "{text}");
}

/// All positions of the model's context, rows of a few of them kept.
#[test]
fn positions_up_to_the_limit_of_the_model() {
    let folder = folder();
    let output = qdiff(
        folder.path(),
        &[
            "sweep",
            "-m",
            "model.gguf",
            "--prompt",
            "long",
            "--raw",
            "-n",
            "0",
            "--length",
            "2048",
            "--sizes",
            "256",
            "--layers",
            "1",
            "--stages",
            "*_rope,*_cache,attn_*",
            "--positions",
            "0,1,255,256,1023,2047",
            "--inject",
            "rope-base@L01.k_rope,p2000..",
        ],
    );
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}{}", stderr(&output));
    assert!(text.contains("wrong from token 2047 on"), "{text}");
    assert!(text.contains("L01.k_rope p2047"), "{text}");
}
