//! Models of real shapes, as they are generated, and what running them takes.

use qdiff_engine::gguf::Gguf;
use qdiff_engine::quant::GgmlType;
use qdiff_tests::synth::Synth;
use qdiff_tests::{Said, binary, empty, files, folder, folder_with, markdown};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Qwen2.5-7B with a little of its width.
fn narrow() -> Synth {
    Synth { n_embd: 256, n_heads: 4, n_kv_heads: 2, head_dim: 64, n_ff: 256, n_vocab: 600, ..Synth::qwen2_5_7b() }
        .q4_k_m()
}

#[test]
fn the_generator_writes_what_runs() {
    let folder = empty();
    let like = Gguf::from_bytes(Synth::default().to_bytes()).unwrap();
    let paths = narrow().write_like(&like, 3, &folder, "model").unwrap();
    let model = Gguf::open(&paths[0]).unwrap();
    // As llama-quantize makes a Q4_K_M of a model of 28 layers.
    let of = |ty| model.tensors.iter().filter(|t| t.ggml_type == ty).count();
    assert_eq!((model.parts().len(), of(GgmlType::Q4_K), of(GgmlType::Q6_K)), (3, 169, 29));
    assert_eq!(model.get("tokenizer.ggml.tokens").and_then(|v| v.as_strings()).map(|all| all.len()), Some(600));
    // The same bytes from the same seed, in however many files.
    let again = narrow().write_like(&like, 1, &folder, "again").unwrap();
    let again = Gguf::open(&again[0]).unwrap();
    for t in &model.tensors {
        assert_eq!(model.data(t), again.data(again.tensor(&t.name).unwrap()), "{}", t.name);
    }
    let (code, told, _) = folder.told("run -m model-00001-of-00003.gguf --tokens 1,2,3 -n 1");
    assert_eq!((code, told["model"]["layers"].as_u64()), (0, Some(28)));
    let fewer = Synth { n_vocab: 512, ..narrow() };
    let refused = fewer.write_like(&Gguf::open(&paths[0]).unwrap(), 1, &folder, "none").unwrap_err().to_string();
    assert!(refused.contains("600 tokens, more than 512"), "{refused}");
}

/// What stays in memory of captured stages is bounded, so that depth costs nothing but room on disk. The margin is what a look
/// every 20 ms may miss of a short run.
#[test]
fn memory_does_not_grow_with_layers() {
    let took = |layers: usize, memory: &str| {
        let folder = folder_with(&Synth { n_layers: layers, n_heads: 8, head_dim: 32, n_ff: 256, ..Synth::default() });
        let run = format!("--prompt one-token --length 128 -n 0 --memory {memory}");
        let (code, told, screen) = folder.judged(&run);
        assert_eq!(code, 0, "{screen}");
        let of = |key: &str| told["memory"][key].as_u64().expect("it is told");
        assert_eq!(screen.contains("MiB were taken, more than the"), of("peak") > of("allowed"), "{screen}");
        (of("peak") >> 20, of("on_disk") >> 20)
    };
    let [(few, few_on_disk), (many, many_on_disk)] = [4, 24].map(|layers| took(layers, "0"));
    let (everything, nothing_on_disk) = took(24, "8G");
    assert!(many_on_disk > few_on_disk + 75 && nothing_on_disk == 0, "{few_on_disk} {many_on_disk} {nothing_on_disk}");
    assert!(many < few + 40, "{few} MiB of 4 layers, {many} MiB of 24");
    // What is on disk would be in memory otherwise: the figures are those of this process.
    assert!(everything > many + 45, "{many} MiB with a bound, {everything} MiB without");
}

/// A prompt takes the room on disk of the one before, and the report counts only its own.
#[test]
fn prompts_take_the_same_room_one_after_the_other() {
    let folder = folder_with(&Synth { n_layers: 4, ..Synth::default() });
    folder.write("prompts.txt", "long\nlong\none-token\n");
    folder.qdiff("run -m model.gguf --subject cpu --prompts prompts.txt -n 0 --memory 0 --json-dir all").exits(0);
    let on_disk = |name: &String| {
        let report = folder.json(&format!("all/{name}"));
        (
            report["run"]["prompt"]["tokens"].as_array().map_or(0, Vec::len),
            report["memory"]["on_disk"].as_u64().unwrap(),
        )
    };
    let told: Vec<_> = files(&folder.join("all")).iter().map(on_disk).collect();
    assert!(told[0] == told[1] && told[0].1 > 4 * told[2].1 && told[2].1 > 0, "{told:?}");
}

/// REPORT.md prints what `scripts/large-model` writes: every way alone, the first also with an empty cache.
#[test]
fn what_a_large_model_takes_is_told_whole() {
    let folder = folder();
    folder.create("results");
    folder.write("generate", "#!/bin/sh\ncp \"$2\" \"$4/model.gguf\" && echo \"$4/model.gguf\"\n");
    std::fs::set_permissions(folder.join("generate"), PermissionsExt::from_mode(0o755)).unwrap();
    let mut script = Command::new(markdown::root().join("scripts/large-model"));
    script.current_dir(&*folder).args(["./generate", binary("qdiff").to_str().unwrap(), "model.gguf", "--tmp", "."]);
    script.args(["--oracle", "auto,cpu", "--run", "--length 4 --memory 1G", "--json", "results/large.json"]);
    let said = Said::from(script.output().unwrap()).exits(0).stdout;
    assert_eq!(said.matches("\nrun        match: 4 + 2 tokens, 2 layers").count(), 3, "{said}");
    let told = folder.qdiff("qdiff-lab report results").exits(0).stdout;
    let rows: Vec<_> = told.lines().filter(|line| line.starts_with("| cpu | llama.cpp (cpu) | ")).collect();
    let begins = ["auto | empty | match | ", "auto | full | match | ", "cpu | full | match | "];
    assert!(rows.len() == 3 && rows.iter().zip(begins).all(|(row, ways)| row.contains(ways)), "{told}");
    assert!(told.contains("of 1.00 GiB allowed") && told.contains("--length 4 --memory 1G"), "{told}");
}
