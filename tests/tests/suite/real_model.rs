//! The real 491 MB model, end to end. `./scripts/test` fetches it.

use crate::reports;
use qdiff_tests::{Told, real_folder};
use serde_json::{Value, json};

#[test]
fn the_haiku_matches_in_every_stage() {
    let folder = real_folder();
    let (code, text) = reports::run(&folder, "--prompt haiku");
    let report = folder.json("report.json");
    assert_eq!(code, 0, "{text}");
    assert!(text.starts_with("MATCH"), "{text}");
    assert_eq!(report["run"]["tokens"].as_array().unwrap().len(), 16);
    assert_eq!(report["run"]["tokens"][0], 151_644);
    assert_eq!(report["run"]["decoded"].as_array().unwrap().len(), 8);
    // 22 stages in each of 24 layers, and three outside them.
    assert_eq!(report.stages().len(), 24 * 22 + 3);
    assert!(report.is_whole());
    for stage in report.stages() {
        assert_eq!(stage["status"], "match", "{stage}");
        for side in ["subject", "reference"] {
            // f32 rounding level, independent of the tolerance table.
            let residual = stage[side]["residual"].as_f64().unwrap();
            assert!(residual < 2e-5, "{side} of {}: {residual}", stage["stage"]);
        }
    }
    reports::check(&folder, &text);
    let [seen] = folder.browse(["report"]);
    assert_eq!((&seen["badge"], &seen["origins"]), (&json!("MATCH"), &json!(0)));
    assert_eq!(seen["cells"], 24 * 22 + 3);
}

/// Heads of 128 and other block formats. `./scripts/test` runs it where the file is; it fetches none of 1.1 GB.
#[test]
#[ignore = "wants QDIFF_SECOND_MODEL: set it to the output of scripts/fetch-model --model 1.5b"]
fn the_second_model_matches() {
    let model = std::env::var("QDIFF_SECOND_MODEL").expect("QDIFF_SECOND_MODEL names the second model");
    let (code, report, text) = qdiff_tests::folder().told(&format!("run -m {model} --prompt haiku -n 1"));
    assert_eq!(code, 0, "{text}");
    assert_eq!(report.stages().len(), 28 * 22 + 3);
    assert!(report.stages().iter().all(|stage| stage["status"] == "match"), "{text}");
    assert!(report.is_whole());
}

/// Experts with the weights of the real model: magnitudes of no generator.
#[test]
fn experts_of_real_weights_match() {
    let folder = qdiff_tests::folder();
    let model = qdiff_engine::model::Model::open(&qdiff_tests::real_model()).unwrap();
    qdiff_synth::upcycle(&model, 4, &folder.join("model.gguf")).unwrap();
    let (code, report, text) = folder.judged("--length 24 -n 1 --subject cpu");
    assert_eq!(code, 0, "{text}");
    assert!(report.is_whole(), "{text}");
    assert_eq!(report["verdict"]["decisions"].as_array().unwrap().len(), 4, "{text}");
    assert!(text.contains("\nchoices "), "{text}");
}

/// Alone where a fault is in every layer, several in one run where each is in a layer of its own: there every layer has
/// the origins of its fault, and no other layer has any.
#[test]
fn faults_are_named_at_their_stage_and_layer() {
    let folder = real_folder();
    // Each with the layer that it is in, or all of them, its first stage, and how many there are.
    for faults in [
        &[("qkv-bias-omitted", "L", "L00.q_biased", 72)][..],
        &[("kv-position-stuck", "L", "L00.k_cache", 48), ("logits-stale", "logits", "logits", 1)],
        &[
            ("attn-scale-missing@L03", "L03", "L03.attn_weights", 1),
            ("qkv-weight-transposed@L07", "L07", "L07.q_proj", 3),
            ("gate-up-operands-swapped@L11", "L11", "L11.ffn_act", 1),
            ("rope-base@L23", "L23", "L23.q_rope", 2),
            ("lm-head-transposed", "logits", "logits", 1),
        ],
    ] {
        let inject: String = faults.iter().map(|(fault, ..)| format!(" --inject {fault}")).collect();
        let (code, text) = reports::run(&folder, &format!("-n 2 --repeat 0{inject}"));
        assert_eq!(code, 1, "{text}");
        let report = folder.json("report.json");
        let findings = report.findings();
        for (fault, place, first, origins) in faults {
            let of_it = |f: &&Value| f["stage"].as_str().unwrap().starts_with(place);
            let own: Vec<&Value> = findings.iter().filter(of_it).collect();
            assert_eq!((own.len(), &own[0]["stage"]), (*origins, &json!(first)), "{fault}\n{text}");
            let name = fault.split('@').next().unwrap();
            assert!(own[0]["cause"]["name"].as_str().unwrap().starts_with(name), "{fault}");
        }
        assert_eq!(findings.len(), faults.iter().map(|(.., origins)| origins).sum::<usize>(), "{text}");
        for stage in report.stages() {
            let status = stage["status"].as_str().unwrap();
            let expected = if stage["origin"] == true { ["diverged"; 2] } else { ["inherited", "match"] };
            assert!(expected.contains(&status), "{faults:?}: {} is {status}", stage["stage"]);
        }
    }
    // For the last of them in every format, and on the page.
    reports::check(&folder, &folder.qdiff("report report.json").exits(1).stdout);
    let [seen] = folder.browse(["report"]);
    assert_eq!((&seen["badge"], &seen["origins"]), (&json!("DIVERGED"), &json!(8)));
    assert_eq!(seen["cells"], 24 * 22 + 3);
}

#[test]
fn llama_cpp_on_f32_weights_meets_the_oracle() {
    let text = real_folder().qdiff("verify-oracle -m model.gguf -n 2").exits(0).stdout;
    assert!(text.starts_with("MATCH: llama.cpp on F32 weights agrees with f64 in all 531 stages"), "{text}");
}

#[test]
fn the_file_is_inspected() {
    let inspect = real_folder().qdiff("inspect model.gguf").stdout;
    for part in ["qwen2.rope.freq_base = 1000000", "Q5_0      133 tensors", "291 tensors, ", "separate head"] {
        assert!(inspect.contains(part), "`{part}` is not in:\n{inspect}");
    }
}
