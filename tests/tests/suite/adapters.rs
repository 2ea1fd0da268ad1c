//! LoRA adapters: each sequence of a run may have one of its own.

use qdiff_engine::quant::GgmlType;
use qdiff_tests::markdown::root;
use qdiff_tests::synth::{Lora, Synth};
use qdiff_tests::{Folder, Said, Told as _, exact, files, folder_with, python_path, unwrapped};

/// A model, adapters of other ranks, scales and formats, and one that adds to some matrices alone.
fn with_adapters(model: &Synth) -> Folder {
    let folder = folder_with(model);
    let some = ["attn_q", "attn_v", "ffn_down"];
    for (name, rank, alpha, ty, matrices) in [
        ("wide", 8, 16.0, GgmlType::F32, &[][..]),
        ("narrow", 4, 2.0, GgmlType::F32, &some[..]),
        ("half", 16, 8.0, GgmlType::F16, &[][..]),
        ("brain", 5, 0.0, GgmlType::BF16, &[][..]),
    ] {
        let lora = Lora { rank, alpha, matrices, ty, seed: rank as u64 };
        std::fs::write(folder.join(format!("{name}.gguf")), model.adapter(&lora)).unwrap();
    }
    folder
}

fn qwen3(weight_type: GgmlType) -> Synth {
    Synth { arch: "qwen3", n_embd: 128, n_ff: 256, n_heads: 4, n_kv_heads: 2, head_dim: 32, weight_type, ..exact() }
}

const BATCH: &str = "--prompt long --length 40 --sequences 5+9+12,1+1+1,1+0+7+3";

/// Requests of a batch could not have adapters of their own. qdiff's CPU engine and llama.cpp run them, and each sequence is judged
/// with its own.
#[test]
fn sequences_have_adapters_of_their_own() {
    for (model, adapters) in [
        (qwen3(GgmlType::F32), "--adapter 1=wide.gguf --adapter 2=narrow.gguf"),
        (qwen3(GgmlType::Q8_0), "--adapter 0,2=half.gguf --adapter 1=narrow.gguf"),
        (exact(), "--adapter 0=brain.gguf --adapter 1,3=half.gguf"),
    ] {
        let folder = with_adapters(&model);
        for subject in ["cpu", "llama"] {
            let said = folder.qdiff(&format!("run -m model.gguf {adapters} {BATCH} --subject {subject}")).exits(0);
            assert!(said.stdout.contains("4 runs: 4 MATCH"), "{said}");
            for file in files(&folder.join("qdiff-report")) {
                let report = folder.json(&format!("qdiff-report/{file}/report.json"));
                assert!(report.is_whole(), "{file}");
                assert!(report["run"]["command"].as_str().unwrap().contains(adapters), "{}", report["run"]);
                assert!(report["model"]["adapters"].as_array().unwrap().len() == 2, "{}", report["model"]);
            }
        }
    }
}

/// One sequence with an adapter: the terms are stages, and llama.cpp has the sums.
#[test]
fn a_model_has_an_adapter() {
    for (arch, ty) in [("qwen2", GgmlType::Q4_K), ("qwen3", GgmlType::F16)] {
        let folder = with_adapters(&Synth { arch, weight_type: ty, ..Synth::default() });
        for adapter in ["wide", "half"] {
            let said = folder.qdiff(&format!("run -m model.gguf --adapter {adapter}.gguf -n 2 --subject cpu")).exits(0);
            assert!(said.stdout.starts_with("MATCH: all "), "{said}");
            assert!(
                said.stdout.contains("q_lora_a") && said.stdout.contains(&format!("adapter    {adapter}.gguf")),
                "{said}"
            );
        }
        folder.qdiff("record -m model.gguf --adapter wide.gguf -n 0 --runner cpu --out with").exits(0);
        let said = folder.qdiff("run -m model.gguf --subject capture:with").exits(2);
        assert!(said.stderr.contains("add --adapter for a run with a LoRA adapter"), "{said}");
        folder.qdiff("run -m model.gguf --adapter wide.gguf --subject capture:with").exits(0);
    }
}

/// The battery of batches with two adapters, which a prefix does not cross.
#[test]
fn the_battery_runs_with_two_adapters() {
    let folder = with_adapters(&qwen3(GgmlType::F32));
    let line = "check --serving -m model.gguf --adapter 1=wide.gguf --adapter 2=half.gguf --quick --subject cpu";
    let said = unwrapped(&folder.qdiff(line).exits(0).stdout);
    assert!(said.contains("8 of 8 cases match"), "{said}");
    assert!(
        said.contains("prefix was left out (sequence 2 begins with tokens of sequence 0, which has another adapter)")
    );
}

/// What cannot be run is refused, with the file, the key or the sequence.
#[test]
fn adapters_that_do_not_fit_are_named() {
    let folder = with_adapters(&qwen3(GgmlType::F32));
    std::fs::write(
        folder.join("other.gguf"),
        Synth { arch: "qwen3", n_embd: 64, ..Synth::default() }.adapter(&Lora {
            rank: 2,
            alpha: 1.0,
            matrices: &[],
            ty: GgmlType::F32,
            seed: 1,
        }),
    )
    .unwrap();
    for (options, why) in [
        ("--adapter model.gguf", "model.gguf: metadata key `general.type` is missing, expected `adapter`"),
        ("--adapter no.gguf", "no.gguf"),
        ("--adapter other.gguf", "is the adapter of another model?"),
        ("--adapter 1=wide.gguf", "--adapter names sequence 1, and the run has 1 sequence"),
        ("--adapter wide.gguf --adapter half.gguf", "a sequence has one adapter at most"),
        ("--adapter wide.gguf --ranks 2", "leave --adapter out"),
        ("--inject adapter-scale", "is a fault of LoRA adapters; add --adapter FILE.gguf"),
    ] {
        let refused = folder.qdiff(&format!("run -m model.gguf --subject cpu {options}"));
        let (code, said) = (refused.code, refused.stderr.replace('\n', " "));
        assert!(code == 2 && said.contains(why), "{options}: {refused}");
    }
    // A prefix of a sequence with the same adapter, or none, is shared.
    folder.qdiff("run -m model.gguf --subject cpu --adapter 1=wide.gguf --length 30 --sequences 7,5+1+17@0").exits(0);
    let crossed =
        folder.qdiff("run -m model.gguf --subject cpu --adapter 2=wide.gguf --length 30 --sequences 7,5+1+17@0");
    assert!(crossed.exits(2).stderr.contains("sequence 2 begins with cached tokens of sequence 0"));
}

/// An engine in numpy that adds adapters row by row, with the bugs that such engines have had: each is found at the first product, in
/// the sequences that it is wrong for, and its cause is told.
#[test]
fn wrong_adapters_of_an_engine_are_causes() {
    let folder = with_adapters(&qwen3(GgmlType::F32));
    let engine = root().join("tests/engines/paged.py");
    let run = |options: &str, code: i32| -> Said {
        let command = format!(
            "cmd: python3 {} {{model}} --sequences {{sequences}} --lora 1=wide.gguf --lora 2=narrow.gguf {options}",
            engine.display()
        );
        let line =
            format!("run -m model.gguf --adapter 1=wide.gguf --adapter 2=narrow.gguf {BATCH} --subject '{command}'");
        folder.qdiff_with(&[("PYTHONPATH", &python_path()), ("OPENBLAS_NUM_THREADS", "1")], &line).exits(code)
    };
    for terms in ["", "--terms"] {
        assert!(run(terms, 0).stdout.contains("4 runs: 4 MATCH"));
    }
    let none = "the rows have another adapter than their own: none (adapter-of-another:which=0)";
    for (options, at, words, confirmed) in [
        ("--bug lora-first", "L00.q_proj", none, "confirmed on"),
        ("--bug lora-decode", "L00.q_proj", &format!("{none}, in parts of 1 token"), "confirmed on"),
        ("--terms --bug lora-decode", "L00.q_lora_a", &format!("{none}, in parts of 1 token"), "confirmed on"),
        ("--bug lora-scale", "L00.q_proj", "the term of the adapter is not multiplied by alpha / rank", "confirmed on"),
    ] {
        let said = unwrapped(&run(options, 1).stdout);
        assert!(said.contains(at) && said.contains(words) && said.contains(confirmed), "{options}: {said}");
        assert!(!said.contains("no known cause"), "{options}: {said}");
    }
}
