//! Captures in number formats narrower than f32.

use qdiff::arithmetic::Named;
use qdiff::formats::Format;
use qdiff::loaded::LoadedModel;
use qdiff::oracle::Oracle;
use qdiff_engine::quant::GgmlType;
use qdiff_tests::false_alarms::write_model;
use qdiff_tests::narrow::{BUGS, Bug, judged};
use qdiff_tests::npz::{revalue, tamper};
use qdiff_tests::synth::{Synth, base_vocab};
use qdiff_tests::{Folder, empty, folder, headline};
use serde_json::{Value, json};

/// Rounds every value of a recorded capture.
fn round(folder: &Folder, capture: &str, format: impl Fn(&str) -> Format) {
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
    for format in [Format::F16, Format::Bf16] {
        for (name, storage) in [("declared", json!(format)), ("seen", Value::Null)] {
            let name = format!("{name}-{format}");
            folder.record(&name, "");
            round(&folder, &name, |_| format);
            declare(&folder, &name, "storage", storage);
            let (code, report, text) = folder.judged(&format!("--subject capture:{name}"));
            println!("{text}");
            assert_eq!(code, 0, "{name}: {text}");
            assert_eq!(report["verdict"]["findings"], json!([]), "{text}");
        }
    }
}

/// Prompts that begin with the token of massive activations, as Qwen's do, and one that does not.
const PROMPTS: [(&[u32], &[u32]); 2] = [(&[1, 39, 68, 75, 75, 78, 90, 3, 41], &[12, 13]), (&[17, 60, 21], &[])];

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
        let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama).unwrap();
        let names = oracle.graph.stage_names();
        let singles = names[..names.len() - 1].iter().skip(m).step_by(4).map(|name| vec![*name]);
        let left_out: Vec<Vec<&str>> = std::iter::once(vec![]).chain(singles).collect();
        for named in [Named::F16, Named::Bf16, Named::Bf16ResidualF32] {
            for (tokens, left_out) in PROMPTS.iter().flat_map(|p| left_out.iter().map(move |l| (*p, l))) {
                let verdict = judged(&oracle, (named, None), named, tokens, left_out);
                let wrong: Vec<String> = verdict.origins().iter().map(|s| s.name()).collect();
                let locals = verdict.stages.iter().filter_map(|s| Some((s.id, s.subject.as_ref()?)));
                for (id, local) in locals {
                    if local.used > worst.0 {
                        worst = (local.used, format!("model {m}, {named}, without {left_out:?}: {id}"));
                    }
                    inconclusive += local.inconclusive;
                    rows += local.rows;
                    assert!(left_out.len() == 1 || local.inconclusive == 0, "model {m}, {named}: {id} {local:?}");
                }
                assert!(wrong.is_empty(), "model {m}, {named}, without {left_out:?}: {wrong:?} {}", worst.0);
            }
        }
    }
    println!("worst share used {:.2} ({}); {inconclusive} rows inconclusive, {rows} judged", worst.0, worst.1);
}

/// What is wrong in such engines is found where it is.
#[test]
fn faults_of_an_engine_of_a_declared_arithmetic_are_found() {
    let folder = empty();
    for (m, opened) in models(&folder).iter().enumerate() {
        let oracle = Oracle::new(&opened.path, opened.bytes(), &opened.llama).unwrap();
        for named in [Named::F16, Named::Bf16, Named::Bf16ResidualF32] {
            for bug in BUGS {
                let verdict = judged(&oracle, (named, Some(bug)), named, PROMPTS[0], &[]);
                let wrong: Vec<_> = verdict.origins().iter().map(|s| s.id).collect();
                let planted: Vec<_> = oracle.graph.nodes.iter().filter(|n| bug.at(n)).map(|n| n.id).collect();
                assert_eq!(wrong, planted, "model {m}, {named}, {bug:?}");
            }
        }
    }
}

/// The smallest change of one head, as a factor 1 - 2^-k, that is found in an engine of each arithmetic.
#[test]
fn small_faults_of_a_declared_arithmetic_are_found() {
    let folder = empty();
    let models = models(&folder);
    let oracle = Oracle::new(&models[0].path, models[0].bytes(), &models[0].llama).unwrap();
    for (named, least) in [(Named::F16, 9), (Named::Bf16, 6)] {
        let found = |k: i32| {
            let bug = Bug::Head(1.0 - 2f32.powi(-k));
            !judged(&oracle, (named, Some(bug)), named, PROMPTS[0], &[]).origins().is_empty()
        };
        let smallest = (2..24).take_while(|k| found(*k)).last().unwrap();
        println!("{named}: 1 - 2^-{smallest}");
        assert!(smallest >= least, "{named}: 1 - 2^-{smallest}");
    }
}

/// Another arithmetic than the engine's own is no excuse for what it does: f32 is not bf16, and bf16 not f32.
#[test]
fn an_arithmetic_that_is_not_the_engines_own_excuses_nothing() {
    let folder = empty();
    let models = models(&folder);
    let oracle = Oracle::new(&models[0].path, models[0].bytes(), &models[0].llama).unwrap();
    for (own, declared) in [(Named::Bf16, Named::F16), (Named::F32, Named::Bf16), (Named::F32, Named::F16)] {
        let verdict = judged(&oracle, (own, None), declared, PROMPTS[0], &[]);
        assert!(verdict.diverged(), "{own} as {declared}");
    }
}
