//! What an exporter got wrong is not said of the engine: the stages that read the right values tell.

use qdiff_tests::{Told, folder, npz, unwrapped};
use serde_json::{Value, json};

fn floats(npy: &[u8]) -> Vec<f32> {
    npy[npz::data(npy)..].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// A dump that is wrong in one stage, of an engine that went on from the right values: one origin, and the engine is not
/// blamed. The report names what was dumped instead, where it is known.
#[test]
fn a_wrong_dump_of_one_stage_is_no_fault_of_the_engine() {
    let folder = folder();
    folder.record("right", "--prompt haiku -n 1");
    // Another stage in the place of one, or the same one changed.
    type Change = fn(&mut [f32]);
    let cases: [(&str, &str, Change, &str); 5] = [
        ("L01.attn_out", "L01.attn_residual", |_| (), "L00.layer_out is added as well"),
        ("L00.q_rope", "L00.q_biased", |_| (), "rope-not-on-q"),
        ("L01.ffn_act", "L01.ffn_up", |_| (), "ffn_up"),
        ("L00.ffn_norm", "L00.ffn_norm", |v| v.iter_mut().for_each(|v| *v *= 1.5), "1.5"),
        ("L01.ffn_gate", "L01.ffn_gate", |v| v.reverse(), ""),
    ];
    for (i, (stage, instead, change, told)) in cases.into_iter().enumerate() {
        let dump = format!("dump-{i}");
        folder.copied("right", &dump);
        let mut other = Vec::new();
        npz::rewrite(&folder.join("right/capture.npz"), |name, npy| {
            if name.ends_with(&format!("/{instead}")) {
                other.push((name.split_once('/').unwrap().0.to_owned(), floats(&npy)));
            }
            Some(npy)
        });
        npz::rewrite(&folder.join(&dump).join("capture.npz"), |name, mut npy| {
            let (step, of) = name.split_once('/').unwrap();
            if of == stage {
                let mut values = other.iter().find(|(s, _)| s == step).unwrap().1.clone();
                change(&mut values);
                let start = npz::data(&npy);
                for (to, value) in npy[start..].as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    *to = value.to_le_bytes();
                }
            }
            Some(npy)
        });
        let (code, report, text) = folder.told(&format!("run -m model.gguf --subject capture:{dump}"));
        assert_eq!(code, 1, "{stage}: {text}");
        let findings = report.findings();
        let found: Vec<&Value> = findings.iter().map(|f| &f["stage"]).collect();
        assert_eq!(found, [&json!(stage)], "{text}");
        assert_eq!(findings[0]["unread"], true, "{text}");
        let words = unwrapped(&text);
        assert!(words.contains("wrong in the capture alone") && words.contains(told), "{stage}: {text}");
        assert!(words.contains("mend the capture of this stage"), "{text}");
        // No later stage is called a consequence of it.
        let stages = report.stages();
        let others = stages.iter().filter(|s| s["stage"] != stage && s["status"] != "match");
        assert_eq!(others.count(), 0, "{stage}: {text}");
    }
}

/// The same where an exporter gives two stages each other's names: neither alone makes what reads them right.
#[test]
fn two_names_that_were_exchanged_are_no_fault_of_the_engine() {
    let folder = folder();
    folder.record("right", "--prompt haiku -n 1");
    let pair = ["ffn_gate", "ffn_up"];
    npz::revalue(&folder.join("right/capture.npz"), |all| {
        let right = std::mem::take(all);
        all.extend(right.into_iter().map(|(name, values)| {
            let other = pair.iter().position(|own| name.ends_with(&format!(".{own}"))).map(|i| (pair[i], pair[1 - i]));
            (other.map_or_else(|| name.clone(), |(own, other)| name.replace(own, other)), values)
        }));
    });
    let (code, report, text) = folder.told("run -m model.gguf --subject capture:right");
    assert_eq!(code, 1, "{text}");
    let findings = report.findings();
    let found: Vec<&str> = findings.iter().map(|f| f["stage"].as_str().unwrap()).collect();
    assert_eq!(found, ["L00.ffn_gate", "L00.ffn_up", "L01.ffn_gate", "L01.ffn_up"], "{text}");
    assert!(findings.iter().all(|f| f["unread"] == true), "{text}");
    assert!(unwrapped(&text).contains("wrong in the capture alone"), "{text}");
    // It is reported also if both sides have it alike: they come from one exporter.
    folder.copied("right", "other");
    let said = folder.qdiff("compare -m model.gguf right other").exits(1);
    assert!(unwrapped(&said.stdout).contains("wrong in the capture alone"), "{said}");
}

/// Rows that were never written, and caches that were dumped before the step wrote to them or hold an old row otherwise than
/// the engine does: what reads them tells, and is not accused.
#[test]
fn rows_that_nobody_wrote_are_wrong_in_the_capture_alone() {
    let folder = folder();
    folder.record("right", "-n 2");
    let tokens = folder.json("right/manifest.json")["tokens"].as_array().unwrap().len();
    // Changes some rows of a tensor of so many, in a step.
    type Change = fn(step: usize, row: usize, tokens: usize) -> Option<fn(f32) -> f32>;
    let cases: [(&str, Change, bool, &str); 6] = [
        ("L01.v_cache", |_, row, _| (row == 3).then_some(|_| f32::NAN), true, "hold NaN throughout"),
        ("L01.ffn_norm", |_, row, _| (row == 2 || row == 5).then_some(|_| f32::NAN), true, "hold NaN throughout"),
        ("L01.k_cache", |step, row, n| (row + 1 == n + step && step > 0).then_some(|_| f32::NAN), true, "hold NaN"),
        ("L01.v_cache", |step, row, n| (row + 1 == n + step && step > 0).then_some(|_| 0.0), true, "hold 0 throughout"),
        ("L00.k_cache", |step, row, _| (step == 2 && row == 3).then_some(|v| 1.5 * v), false, "1.5"),
        ("L00.v_cache", |step, row, n| (step == 1 && row + 2 == n).then_some(|v| -v), false, ""),
    ];
    for (i, (stage, change, unwritten, told)) in cases.into_iter().enumerate() {
        let dump = format!("dump-{i}");
        npz::revalue(&folder.copied("right", &dump), |all| {
            for (name, values) in all.iter_mut().filter(|(name, _)| name.ends_with(&format!("/{stage}"))) {
                let step = name.strip_prefix("step").map_or(0, |n| n.split_once('/').unwrap().0.parse().unwrap());
                let rows = match stage.ends_with("_cache") {
                    true => tokens + step,
                    false if step == 0 => tokens,
                    false => 1,
                };
                let width = values.len() / rows;
                for (row, values) in values.chunks_exact_mut(width).enumerate() {
                    if let Some(change) = change(step, row, tokens) {
                        values.iter_mut().for_each(|v| *v = change(*v));
                    }
                }
            }
        });
        let (code, report, text) = folder.told(&format!("run -m model.gguf --subject capture:{dump}"));
        assert_eq!(code, 1, "{stage}: {text}");
        let findings = report.findings();
        let found: Vec<&Value> = findings.iter().map(|f| &f["stage"]).collect();
        assert_eq!(found, [&json!(stage)], "{text}");
        assert_eq!((&findings[0]["unread"], findings[0]["unwritten"] == true), (&json!(true), unwritten), "{text}");
        let words = unwrapped(&text);
        assert!(words.contains("wrong in the capture alone") && words.contains(told), "{stage}: {text}");
        assert_eq!(words.contains("as if never written"), unwritten, "{stage}: {text}");
        let stages = report.stages();
        let others = stages.iter().filter(|s| s["stage"] != stage && s["status"] != "match");
        assert_eq!(others.count(), 0, "{stage}: {text}");
    }
}

/// A cache that the last step is seen to write wrongly, while its own readers had the right rows: either the cache is wrong or
/// its capture, which a later step would show. The readers are not accused. Rows of NaN that nothing reads are reported
/// as rows that were never written.
#[test]
fn what_no_later_step_reads_accuses_no_reader() {
    let folder = folder();
    folder.record("right", "-n 2");
    let cases =
        [("step2/L00.k_cache", 0.0, true, "no later step tells which"), ("prefill/logits", f32::NAN, false, "hold")];
    for (i, (name, value, kept, said)) in cases.into_iter().enumerate() {
        let dump = format!("dump-{i}");
        npz::revalue(&folder.copied("right", &dump), |all| {
            let width = all.iter().find(|(own, _)| **own == name.replace("k_cache", "k_rope")).unwrap().1.len();
            let width = if kept { width } else { all.iter().find(|(own, _)| *own == "step1/logits").unwrap().1.len() };
            let values = &mut all.iter_mut().find(|(own, _)| *own == name).unwrap().1;
            let last = values.len() - width;
            values[last..].fill(value);
        });
        let (code, report, text) = folder.told(&format!("run -m model.gguf --subject capture:{dump}"));
        assert_eq!(code, 1, "{text}");
        let findings = report.findings();
        let found: Vec<&Value> = findings.iter().map(|f| &f["stage"]).collect();
        assert_eq!(found, [&json!(name.split_once('/').unwrap().1)], "{text}");
        let words = unwrapped(&text);
        assert!(words.contains("as if never written: ") && words.contains(said), "{text}");
        assert_eq!((findings[0]["kept"] == true, findings[0]["unread"] == true), (kept, false), "{text}");
        assert!(!words.contains("wrong in the capture alone"), "{text}");
    }
}

/// Weights of keys that a query does not see are not zero. A context that goes by the mask is right, and its weights are wrong: in
/// the capture alone if the others are what they should be. A context that is wrong by the mask as well is an origin.
#[test]
fn a_context_may_go_by_the_mask() {
    let folder = folder();
    folder.record("right", "--prompt haiku -n 0 --stages attn_scores,attn_weights,attn_context,v_cache");
    let tokens = folder.json("right/manifest.json")["tokens"].as_array().unwrap().len();
    // What the weights of seen keys and the context are multiplied by, the weight of other keys, and what one element of the
    // context is multiplied by; then the origins, and whether the first one is wrong in the capture alone.
    let cases: [(f32, f32, f32, &[&str], bool); 4] = [
        (1.0, 0.3, 1.0, &["L01.attn_weights"], true),
        (0.5, 0.3, 1.0, &["L01.attn_weights"], false),
        (0.5, 0.3, 1.01, &["L01.attn_weights", "L01.attn_context"], false),
        (1.0, 0.0, 1.01, &["L01.attn_context"], false),
    ];
    for (i, (seen, later, one, origins, unread)) in cases.into_iter().enumerate() {
        let dump = format!("dump-{i}");
        npz::revalue(&folder.copied("right", &dump), |all| {
            let weights = all.get_mut("prefill/L01.attn_weights").unwrap();
            for (row, weights) in weights.chunks_exact_mut(tokens).enumerate() {
                let own = row % tokens + 1;
                weights[..own].iter_mut().for_each(|weight| *weight *= seen);
                weights[own..].fill(later);
            }
            let context = all.get_mut("prefill/L01.attn_context").unwrap();
            context.iter_mut().for_each(|value| *value *= seen);
            // In the row that has it, it is the largest.
            let at = (0..context.len()).max_by(|a, b| context[*a].abs().total_cmp(&context[*b].abs())).unwrap();
            context[at] *= one;
        });
        let (code, report, text) = folder.told(&format!("run -m model.gguf --subject capture:{dump}"));
        assert_eq!(code, 1, "{text}");
        let findings = report.findings();
        let found: Vec<&str> = findings.iter().map(|f| f["stage"].as_str().unwrap()).collect();
        assert_eq!((found.as_slice(), findings[0]["unread"] == true), (origins, unread), "{text}");
    }
}

/// A fault of the engine is none of its exporter: what follows is made of the wrong values.
#[test]
fn a_fault_of_the_engine_is_its_own() {
    let folder = folder();
    for fault in [
        "scaled:by=1.5@L00.ffn_norm",
        "rope-not-on-q@L01.q_rope",
        "residual-missing@L01.attn_residual",
        "zeroed@L00.v_cache",
        "zeroed@L01.k_cache",
    ] {
        let (code, report, text) = folder.judged(&format!("--prompt haiku -n 1 --inject {fault}"));
        assert_eq!(code, 1, "{fault}: {text}");
        let findings = report.findings();
        assert!(findings.iter().all(|f| f["unread"].is_null()), "{fault}: {text}");
    }
}
