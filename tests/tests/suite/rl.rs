//! A trainer and a rollout: both judged, the gap of their logprobs bounded, and what the logprobs mean.

use qdiff_tests::{folder, unwrapped};
use serde_json::Value;

/// The numbers that a report has of all tokens.
fn logprobs(report: &Value, side: &str) -> Vec<f64> {
    report["logprobs"]["tokens"].as_array().unwrap().iter().map(|token| token[side].as_f64().unwrap()).collect()
}

/// Two engines of other kinds agree within what both are allowed; the allowed gap is no multiple of the model's own logprobs.
#[test]
fn the_gap_of_right_engines_is_explained() {
    let folder = folder();
    let said = folder.qdiff("rl cpu llama -m model.gguf --prompt haiku -n 6 --json rl.json");
    assert!([0, 3].contains(&said.code), "{said}");
    assert!(said.stdout.contains("differ by no more than"), "{said}");
    let report = folder.json("rl.json");
    let tokens = report["logprobs"]["tokens"].as_array().unwrap();
    assert_eq!(tokens.len() + 1, report["tokens"].as_array().unwrap().len());
    for token in tokens {
        let (gap, allowed) = (token["gap"].as_f64().unwrap().abs(), token["allowed"].as_f64().unwrap());
        assert!(gap <= allowed && allowed < 1.0, "{token}");
    }
}

/// A wrong stage of either side is named with its side.
#[test]
fn the_side_that_is_wrong_is_named() {
    let folder = folder();
    folder.qdiff("record -m model.gguf --runner cpu -n 3 --inject gelu-for-silu@L01 --out wrong").exits(0);
    for (line, side) in [("capture:wrong cpu", "trainer"), ("cpu capture:wrong", "rollout")] {
        let said = folder.qdiff(&format!("rl {line} -m model.gguf")).exits(1);
        let text = unwrapped(&said.stdout);
        assert!(text.starts_with(&format!("DIVERGED: the {side} is wrong at L01.ffn_act")), "{said}");
    }
}

/// Reported logprobs have the assumed meaning, or the report names their meaning, by tokens that no parameter was fitted on.
#[test]
fn reported_logprobs_mean_what_they_say() {
    let folder = folder();
    folder.qdiff("record -m model.gguf --runner cpu --prompt haiku -n 16 --out run").exits(0);
    folder.qdiff("rl capture:run capture:run -m model.gguf --json rl.json");
    let report = folder.json("rl.json");
    let plain = logprobs(&report, "rollout");
    let write = |values: &[f64]| {
        folder.write("reported.txt", values.iter().map(|v| format!("{v:.7}\n")).collect::<String>());
        let said = folder.qdiff("rl capture:run capture:run -m model.gguf --logprobs reported.txt");
        (said.code, unwrapped(&said.stdout))
    };
    let (code, said) = write(&plain);
    assert!(code != 1 && said.contains("the plain logprobs of the logits"), "{said}");
    // One position early.
    let (code, said) = write(&[&plain[1..], &plain[..1]].concat());
    assert!(code == 1 && said.contains("the logprob of the token 1 position after its own"), "{said}");
    let (code, said) = write(&plain[..plain.len() - 1]);
    assert!(
        code == 1 && said.contains("are shifted: each number is the logprob of the token 1 position before its own"),
        "{said}"
    );
    // Noise is none of the meanings that are known.
    let noise: Vec<f64> = plain.iter().enumerate().map(|(i, v)| v - 0.01 * (i % 7) as f64).collect();
    let (code, said) = write(&noise);
    assert!(code == 1 && said.contains("no plain logprobs"), "{said}");
}

/// Captures of other tokens, and numbers that fit no tokens, are refused.
#[test]
fn what_cannot_be_compared_is_refused() {
    let folder = folder();
    for (out, prompt) in [("a", "haiku"), ("b", "code")] {
        folder.qdiff(&format!("record -m model.gguf --runner cpu --prompt {prompt} -n 0 --out {out}")).exits(0);
    }
    let refused = folder.qdiff("rl capture:a capture:b -m model.gguf").exits(2);
    assert!(refused.stderr.replace('\n', " ").contains("are captures of different tokens"), "{refused}");
    folder.write("many.txt", "-1 ".repeat(1000));
    let refused = folder.qdiff("rl capture:a capture:a -m model.gguf --logprobs many.txt").exits(2);
    assert!(refused.stderr.contains("1,000") || refused.stderr.contains("1000"), "{refused}");
    folder.write("words.txt", "-1 two");
    let refused = folder.qdiff("rl capture:a capture:a -m model.gguf --logprobs words.txt").exits(2);
    assert!(refused.stderr.contains("`two` is no number"), "{refused}");
}
