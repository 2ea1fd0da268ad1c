//! Prompts in ubatches, and faults that begin at a position.

use qdiff_tests::{folder, headline, screen};
use serde_json::Value;

/// Of a stage whose operands are too large only some rows are looked at, and
/// they keep their positions; operands close by need not have been captured.
#[test]
fn causes_are_named_from_few_rows_and_few_stages() {
    let folder = folder();
    for (args, stage, cause) in [
        (
            "--prompt long --length 600 -n 0 --stages attn_context --inject one-row-wrong:position=500@L01",
            "L01.attn_context",
            "one-row-wrong:position=500",
        ),
        ("-n 1 --stages attn_residual --inject residual-wrong-side@L01", "L01.attn_residual", "residual-wrong-side"),
    ] {
        let (code, report, text) = folder.judged(args);
        assert_eq!(code, 1, "{args}\n{text}");
        let first = &report["verdict"]["findings"][0];
        assert_eq!(first["stage"], stage, "{text}");
        assert_eq!(first["cause"]["name"], cause, "{text}");
    }
}

/// Whatever the size of the parts, both sides match and every row is judged.
#[test]
fn ubatches_of_any_size_match() {
    let folder = folder();
    for ubatch in [1, 7, 35, 512] {
        let (code, report, text) = folder.judged(&format!("--ubatch {ubatch} -n 2"));
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
    let long = "--prompt long --raw --length 300 --ubatch 64 -n 1";
    for (fault, stage) in [("rope-base@L01.q_rope,p200..", "L01.q_rope"), ("logits-stale@p200..", "logits")] {
        let (code, report, text) = folder.judged(&format!("{long} --inject {fault}"));
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
    folder.record("part", "--ubatch 8 --positions 9,34-35 --compress");
    let (code, report, text) = folder.judged("--subject capture:part --positions 9,34-35");
    assert_eq!(code, 0, "{text}");
    // Of a whole run that is a part, and said to be one.
    let (code, whole, text) = folder.judged("--subject capture:part");
    assert_eq!(code, 3, "{text}");
    let rows = |r: &Value, of: &str| r["verdict"]["coverage"][of].as_u64().unwrap();
    assert!(rows(&report, "judged") > 200, "{text}");
    assert!(rows(&whole, "judged") < rows(&whole, "asked"));
}

/// The same tokens in one batch, in parts and token by token: where the three
/// differ says whether prefill, decode or the cache is to blame, in words.
#[test]
fn prefill_is_held_against_decode() {
    let folder = folder();
    let sweep = |name: &str, inject: &str, code, words: &str| {
        let text = folder.qdiff(&format!("sweep -m model.gguf -n 2 --length 20 {inject}")).exits(code).stdout;
        assert!(headline(&text).starts_with(words), "{name}\n{text}");
        screen().bind(|| insta::assert_snapshot!(format!("sweep_{name}"), text));
    };
    sweep("clean", "", 0, "MATCH: every stage is correct, in one batch, in parts of 7 and token by token");
    let right = "fed token by token the same tokens are right";
    for (fault, layer, words) in [
        ("qkv-bias-omitted", "L01", "at token 0: prefill, at L01.q_biased; however the tokens are fed"),
        ("kv-position-stuck", "L01", "from token 1 on when fed token by token: decode or cache, at L01.k_cache"),
        ("mask-missing", "L00", &format!("from token 0 on in a batch: prefill, at L00.attn_weights; {right}")),
    ] {
        sweep(fault, &format!("--inject {fault}@{layer}"), 1, &format!("DIVERGED: wrong {words}"));
    }
}

/// A run says in its first line where prefill and decode part.
#[test]
fn the_headline_tells_decode_from_prefill() {
    let (_, _, text) = folder().judged("-n 3 --inject kv-position-stuck@L01");
    assert!(headline(&text).contains("from decode step 1 on (the prefill is right: decode or cache)"), "{text}");
}

/// All positions of the model's context, rows of a few of them kept.
#[test]
fn positions_up_to_the_limit_of_the_model() {
    let long = "--prompt long --raw -n 0 --length 2048 --sizes 256";
    let few = "--layers 1 --stages *_rope,*_cache,attn_* --positions 0,1,255,256,1023,2047";
    let fault = "--inject rope-base@L01.k_rope,p2000..";
    let text = folder().qdiff(&format!("sweep -m model.gguf {long} {few} {fault}")).exits(1).stdout;
    assert!(text.contains("wrong from token 2047 on"), "{text}");
    assert!(text.contains("L01.k_rope p2047"), "{text}");
}
