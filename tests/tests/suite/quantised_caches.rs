//! KV caches in blocks: through the CPU engine, llama.cpp and the verdict.

use qdiff_engine::quant::CACHES;
use qdiff_tests::{Told, folder, python};
use serde_json::Value;

/// The names of the formats with blocks.
fn blocks() -> impl Iterator<Item = &'static str> {
    CACHES.into_iter().filter(|(_, format, _)| format.block_size() > 1).map(|(name, ..)| name)
}

fn stages<'a>(report: &'a Value, end: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = report.stages();
    all.iter().filter(move |stage| stage["stage"].as_str().unwrap().ends_with(end))
}

/// Every format, alone and beside others: the rows of both engines are what ggml stores, to the last bit. llama.cpp reads
/// values in blocks with flash attention, which hands out no scores; there its context is judged with them.
#[test]
fn caches_in_blocks_match_on_both_sides() {
    let folder = folder();
    let apart = ["q8_0/q4_1", "q4_1/f16", "q5_1/f32", "f16/q5_0", "f32/iq4_nl"];
    for kv in blocks().chain(apart) {
        let (code, report, text) = folder.judged(&format!("--subject cpu --ubatch 9 -n 3 --kv-type {kv}"));
        assert_eq!(code, 0, "{kv}\n{text}");
        assert_eq!(
            (&report["subject"]["arithmetic"]["kv"], &report["reference"]["arithmetic"]["kv"]),
            (&kv.into(), &kv.into())
        );
        for stage in stages(&report, "_cache") {
            assert_eq!(
                (&stage["subject"]["residual"], &stage["reference"]["residual"]),
                (&0.0.into(), &0.0.into()),
                "{kv} {stage}"
            );
        }
        let flash = !["f16", "f32"].contains(&kv.rsplit('/').next().unwrap());
        for stage in stages(&report, "attn_scores") {
            assert_eq!(stage["reference"].is_null(), flash, "{kv} {stage}");
            assert!(!stage["subject"].is_null(), "{kv} {stage}");
        }
        for stage in stages(&report, "attn_context") {
            assert_eq!(stage["reference"]["segment"].as_array().map(Vec::len), flash.then_some(3), "{kv} {stage}");
        }
    }
}

/// Caches in 8-bit floating point with scales, as numpy rounds them: the scales that were used give every row, and no others do.
#[test]
fn caches_with_scales_are_held_to_them() {
    let folder = folder();
    folder.record("plain", "--runner cpu");
    for (declared, code) in [(0.02, 3), (0.021, 1)] {
        let script = format!(
            r#"
import json, os, numpy as np
def e4m3(x):
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 2.0 ** -9))), -6)
    step = 2.0 ** (exponent - 3)
    return np.clip(np.round(x / step) * step, -448, 448).astype(np.float32)
os.makedirs("scaled", exist_ok=True)
arrays = dict(np.load("plain/capture.npz"))
for name in arrays:
    if name.endswith("_cache"):
        scale = np.float32(0.02 if name.endswith("k_cache") else 0.5)
        arrays[name] = e4m3((arrays[name] / scale).astype(np.float64)) * scale
np.savez("scaled/capture.npz", **arrays)
manifest = json.load(open("plain/manifest.json"))
manifest["arithmetic"] = {{"kv": "f8_e4m3", "kv_scale": {{"k_cache": {declared}, "L00.v_cache": 0.5, "L01.v_cache": 0.5}}}}
json.dump(manifest, open("scaled/manifest.json", "w"))
"#
        );
        python(&folder, &script);
        let line = "run -m model.gguf --subject capture:scaled --reference none --stages '*_cache' --json told.json";
        let said = folder.qdiff(line);
        assert_eq!(said.code, code, "{said}");
        assert_eq!(said.stdout.contains("L00.k_cache"), code == 1, "{said}");
    }
}

/// A capture declares the formats of its caches, and they are what its rows are held to.
#[test]
fn a_capture_with_caches_in_blocks_is_held_to_them() {
    let folder = folder();
    folder.record("apart", "--kv-type q8_0/q4_1");
    let manifest = folder.json("apart/manifest.json");
    assert_eq!(manifest["arithmetic"]["kv"], "q8_0/q4_1");
    let (code, report, text) = folder.judged("--subject capture:apart");
    assert_eq!((code, &report["reference"]["arithmetic"]["kv"]), (0, &"q8_0/q4_1".into()), "{text}");
    folder.refuses(
        "run -m model.gguf --subject capture:apart --kv-type q8_0 --json none.json",
        &["apart", "in q8_0/q4_1", "asks for q8_0"],
    );
    for (declared, wrong) in [("q8_0", "L00.v_cache"), ("q4_1/q8_0", "L00.k_cache"), ("f32", "L00.k_cache")] {
        let mut manifest = manifest.clone();
        manifest["arithmetic"]["kv"] = declared.into();
        folder.write("apart/manifest.json", manifest.to_string());
        let (code, report, text) = folder.judged("--subject capture:apart");
        assert_eq!((code, report.origins()[0]), (1, wrong), "{declared}\n{text}");
    }
}

/// Several sequences share the slots of a cache in blocks.
#[test]
fn sequences_with_caches_in_blocks_match() {
    let folder = folder();
    let line = "--length 33 --subject cpu --sequences 7,5+1+17@0,1+1+1 --kv-type q5_1/q4_0";
    let said = folder.qdiff(&format!("run -m model.gguf {line}")).exits(0);
    assert!(said.stdout.contains("3 runs: 3 MATCH"), "{said}");
}

#[test]
fn caches_that_cannot_be_are_refused() {
    let folder = folder();
    folder.refuses_options(
        "run -m model.gguf --subject cpu --kv-type q4_k",
        &["`q4_k` is no type of a KV cache", "iq4_nl"],
    );
    folder.refuses("run -m model.gguf --subject cpu --kv-type f8_e4m3", &["llama.cpp has no KV cache in f8_e4m3"]);
    qdiff_synth::Synth { n_embd: 192, head_dim: 48, ..Default::default() }.write(&folder.join("heads.gguf")).unwrap();
    folder.refuses(
        "run -m heads.gguf --subject cpu --kv-type q8_0",
        &["a KV cache in q8_0 has blocks of 32 elements", "a head of this model has 48"],
    );
}
