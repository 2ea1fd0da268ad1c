//! Captures in number formats narrower than f32.

use qdiff::arithmetic::Named;
use qdiff::loaded::LoadedModel;
use qdiff::oracle::Oracle;
use qdiff::verdict::Status;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Node, Role};
use qdiff_engine::ops::Op;
use qdiff_engine::quant::GgmlType;
use qdiff_tests::false_alarms::write_model;
use qdiff_tests::narrow::{BUGS, Bug, Engine, Run};
use qdiff_tests::npz::revalue;
use qdiff_tests::synth::{Synth, base_vocab};
use qdiff_tests::{Folder, Told, empty, exact, folder, folder_with, headline, python, unwrapped};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Rounds every value of a recorded capture.
fn round(folder: &Folder, capture: &str, format: impl Fn(&str) -> DType) {
    revalue(&folder.join(capture).join("capture.npz"), |all| {
        for (name, values) in all {
            values.iter_mut().for_each(|v| *v = format(name).round(*v));
        }
    });
}

/// Says in the manifest how the capture is stored; nothing where that is null.
fn declare(folder: &Folder, capture: &str, field: &str, value: Value) {
    let name = format!("{capture}/manifest.json");
    let mut manifest = folder.json(&name);
    match value {
        Value::Null => drop(manifest.as_object_mut().unwrap().remove(field)),
        value => manifest[field] = value,
    }
    folder.write(&name, manifest.to_string());
}

/// What a right engine dumps in a narrow format is right, whether the format is declared or seen.
#[test]
fn a_right_capture_in_a_narrow_format_matches() {
    let folder = folder();
    for format in [DType::F16, DType::Bf16] {
        for (name, storage) in [("declared", json!(format)), ("seen", Value::Null)] {
            let name = format!("{name}-{format}");
            folder.record(&name, "");
            round(&folder, &name, |_| format);
            declare(&folder, &name, "storage", storage);
            let (code, report, text) = folder.judged(&format!("--subject capture:{name}"));
            assert_eq!(code, 0, "{name}: {text}");
            assert_eq!(report["verdict"]["findings"], json!([]), "{text}");
        }
    }
}

/// Prompts that begin with the token of massive activations, as Qwen's do, and one that does not.
const PROMPTS: [(&[u32], &[u32]); 2] = [(&[1, 39, 68, 75, 75, 78, 90, 3, 41], &[12, 13]), (&[17, 60, 21], &[])];

/// The arithmetics narrower than f32 that have names.
const NARROW: [Named; 5] = [Named::F16, Named::Bf16, Named::Bf16ResidualF32, Named::F16Flash, Named::Bf16Flash];

/// The models of these tests: small ones of several seeds and head widths, and one with massive activations.
fn models(folder: &Folder) -> Vec<LoadedModel> {
    let small = |seed: u64, head_dim| Synth {
        seed,
        head_dim,
        n_embd: 4 * head_dim,
        n_ff: 192,
        n_vocab: base_vocab(),
        weight_type: GgmlType::F32,
        ..Synth::default()
    };
    for (i, model) in [small(1, 32), small(2, 64), small(3, 32)].iter().enumerate() {
        model.write(&folder.join(format!("{i}.gguf"))).unwrap();
    }
    write_model(&folder.join("3.gguf"));
    (0..4).map(|i| LoadedModel::new(&folder.join(format!("{i}.gguf"))).unwrap()).collect()
}

/// Engines that round every result to bf16 or f16 are right where they declare it.
#[test]
fn a_right_engine_of_a_declared_arithmetic_matches() {
    let folder = empty();
    let (mut worst, mut inconclusive, mut rows) = ((0.0, String::new()), 0, 0);
    for (m, opened) in models(&folder).iter().enumerate() {
        let oracle = opened.oracle().unwrap();
        let names = oracle.graph.stage_names();
        let singles = names[..names.len() - 1].iter().skip(m).step_by(8).map(|name| vec![*name]);
        let left_out: Vec<Vec<&str>> = std::iter::once(vec![]).chain(singles).collect();
        for (named, tokens) in NARROW.into_iter().flat_map(|n| PROMPTS.map(|p| (n, p))) {
            let run = Run::new(&oracle, (named, None), tokens);
            for left_out in &left_out {
                let verdict = run.judge(&oracle, (named, None), left_out);
                for (id, local) in verdict.stages.iter().filter_map(|s| Some((s.id, s.subject.as_ref()?))) {
                    if local.used > worst.0 {
                        worst = (local.used, format!("model {m}, {named}, without {left_out:?}: {id}"));
                    }
                    inconclusive += local.inconclusive;
                    rows += local.rows;
                    assert!(left_out.len() == 1 || local.inconclusive == 0, "model {m}, {named}: {id} {local:?}");
                }
                let wrong: Vec<String> = verdict.origins().iter().map(|s| s.name()).collect();
                assert!(wrong.is_empty(), "model {m}, {named}, without {left_out:?}: {wrong:?} {worst:?}");
            }
        }
    }
    println!("worst share used {:.2} ({}); {inconclusive} rows inconclusive, {rows} judged", worst.0, worst.1);
}

/// A flash attention shows nothing between rotated queries and its result; all of it is judged.
#[test]
fn flash_attention_is_judged_without_what_it_never_writes() {
    let folder = empty();
    let inside = |n: &&Node| matches!(n.op, Op::KvCache(_) | Op::AttnScores(_) | Op::AttnWeights(_));
    for (m, opened) in models(&folder).iter().enumerate() {
        let oracle = opened.oracle().unwrap();
        let left_out: Vec<&str> = oracle.graph.nodes.iter().filter(inside).map(|n| n.id.name).collect();
        for (named, tokens) in [Named::F16Flash, Named::Bf16Flash].into_iter().flat_map(|n| PROMPTS.map(|p| (n, p))) {
            let judged = |bug| Run::new(&oracle, (named, bug), tokens).judge(&oracle, (named, None), &left_out);
            let right = judged(None);
            assert!(right.origins().is_empty(), "model {m}, {named}: {:?}", right.origins()[0].id);
            assert_eq!(right.coverage.judged, right.coverage.asked, "model {m}, {named}");
            let wrong: Vec<_> = judged(Some(Bug::Head(0.9))).origins().iter().map(|s| s.id).collect();
            let planted = oracle.graph.nodes.iter().enumerate().filter(|n| Bug::Head(0.9).at(*n));
            assert_eq!(wrong, planted.map(|(_, n)| n.id).collect::<Vec<_>>(), "model {m}, {named}");
        }
    }
}

/// The same of an engine of f32 whose values are stored in a narrow format.
#[test]
fn a_right_engine_is_right_in_every_storage() {
    let folder = empty();
    for (m, opened) in models(&folder).iter().enumerate() {
        let oracle = opened.oracle().unwrap();
        for tokens in PROMPTS {
            let run = Run::new(&oracle, (Named::F32, None), tokens);
            for format in DType::NARROW {
                let verdict = run.stored(format).judge(&oracle, (Named::F32, Some(format)), &[]);
                let wrong: Vec<String> = verdict.origins().iter().map(|s| s.name()).collect();
                assert!(wrong.is_empty(), "model {m}, {format}: {wrong:?}");
                let c = &verdict.coverage;
                let share = c.judged as f64 / c.asked as f64;
                println!("model {m}, {format}: {} of {} rows judged", c.judged, c.asked);
                // With 8 bits the embedding and the caches are judged, and little that is far from them.
                let least = if format.unit() > 0.01 { 0.05 } else { 0.9 };
                assert!(share > least, "model {m}, {format}: {share}");
            }
        }
    }
}

/// What is wrong in such engines is found where it is.
#[test]
fn faults_of_an_engine_of_a_declared_arithmetic_are_found() {
    let folder = empty();
    for (m, opened) in models(&folder).iter().enumerate() {
        let oracle = opened.oracle().unwrap();
        for (named, bug) in NARROW.into_iter().flat_map(|n| BUGS.map(|b| (n, b))) {
            let run = Run::new(&oracle, (named, Some(bug)), PROMPTS[0]);
            let verdict = run.judge(&oracle, (named, None), &[]);
            let wrong: Vec<_> = verdict.origins().iter().map(|s| s.id).collect();
            let nodes = oracle.graph.nodes.iter().enumerate();
            let planted: Vec<_> = nodes.filter(|n| bug.at(*n)).map(|(_, n)| n.id).collect();
            assert_eq!(wrong, planted, "model {m}, {named}, {bug:?}");
        }
    }
}

/// What a hypothesis may be off by in a narrow format is what its own rotation rounds, not what the right one does.
#[test]
fn a_wrong_rotation_in_a_narrow_format_is_named() {
    let folder = empty();
    let ids: Vec<u32> = (0..24).map(|i| 1 + i * 37 % 80).collect();
    for (m, opened) in models(&folder).iter().enumerate() {
        let oracle = opened.oracle().unwrap();
        for ((named, stored), prompt) in FORMS.into_iter().flat_map(|form| [5, 17].map(|n| (form, n))) {
            let run = Run::new(&oracle, (named, Some(Bug::Late)), (&ids[..prompt], &ids[prompt..])).stored(stored);
            let found = run.explain(&oracle, named, Some(stored)).findings;
            let [finding] = found.as_slice() else { panic!("model {m}, {named}, {stored}, {prompt}: {found:?}") };
            let cause = finding.cause.as_ref().map(|cause| cause.name.to_string());
            assert_eq!(cause.as_deref(), Some("decode-offset:by=1"), "model {m}, {named}, {stored}, {prompt}");
        }
    }
}

/// An exponential that overflows f16 is named as such, also in layers where few gates are so low. The test lowers gates
/// of a run; the later values are those of an engine that computes 1/(1 + e^−g) in f16 throughout.
#[test]
fn an_overflow_within_silu_is_told() {
    let folder = empty();
    let opened = &models(&folder)[1];
    let oracle = opened.oracle().unwrap();
    let mut run = Run::new(&oracle, (Named::F16, None), PROMPTS[0]);
    let (mut gate, mut up, mut low) = (Vec::new(), Vec::new(), BTreeMap::<String, usize>::new());
    run.change(&oracle.graph, |node, values| {
        let r = |x: f32| DType::F16.round(x);
        match (&node.op, node.role) {
            (Op::Linear, Role::Gate) => {
                let by = if node.id.layer == Some(0) { 24.0 } else { 12.0 };
                values.iter_mut().for_each(|v| *v = r(*v * by));
                gate = values.to_vec();
            }
            (Op::Linear, Role::Up) => up = values.to_vec(),
            (Op::SwiGlu, _) => {
                for (y, (g, u)) in values.iter_mut().zip(gate.iter().zip(&up)) {
                    *y = r(r(g * r(1.0 / r(1.0 + r((-g).exp())))) * u);
                }
                *low.entry(node.id.to_string()).or_default() += gate.iter().filter(|g| **g < -11.1).count();
            }
            _ => {}
        }
    });
    let found = run.explain(&oracle, Named::F16, None).findings;
    let told: Vec<_> = found.iter().filter(|f| low.contains_key(&f.id.to_string())).collect();
    assert_eq!(told.len(), low.values().filter(|n| **n > 0).count());
    for finding in told {
        let what = finding.solution.as_ref().map(|s| s.what.as_str());
        assert_eq!(what, Some("the exponential is rounded to f16"), "{}", finding.id);
        assert!(finding.cause.is_none(), "{:?}", finding.cause);
    }
}

/// How an engine computes, and how its values are stored.
const FORMS: [(Named, DType); 5] = [
    (Named::F32, DType::F32),
    (Named::F32, DType::F16),
    (Named::F32, DType::Bf16),
    (Named::F16, DType::F32),
    (Named::Bf16, DType::F32),
];

/// Whether a stage that is 1 - 2^-k times what it should be is found there, and nothing else is.
fn finds(oracle: &Oracle<'_>, index: usize, (named, format): (Named, DType), k: i32) -> bool {
    let bug = Bug::Scaled(index, 1.0 - 2f32.powi(-k));
    let run = Run::new(oracle, (named, Some(bug)), PROMPTS[0]).stored(format);
    let verdict = run.judge(oracle, (named, Some(format)), &[]);
    verdict.origins().iter().map(|s| s.id).eq([oracle.graph.nodes[index].id])
}

/// The smallest fault that is found in each stage of layer 1: the table of docs/engine/arithmetic.md.
#[test]
#[ignore = "prints a table"]
fn table_of_the_smallest_faults() {
    let folder = empty();
    let models = models(&folder);
    let oracle = models[1].oracle().unwrap();
    println!(
        "| stage | f32 | stored as f16 | stored as bf16 | f16 arithmetic | bf16 arithmetic |\n| --- | --- | --- | --- | --- | --- |"
    );
    for (index, node) in oracle.graph.nodes.iter().enumerate().filter(|(_, n)| n.id.layer == Some(1)) {
        if node.has_state() {
            continue;
        }
        let smallest = |form| (1..24).take_while(|k| finds(&oracle, index, form, *k)).last();
        let cell = |form| smallest(form).map_or("-".to_owned(), |k| format!("2^-{k}"));
        println!("| {} | {} |", node.id.name, FORMS.map(cell).join(" | "));
    }
}

/// A few of them, in every form: no bound is so wide that these pass.
#[test]
fn small_faults_are_found_in_every_format() {
    let folder = empty();
    let models = models(&folder);
    let oracle = models[1].oracle().unwrap();
    let node = |ops: fn(&Op) -> bool| oracle.graph.nodes.iter().rposition(|n| ops(&n.op)).unwrap();
    for index in
        [node(|op| matches!(op, Op::AttnContext(_))), node(|op| *op == Op::SwiGlu), node(|op| *op == Op::Linear)]
    {
        for (form, k) in FORMS.into_iter().zip([15, 9, 6, 9, 6]) {
            let id = oracle.graph.nodes[index].id;
            assert!(finds(&oracle, index, form, k), "{id} of {} stored as {}", form.0, form.1);
        }
    }
}

/// Another arithmetic than the engine's own is no excuse for what it does: f32 is not bf16, and bf16 not f16.
#[test]
fn an_arithmetic_that_is_not_the_engines_own_excuses_nothing() {
    let folder = empty();
    let models = models(&folder);
    let oracle = models[0].oracle().unwrap();
    let (f32, bf16, flash) = (Named::F32, Named::Bf16, Named::Bf16Flash);
    for (own, declared) in
        [(bf16, Named::F16), (f32, bf16), (f32, Named::F16), (bf16, flash), (flash, bf16), (f32, flash)]
    {
        let verdict = Run::new(&oracle, (own, None), PROMPTS[0]).judge(&oracle, (declared, None), &[]);
        assert!(verdict.diverged(), "{own} as {declared}");
    }
}

/// What no engine of any format gives passes in none: each stage of a layer alone zero, three quarters of its value,
/// or that of the layer before.
#[test]
fn no_format_excuses_what_is_wrong() {
    let folder = empty();
    let models = models(&folder);
    let oracle = models[1].oracle().unwrap();
    let clean = Run::new(&oracle, (Named::F32, None), PROMPTS[0]);
    let forms = [(Named::F32, DType::F8E4m3), (Named::F32, DType::F8E5m2), (Named::Bf16, DType::F32)];
    let mut before: HashMap<&str, Vec<Vec<f32>>> = HashMap::new();
    clean.stored(DType::F32).change(&oracle.graph, |node, values| {
        if node.id.layer == Some(0) {
            before.entry(node.id.name).or_default().push(values.to_vec());
        }
    });
    let stages = oracle.graph.nodes.iter().filter(|n| n.id.layer == Some(1));
    for (i, (stage, form)) in stages.flat_map(|n| forms.map(|f| (n.id, f))).enumerate() {
        // Each stage in one of the formats, each format with a third of the stages.
        if i / 3 % 3 != i % 3 {
            continue;
        }
        for what in ["zero", "three quarters", "another layer's"] {
            let (mut run, mut step) = (clean.stored(DType::F32), 0);
            run.change(&oracle.graph, |node, values| {
                if node.id != stage {
                    return;
                }
                match what {
                    "zero" => values.fill(0.0),
                    "three quarters" => values.iter_mut().for_each(|v| *v *= 0.75),
                    _ => values.copy_from_slice(&before[stage.name][step]),
                }
                step += 1;
            });
            let verdict = run.stored(form.1).judge(&oracle, (form.0, Some(form.1)), &[]);
            let of_stage = verdict.stages.iter().find(|s| s.id == stage).unwrap();
            let passed = of_stage.status == Status::Alone && !verdict.diverged();
            assert!(!passed, "{stage}, {what}, {} stored as {}: {:?}", form.0, form.1, of_stage.subject);
        }
    }
}

/// Faults of an engine of f32 are found in what it stores narrowly, and no other cause is reported.
#[test]
fn injected_faults_are_found_in_a_narrow_capture() {
    let folder = folder();
    for (format, fault, stage) in [
        (DType::F16, "qkv-bias-omitted@L01.q_biased", "L01.q_biased"),
        (DType::F16, "rope-base:base=10000@L00.q_rope", "L00.q_rope"),
        (DType::Bf16, "scaled:by=0.9@L01.ffn_down", "L01.ffn_down"),
        (DType::Bf16, "rope-base:base=10000@L01.k_rope", "L01.k_rope"),
    ] {
        let name = format!("{format}-{stage}");
        folder.record(&name, &format!("-n 1 --inject {fault}"));
        round(&folder, &name, |_| format);
        declare(&folder, &name, "storage", Value::Null);
        let (code, report, text) = folder.judged(&format!("--subject capture:{name}"));
        assert_eq!(code, 1, "{name}: {text}");
        let findings = report.findings();
        assert_eq!(findings[0]["stage"], stage, "{text}");
        assert_eq!(findings.len(), 1, "{text}");
        let cause = &findings[0]["cause"]["name"]["mutation"];
        let planted = fault.split([':', '@']).next().unwrap();
        assert!(cause.is_null() || cause == planted, "{cause} for {planted}: {text}");
    }
}

/// An engine that declares to round its results, and does not: its values are held to f32, and the report says so.
#[test]
fn a_declared_rounding_that_is_not_kept_is_told() {
    let folder = folder();
    folder.record("mine", "-n 0");
    declare(&folder, "mine", "arithmetic", json!({ "outputs": "bf16" }));
    let (code, report, text) = folder.judged("--subject capture:mine");
    assert_eq!(code, 0, "{text}");
    let text = unwrapped(&text);
    assert!(text.starts_with("MATCH (outputs in bf16 arithmetic declared, not kept): "), "{text}");
    assert!(text.contains("values of embed and of 46 more stages are no numbers of bf16"), "{text}");
    assert!(report["subject"]["unkept"].is_string(), "{text}");
}

/// An engine that declares nothing and computes in bf16: the report proposes the declaration under which all of it is right. It proposes
/// none to an engine with a fault.
#[test]
fn a_declaration_is_read_off_the_values() {
    let folder = folder();
    let (opened, tokens) = (LoadedModel::new(&folder.join("model.gguf")).unwrap(), [17, 60, 21, 9, 33]);
    let oracle = opened.oracle().unwrap();
    folder.record("mine", "-n 0 --tokens 17,60,21,9,33");
    for bug in [None, Some(Bug::Base)] {
        let values = Engine::new(&oracle, Named::Bf16, bug).step(&tokens);
        revalue(&folder.join("mine/capture.npz"), |all| {
            for (node, value) in oracle.graph.nodes.iter().zip(values) {
                let name = node.id.to_string();
                let is_own = |array: &str| array.rsplit('/').next().map(|a| a.trim_end_matches(".npy")) == Some(&name);
                let (_, own) = all.iter_mut().find(|(array, _)| is_own(array)).expect("an array of the stage");
                assert_eq!(own.len(), value.data.len(), "{name}");
                *own = value.data;
            }
        });
        declare(&folder, "mine", "storage", json!("f32"));
        let (code, report, text) = folder.judged("--subject capture:mine");
        assert_eq!(code, 1, "{text}");
        let told = "every stage that was judged is right; declare it if the engine is meant to compute so (docs/engine/arithmetic.md): \"arithmetic\": \"bf16\"";
        assert_eq!(unwrapped(&text).contains(told), bug.is_none(), "{text}");
        assert_eq!(report["declaration"].is_string(), bug.is_none(), "{text}");
    }
}

/// An engine that quantises what it multiplies, by the format of the weights, and declares nothing: with the proposed text in its manifest
/// it is right. An engine that computes in f32 and scales some products wrongly gets no proposal.
#[test]
fn activations_are_read_off_the_values() {
    let overrides =
        [("blk.0.attn_q", GgmlType::Q5_1), ("blk.0.ffn_gate", GgmlType::Q4_0), ("blk.1.ffn_up", GgmlType::Q6_K)];
    let overrides = overrides.map(|(name, ty)| (format!("{name}.weight"), ty)).into();
    let model =
        Synth { n_embd: 256, n_heads: 4, head_dim: 64, weight_type: GgmlType::Q8_0, overrides, ..Synth::default() };
    let folder = folder_with(&model);
    folder.record("mine", "-n 1 --runner llama --kv-type f32");
    declare(&folder, "mine", "arithmetic", Value::Null);
    let (code, report, text) = folder.judged("--subject capture:mine");
    assert_eq!(code, 1, "{text}");
    let proposed = report["declaration"].as_str().unwrap_or_else(|| panic!("{text}"));
    assert!(unwrapped(&text).contains(proposed), "{text}");
    let rule = |weights: &str, activations: &str| json!({"weights": weights, "activations": activations});
    let rules = [("q8_0", "q8_0"), ("q4_0", "q8_0"), ("q5_1", "q8_1"), ("q6_K", "q8_K")];
    let said: Value = serde_json::from_str(&format!("{{{proposed}}}")).unwrap();
    let linear = said["arithmetic"]["linear"].as_array().unwrap();
    assert_eq!((linear.len(), said["arithmetic"].as_object().unwrap().len()), (rules.len(), 1), "{proposed}");
    assert!(rules.iter().all(|(weights, activations)| linear.contains(&rule(weights, activations))), "{proposed}");
    declare(&folder, "mine", "arithmetic", said["arithmetic"].clone());
    let (code, report, text) = folder.judged("--subject capture:mine");
    assert_eq!(code, 0, "{text}");
    assert!(report["declaration"].is_null(), "{text}");
    let faults =
        ["attn_out", "ffn_gate", "ffn_up", "ffn_down"].map(|stage| format!("--inject scaled:by=1.004@L01.{stage}"));
    folder.record("wrong", &format!("-n 1 {}", faults.join(" ")));
    declare(&folder, "wrong", "arithmetic", Value::Null);
    let (code, report, text) = folder.judged("--subject capture:wrong");
    assert_eq!((code, report.findings().len()), (1, 4), "{text}");
    assert!(report["declaration"].is_null(), "{text}");
}

/// Every format has the declaration, also in its first line.
#[test]
fn a_declared_arithmetic_stands_in_the_headline() {
    let folder = folder();
    folder.record("mine", "-n 0 --stages embed");
    declare(&folder, "mine", "arithmetic", json!("bf16"));
    declare(&folder, "mine", "storage", json!({ "default": "f32", "stages": { "emb*": "bf16" } }));
    folder.refuses("run -m model.gguf --subject capture:mine", &["storage is declared as bf16", "which is no bf16"]);
    round(&folder, "mine", |_| DType::Bf16);
    let (_, report, text) = folder
        .judged("--subject capture:mine --reference none --stages embed --report a.md --report a.html --report a.xml");
    assert_eq!(report["subject"]["arithmetic"]["outputs"], "bf16", "{text}");
    let told = "(bf16 arithmetic declared)";
    assert!(headline(&text).contains(told) && !text.contains("not kept"), "{text}");
    for file in ["a.md", "a.html", "a.xml"] {
        assert!(folder.text(file).contains("bf16 arithmetic declared"), "{file}");
    }
    for (storage, words) in [
        (json!("f12"), ["mine", "f12"]),
        (json!({ "stages": { "nothing*": "f16" } }), ["nothing*", "no stage"]),
        (json!({ "stages": { "embed": "f16", "emb*": "bf16" } }), ["`emb*` says that embed is bf16", "`embed`"]),
        (json!({ "ops": { "nothing": "f16" } }), ["no stage's op", "`nothing`"]),
    ] {
        declare(&folder, "mine", "storage", storage);
        folder.refuses("run -m model.gguf --subject capture:mine", &words);
    }
}

/// An engine joins two shares of the keys by logarithms of sums of exponentials, whose error grows with the scores: right if it says
/// so, and only that error is excused.
#[test]
fn shares_that_are_joined_by_logarithms_are_declared() {
    let folder = folder_with(&Synth { massive: true, ..exact() });
    folder.record("plain", "-n 1 --runner cpu");
    for (off, declared, code) in
        [(8e-6, "[]", 1), (8e-6, r#"[{"log_sum_exp": true}]"#, 3), (2e-2, r#"[{"log_sum_exp": true}]"#, 1)]
    {
        let script = format!(
            r#"
import json, os, numpy as np
os.makedirs("joined", exist_ok=True)
arrays = dict(np.load("plain/capture.npz"))
for name in arrays:
    if name.endswith("attn_context"):
        w, v = (arrays[name.replace("attn_context", of)].astype(np.float64) for of in ["attn_weights", "v_cache"])
        group = w.shape[0] // v.shape[1]
        w[:, :, :8] *= 1 + {off}
        w[:, :, 8:] *= 1 - {off}
        of_heads = np.stack([w[h] @ v[:, h // group] for h in range(w.shape[0])], 1)
        arrays[name] = of_heads.reshape(arrays[name].shape).astype(np.float32)
np.savez("joined/capture.npz", **arrays)
manifest = json.load(open("plain/manifest.json"))
manifest["arithmetic"]["attention"] = json.loads('{declared}')
json.dump(manifest, open("joined/manifest.json", "w"))
"#
        );
        python(&folder, &script);
        let line =
            "run -m model.gguf --subject capture:joined --reference none --stages 'attn_context' --json told.json";
        let said = folder.qdiff(line);
        assert_eq!(said.code, code, "{off} {declared} {said}");
    }
}
