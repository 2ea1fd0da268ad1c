//! A subject alone: without a reference, repeated, and with another type
//! of KV cache on both sides.

use qdiff::capture::Passes;
use qdiff::loaded::LoadedModel;
use qdiff::pair::{Pair, Settings, Tokens};
use qdiff::progress::silent;
use qdiff::runners::{CPU, Faults, LLAMA, RunnerKind, Start};
use qdiff::verdict::Race;
use qdiff_synth::Synth;
use qdiff_tests::{Told, folder, folder_with};
use serde_json::Value;

#[test]
fn without_a_reference_nothing_is_a_full_match() {
    let (code, report, text) = folder().judged("--subject cpu --reference none -n 3");
    assert_eq!(code, 3, "{text}");
    assert!(text.starts_with("INCOMPLETE: no reference"), "{text}");
    assert_eq!(report["reference"]["name"], "none");
    assert_eq!(report["verdict"]["coverage"]["alone"], true);
    for stage in report.stages() {
        assert_eq!(stage["status"], "alone", "{stage}");
    }
    let health = report["verdict"]["health"].as_array().unwrap();
    assert!(health.iter().all(|s| s["broken"] != true), "{health:?}");
}

#[test]
fn without_a_reference_faults_are_found_and_symptoms_named() {
    let folder = folder();
    for (fault, stage, symptom) in [
        ("rope-not-on-q@L00", "L00.q_rope", "turns nothing at position 1"),
        ("attn-uniform@L01.attn_weights", "L01.attn_weights", "the keys are not read"),
        ("kv-position-stuck@L00", "L00.k_cache", "the position does not advance"),
        ("mask-missing@L00", "L00.attn_weights", "keys after its token, and gives"),
        ("zeroed@L01.attn_out", "L01.attn_out", "the hidden state passes unchanged"),
        ("zeroed@embed", "embed", "are zero throughout"),
        ("stale-from-previous-step@logits", "logits", "the likeliest one after this pass and after"),
        ("race@L00.k_cache", "L00.k_cache", "rows of earlier tokens are no longer what they were"),
    ] {
        let (code, report, text) = folder.judged(&format!("--subject cpu --reference none -n 6 --inject {fault}"));
        assert_eq!(code, 1, "{fault}\n{text}");
        assert_eq!(report["verdict"]["findings"][0]["stage"], stage, "{fault}\n{text}");
        let health = report["verdict"]["health"].as_array().unwrap();
        let seen = |s: &Value| s["what"].as_str().unwrap().contains(symptom);
        assert!(health.iter().any(seen), "{fault}: {health:?}");
    }
}

/// An invariant decides where the stage itself is left out of the judgement.
#[test]
fn a_broken_invariant_decides_without_a_reference() {
    let fault = "--inject attn-uniform@L01.attn_weights --tolerance L01.attn_weights=1e9";
    let (code, _, text) = folder().judged(&format!("--subject cpu --reference none -n 2 {fault}"));
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("DIVERGED at L01.attn_weights prefill: all keys"), "{text}");
    assert!(text.contains("look at L01.attn_scores"), "{text}");
}

/// A right engine was called wrong where the model's own scores are so large that every query looks at one key.
#[test]
fn what_is_odd_but_right_decides_nothing() {
    let large =
        Synth { arch: "qwen3", massive: true, n_heads: 4, n_kv_heads: 2, head_dim: 64, seed: 517, ..Synth::default() };
    let (code, report, text) =
        folder_with(&large).judged("--subject cpu --reference none --prompt long --length 40 -n 2");
    assert_eq!(code, 3, "{text}");
    assert!(text.starts_with("INCOMPLETE: no reference"), "{text}");
    let health = report["verdict"]["health"].to_string();
    assert!(health.contains("one-hot in every head"), "{health}");
}

/// A deterministic subject repeats itself; a race shows before any other verdict, at the stage where it begins.
#[test]
fn a_race_is_told_first() {
    let folder = folder();
    let (code, report, text) = folder.judged("--subject cpu -n 1 --repeat 3");
    assert_eq!(code, 0, "{text}");
    assert_eq!(report["repeated"]["runs"], 3);
    assert!(text.contains("3 runs of the subject, bit for bit the same"), "{text}");

    // If it diverges, qdiff runs it again.
    for repeat in ["", "--repeat 2"] {
        let (code, report, text) = folder.judged(&format!("--subject cpu -n 2 {repeat} --inject race@L01.ffn_act"));
        assert_eq!(code, 1, "{text}");
        assert_eq!(report["repeated"]["race"]["stage"], "L01.ffn_act", "{text}");
        assert!(text.starts_with("DIVERGED: not the same twice at L01.ffn_act"), "{text}");
        for finding in report.findings() {
            assert!(finding["solution"].is_null(), "{finding}");
        }
    }
    let (code, report, text) = folder.judged("--subject cpu -n 2 --repeat 0 --inject race@L01.ffn_act");
    assert_eq!((code, &report["repeated"]), (1, &Value::Null), "{text}");
    let (code, report, text) = folder.judged("--subject cpu -n 1 --inject rope-base@L01");
    assert_eq!((code, &report["repeated"]["runs"]), (1, &Value::from(2)), "{text}");
    let (code, report, _) = folder.judged("--subject cpu -n 1");
    assert_eq!((code, &report["repeated"]), (0, &Value::Null));

    let (_, report, _) = folder.judged("--subject cpu -n 2 --inject race@L01.ffn_act");
    let race = &report["repeated"]["race"];
    assert_eq!(race["differing"].as_array().map(Vec::len), race["stages"].as_u64().map(|n| n as usize), "{race}");
    assert_eq!(race["differing"][0], "L01.ffn_act", "{race}");
}

/// A finding says how far its stage is off, and what all of them do to the logits and to the choice of tokens.
#[test]
fn how_grave_a_fault_is_is_told() {
    let folder = folder();
    let fault = "--subject cpu -n 2 --inject scaled:by=0.5@L01.ffn_down";
    let (_, report, text) = folder.judged(fault);
    let (severity, rows) = (&report["severity"], report["verdict"]["logits"].as_array().unwrap());
    assert_eq!(severity["origins"][0]["stage"], "L01.ffn_down", "{text}");
    assert!((severity["origins"][0]["by"].as_f64().unwrap() - 0.5).abs() < 1e-3, "{text}");
    let together = &severity["together"];
    let largest = rows.iter().map(|row| row["kl"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!((together["kl"].as_f64().unwrap() - largest).abs() <= 1e-6 * largest && largest > 0.0, "{text}");
    let changed = rows.iter().filter(|row| row["subject"][0]["token"] != row["reference"][0]["token"]).count();
    assert_eq!((&together["changed"], &together["positions"]), (&changed.into(), &rows.len().into()), "{text}");
    assert!(
        text.contains("L01.ffn_down alone is off by 0.50 of a row's norm") && text.contains("KL at most"),
        "{text}"
    );
    // If the other side's logits are unknown, the report has none.
    let (_, report, text) = folder.judged(&format!("{fault} --reference none"));
    assert_eq!((&report["severity"]["together"], text.contains("KL at most")), (&Value::Null, false), "{text}");
    let (_, report, _) = folder.judged("--subject cpu -n 1");
    assert_eq!(report["severity"], Value::Null);
}

/// Two runs that differ in one bit: the first difference by step and stage.
#[test]
fn runs_that_differ_are_located() {
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let oracle = &pair.oracle;
    let tokens = Tokens { prompt: &[1, 2, 3], passes: Passes::Of(512), decode: 1, forced: Some(&[4]) };
    let first = pair.run(&CPU, tokens, Faults::default()).unwrap();
    let mut other = pair.run(&CPU, tokens, Faults::default()).unwrap();
    assert!(Race::between(&oracle.graph, &first.capture, &other.capture, 2).is_none());
    let node = oracle.graph.nodes.iter().find(|n| n.id.to_string() == "L01.ffn_act").unwrap();
    let mut moved = other.capture.steps[1].get(node.id).unwrap().into_owned();
    moved.data[5] = f32::from_bits(moved.data[5].to_bits() ^ 1);
    other.capture.steps[1].stages.insert(node.id, pair.settings.store.keep(moved));
    let race = Race::between(&oracle.graph, &first.capture, &other.capture, 2).unwrap();
    assert_eq!(race.stage.to_string(), "L01.ffn_act");
    assert_eq!((race.at.step, race.at.position, race.index), (1, 3, 5));
    assert_eq!((race.elements, race.stages), (1, 1));
    assert!(race.words().starts_with("not the same twice at L01.ffn_act, p3 step1: a race"));
}

/// Both sides give the same when they run at once; a failure is reported without a wait.
#[test]
fn sides_that_run_beside_each_other() {
    const NO_ENGINE: RunnerKind =
        RunnerKind { start: Start::Own(|_, _, _, _| Err(std::io::Error::other("no engine").into())), ..CPU };
    let folder = folder();
    let opened = LoadedModel::new(&folder.join("model.gguf")).unwrap();
    let pair = Pair::new(&opened, Settings::default(), &silent).unwrap();
    let tokens = Tokens { prompt: &[1, 2, 3], passes: Passes::Of(2), decode: 2, forced: None };
    let reference = pair.run(&LLAMA, tokens, Faults::default()).unwrap();
    let after = Tokens { forced: Some(&reference.fed), ..tokens };
    let subject = pair.run(&CPU, after, Faults::default()).unwrap();
    let beside = |reference: &RunnerKind, subject: &RunnerKind| {
        pair.run_beside(reference, tokens, &|| pair.runner(subject, tokens, Faults::default()))
    };
    let both = beside(&LLAMA, &CPU).unwrap();
    for (apart, beside) in [(&subject, &both.0), (&reference, &both.1)] {
        assert_eq!((apart.capture.steps.len(), &apart.fed), (4, &beside.fed));
        assert!(Race::between(&pair.oracle.graph, &apart.capture, &beside.capture, 2).is_none());
    }
    for (reference, subject) in [(&NO_ENGINE, &CPU), (&LLAMA, &NO_ENGINE), (&NO_ENGINE, &NO_ENGINE)] {
        assert_eq!(beside(reference, subject).err().unwrap().to_string(), "no engine");
    }
}

#[test]
fn caches_in_f16_match_on_both_sides() {
    let folder = folder();
    for kv in ["f16", "bf16"] {
        let (code, report, text) = folder.judged(&format!("--subject cpu -n 3 --kv-type {kv}"));
        assert_eq!(code, 0, "{kv}\n{text}");
        assert_eq!(report["subject"]["arithmetic"]["kv"], kv);
        assert_eq!(report["reference"]["arithmetic"]["attention"][0]["scores"], kv);
        let stages = report.stages();
        for stage in stages.iter().filter(|s| s["stage"].as_str().unwrap().ends_with("_cache")) {
            // A rounded copy, expected to the bit.
            assert_eq!(stage["subject"]["residual"], 0.0, "{stage}");
            assert_eq!(stage["reference"]["residual"], 0.0, "{stage}");
        }
    }
}
