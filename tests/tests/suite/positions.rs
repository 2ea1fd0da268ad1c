//! Prompts in ubatches, and faults that begin at a position.

use qdiff_tests::containers::{arrays, write_npy};
use qdiff_tests::{Told, folder, headline, screen};
use serde_json::Value;

/// Only some rows of a stage with too large operands are looked at, and
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

/// In a run of one token every position is wrong: that position alone was blamed.
#[test]
fn the_only_position_is_not_wrong_alone() {
    let (code, report, text) = folder().judged("--tokens 5 -n 0 --inject one-row-wrong:position=0@L01.ffn_act");
    assert_eq!(code, 1, "{text}");
    assert_eq!(report["verdict"]["findings"][0]["stage"], "L01.ffn_act", "{text}");
    assert!(!headline(&text).contains("position alone") && !text.contains("cause      one-row-wrong"), "{text}");
    assert!(report["verdict"]["findings"][0]["cause"].is_null(), "{text}");
}

/// Whatever the size of the parts, both sides match and every row is judged.
#[test]
fn ubatches_of_any_size_match() {
    let folder = folder();
    for ubatch in [1, 7, 35, 512] {
        let (code, report, text) = folder.judged(&format!("--ubatch {ubatch} -n 2"));
        assert_eq!(code, 0, "{ubatch}\n{text}");
        assert!(report.is_whole(), "{ubatch}\n{text}");
    }
}

/// A prompt, decode steps, and several tokens after them were refused. The steps after the prefill keep their numbers and
/// words, and a capture of them is judged, compared and recorded again.
#[test]
fn a_second_turn_is_run_recorded_and_judged() {
    let folder = folder();
    let turns = "--length 26 --passes 12,3x1,11 -n 2";
    let (code, report, text) = folder.judged(&format!("--subject cpu {turns}"));
    assert_eq!(code, 0, "{text}");
    assert!(report.is_whole(), "{text}");
    assert!(text.contains("26 prompt tokens in passes of 12,3x1,11 + 2 decode steps"), "{text}");
    assert!(!text.contains("several tokens after a decode step"), "{text}");
    assert!(report["run"]["command"].as_str().unwrap().contains("--passes 12,3x1,11"), "{text}");

    let (code, _, text) = folder.judged(&format!("--subject cpu {turns} --inject zeroed@L01.attn_out,p15.."));
    assert_eq!(code, 1, "{text}");
    let said = "from step 4 (11 tokens) on (the prefill is right)";
    let said = headline(&text).contains(said);
    assert!(said && text.starts_with("DIVERGED at L01.attn_out"), "{text}");

    folder.record("turns", turns);
    let manifest = folder.json("turns/manifest.json");
    assert_eq!(manifest["passes"], serde_json::json!([12, 1, 1, 1, 11, 1, 1]), "{manifest}");
    folder.qdiff("record -m model.gguf --runner llama --like turns --out again").exits(0);
    for line in ["run -m model.gguf --subject capture:turns", "compare turns again -m model.gguf"] {
        folder.qdiff(line).exits(0);
    }
    // Without a model nothing is judged.
    folder.qdiff("compare turns again").exits(3);
    folder.record("parts", "--length 26 -n 2 --ubatch 5");
    let said = folder.qdiff("compare turns parts").exits(2);
    assert!(said.stderr.contains("in steps of different size"), "{said}");
}

/// A cache that lost rows between two turns: the first line names their positions.
#[test]
fn lost_rows_stand_in_the_headline() {
    let folder = folder();
    folder.record("turns", "--length 26 --passes 12,3x1,11 -n 0");
    let mut all = arrays(&folder.join("turns"));
    for cache in all.iter_mut().filter(|a| a.name.starts_with("step4/") && a.name.ends_with("_cache")) {
        let width: usize = cache.shape[1..].iter().product();
        cache.values.drain(8 * width..11 * width);
        cache.shape[0] -= 3;
    }
    write_npy(&folder.join("lost"), &all);
    folder.write("lost/manifest.json", folder.text("turns/manifest.json"));
    let (code, _, text) = folder.judged("--subject capture:lost");
    assert_eq!(code, 1, "{text}");
    let line = headline(&text);
    assert!(line.contains("L00.k_cache") && line.contains("the rows of positions 8..10 are missing"), "{text}");
}

/// An engine that lost rows of its cache attends to the rows that are left, counted by its own positions (candle 0.11's quantised Qwen3).
/// Of its context, parts of the keys that are put together were said to be wrong, although all keys were one part.
#[test]
fn a_context_over_the_rows_that_are_left_is_no_wrong_sum_of_parts() {
    let folder = folder();
    folder.record("turns", "--length 26 --passes 12,3x1,11 -n 0");
    let mut all = arrays(&folder.join("turns"));
    all.retain(|a| !a.name.ends_with("attn_scores") && !a.name.ends_with("attn_weights"));
    for cache in all.iter_mut().filter(|a| a.name.starts_with("step4/") && a.name.ends_with("_cache")) {
        let width: usize = cache.shape[1..].iter().product();
        cache.values.drain(8 * width..11 * width);
        cache.shape[0] -= 3;
    }
    for layer in ["L00", "L01"] {
        let of = |stage: &str| all.iter().position(|a| a.name == format!("step4/{layer}.{stage}")).unwrap();
        let (queries, keys, values) = (&all[of("q_rope")], &all[of("k_cache")], &all[of("v_cache")]);
        let [tokens, heads, size]: [usize; 3] = queries.shape[..].try_into().unwrap();
        let [rows, kv_heads, _]: [usize; 3] = keys.shape[..].try_into().unwrap();
        let mut context = Vec::new();
        for (token, head) in (0..tokens).flat_map(|token| (0..heads).map(move |head| (token, head))) {
            let query = &queries.values[(token * heads + head) * size..][..size];
            let group = head / (heads / kv_heads);
            let seen = rows.min(15 + token + 1);
            let row = |of: &[f32], k: usize| of[(k * kv_heads + group) * size..][..size].to_vec();
            let score = |k| row(&keys.values, k).iter().zip(query).map(|(k, q)| f64::from(k * q)).sum::<f64>();
            let scores: Vec<f64> = (0..seen).map(|k| score(k) / (size as f64).sqrt()).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            for column in 0..size {
                let term = |k: usize| (scores[k] - top).exp() / sum * f64::from(row(&values.values, k)[column]);
                context.push((0..seen).map(term).sum::<f64>() as f32);
            }
        }
        let at = of("attn_context");
        all[at].values = context;
    }
    write_npy(&folder.join("lost"), &all);
    folder.write("lost/manifest.json", folder.text("turns/manifest.json"));
    let (code, report, text) = folder.judged("--subject capture:lost");
    assert_eq!(code, 1, "{text}");
    assert!(headline(&text).contains("the rows of positions 8..10 are missing"), "{text}");
    let findings = report["verdict"]["findings"].as_array().unwrap();
    let context: Vec<_> =
        findings.iter().filter(|one| one["stage"].as_str().unwrap().ends_with("attn_context")).collect();
    assert_eq!(context.len(), 2, "{text}");
    assert!(!text.contains("splits of the keys") && !text.contains("e^(m_t"), "{text}");
}

/// What cannot be run in these passes is refused with the remedy.
#[test]
fn passes_that_do_not_fit_are_refused() {
    let folder = folder();
    for (options, said) in [
        (
            "--length 9 --passes 4,2x1",
            "--passes 4,2x1 takes 6 tokens, and the prompt has 9; name passes of 9 tokens in all",
        ),
        ("--passes 4,0", "`0` is no pass"),
        ("--length 6 --passes 6 --ubatch 2", "'--passes' cannot be used with '--ubatch'"),
    ] {
        let refused = folder.qdiff(&format!("run -m model.gguf {options}")).exits(2);
        assert!(refused.stderr.contains(said), "{options}: {refused}");
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
        let of = report.stages();
        let of = of.iter().find(|s| s["stage"] == stage).unwrap();
        assert_eq!(of["subject"]["first_bad"]["position"], 200, "{text}");
        let bad = of["subject"]["bad_positions"].as_array().unwrap();
        assert_eq!(bad.len(), 101, "{text}");
        assert!(text.contains(fault.split('@').next().unwrap()), "{fault}\n{text}");
        assert!(text.contains("from position 200 on") || text.contains("@p200.."), "{text}");
    }
}

/// Only the rows of the selected positions are kept and judged.
#[test]
fn rows_of_chosen_positions_are_judged_alone() {
    let folder = folder();
    folder.record("part", "--ubatch 8 --positions 9,34-35 --compress");
    let (code, report, text) = folder.judged("--subject capture:part --positions 9,34-35");
    assert_eq!(code, 0, "{text}");
    // Beside a whole run it is a part, and the report says so.
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
        ("qkv-bias-omitted", "L01", "at token 0 however the tokens are fed, at L01.q_biased"),
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
    assert!(headline(&text).contains("from decode step 1 on (the prefill is right)"), "{text}");
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
