//! Models as Hugging Face's transformers writes them: folders of safetensors, judged without llama.cpp.

use qdiff_engine::quant::GgmlType;
use qdiff_synth::Synth;
use qdiff_tests::{Folder, Told, empty, unwrapped};
use serde_json::{Value, json};

fn small(arch: &'static str, weight_type: GgmlType, tied: bool) -> Synth {
    Synth { arch, weight_type, tied, ..Synth::default() }
}

/// A folder with the model as `hf`, and as `model.gguf`.
fn both(model: &Synth) -> Folder {
    let folder = empty();
    std::fs::create_dir(folder.join("hf")).unwrap();
    for (name, bytes) in model.to_folder().unwrap() {
        std::fs::write(folder.join("hf").join(name), bytes).unwrap();
    }
    model.write(&folder.join("model.gguf")).unwrap();
    folder
}

/// config.json with a key set, or taken out.
fn configure(folder: &Folder, key: &str, value: Value) {
    let mut config = folder.json("hf/config.json");
    config[key] = value;
    folder.write("hf/config.json", config.to_string());
}

#[test]
fn a_folder_is_judged_against_f64_alone() {
    for (arch, ty, tied) in
        [("qwen2", GgmlType::BF16, false), ("qwen3", GgmlType::F16, true), ("qwen2", GgmlType::F32, true)]
    {
        let folder = both(&small(arch, ty, tied));
        let (code, report, text) = folder.told("run -m hf --subject cpu -n 2");
        assert_eq!(code, 0, "{text}");
        assert!(text.starts_with("MATCH: no reference ran; "), "{text}");
        assert_eq!((&report["model"]["folder"], &report["reference"]["name"]), (&json!(true), &json!("none")));
        let stages = report.stages();
        assert!(!stages.is_empty() && stages.iter().all(|s| s["status"] == "alone"));
        // Rows that cannot be judged are why it is no match, not the reference that no folder has.
        let (code, _, text) = folder.told("run -m hf --subject cpu -n 0 --tolerance ffn_down=1");
        assert_eq!(code, 3, "{text}");
        let text = unwrapped(&text);
        assert!(
            text.contains("; this is no match, because ")
                && text.contains("could not be judged, of 2 stages: L00.ffn_down"),
            "{text}"
        );
        assert!(!text.contains("no reference ran, so this is no match"), "{text}");
        // The tokens are those that llama.cpp makes of the GGUF's vocabulary.
        let of = |model: &str| folder.qdiff(&format!("prompts code --tokens -m {model}")).exits(0).stdout;
        assert_eq!(of("hf"), of("model.gguf"));
    }
}

/// The values of a folder are those of the GGUF with the same weights, where that holds them as they are.
#[test]
fn a_folder_and_its_gguf_compute_the_same() {
    let folder = both(&small("qwen2", GgmlType::F32, false));
    folder.qdiff("record -m model.gguf --runner cpu -n 2 --out gguf").exits(0);
    let mut manifest = folder.json("gguf/manifest.json");
    manifest.as_object_mut().unwrap().remove("model_sha256");
    folder.write("gguf/manifest.json", manifest.to_string());
    let (code, report, text) = folder.told("run -m hf --subject cpu --reference capture:gguf");
    assert_eq!(code, 0, "{text}");
    let coverage = &report["verdict"]["coverage"];
    assert_eq!(coverage["identical"], coverage["compared"], "{text}");
}

#[test]
fn a_bug_is_named_without_a_gguf() {
    let folder = both(&small("qwen2", GgmlType::BF16, false));
    for (fault, stage, cause, name) in [
        ("rope-base:base=10000@L01", "L01.q_rope", "rope-base:base=10000", "rope_theta"),
        ("qkv-bias-omitted@L00.k_biased", "L00.k_biased", "qkv-bias-omitted", "model.layers.0.self_attn.k_proj.bias"),
    ] {
        let (code, report, text) = folder.told(&format!("run -m hf --subject cpu -n 1 --inject {fault}"));
        let first = &report["verdict"]["findings"][0];
        assert_eq!((code, &first["stage"], &first["cause"]["name"]), (1, &json!(stage), &json!(cause)), "{text}");
        assert!(first["cause"]["remedy"].as_str().unwrap().contains(name), "{text}");
    }
}

/// A command may be the reference; one that takes tokens waits for the subject's.
#[test]
fn a_command_may_be_the_reference() {
    let folder = both(&small("qwen3", GgmlType::BF16, false));
    folder.qdiff("record -m hf --runner cpu -n 2 --tokens 5,6,7 --out mine").exits(0);
    let command = "'cmd: cp mine/* {dir}; : {tokens} {decoded}'";
    let (code, report, text) =
        folder.told(&format!("run -m hf --subject cpu -n 2 --tokens 5,6,7 --reference {command}"));
    assert_eq!(code, 0, "{text}");
    assert!(report["reference"]["name"].as_str().unwrap().contains("run by its command"), "{text}");
    // Without one nobody chooses: the prompt is fed again, which is not what was recorded.
    let said = folder.qdiff(&format!("run -m hf -n 2 --tokens 5,6,7 --subject {command}")).exits(2);
    assert!(said.stderr.contains("other tokens than it should run"), "{said}");
}

#[test]
fn llama_cpp_is_asked_of_a_gguf_alone() {
    let folder = both(&small("qwen2", GgmlType::BF16, false));
    for line in ["run -m hf --subject cpu --reference llama", "run -m hf --subject llama"] {
        folder.refuses(line, &["folder of safetensors", "convert_hf_to_gguf.py", "--reference none"]);
    }
    // These know no `--reference none`, and do not advise it.
    for line in ["verify-oracle -m hf -n 0", "generate -m hf --subject cpu -n 2", "sweep -m hf --subject cpu"] {
        folder.refuses(line, &["folder of safetensors", "convert_hf_to_gguf.py and name the GGUF\n"]);
    }
}

/// On a folder these run without llama.cpp, and do not mention it.
#[test]
fn other_commands_take_a_folder() {
    let folder = both(&small("qwen2", GgmlType::BF16, false));
    let screen = folder.qdiff("logits -m hf --subject cpu -n 1 --tokens 5,6,7").exits(0).stdout;
    assert!(screen.starts_with("MATCH: all ") && screen.contains("no\n  reference ran"), "{screen}");
    assert!(screen.contains("rows in the projection") && !screen.contains("llama.cpp"), "{screen}");
    let screen = folder.qdiff("sweep -m hf --subject cpu --reference cpu --tokens 5,6,7,8,9").exits(0).stdout;
    assert!(screen.starts_with("MATCH"), "{screen}");
    assert!(folder.qdiff("inspect hf").exits(0).stdout.starts_with("hf: folder of safetensors"));
    assert!(folder.qdiff("weights hf").exits(0).stdout.contains("the safetensors crate's bit for bit"));
    folder.refuses("synth other --format safetensors --weights q8_0", &["--weights", "choose F32, F16 or BF16"]);
}

/// An error shows shapes and names as the files have them.
#[test]
fn a_tensor_that_is_wrong_is_told_in_the_words_of_its_file() {
    let model = small("qwen2", GgmlType::BF16, false);
    let run = "run -m hf --subject cpu -n 0 --tokens 5,6,7";
    let weights = std::fs::read(both(&model).join("hf/model.safetensors")).unwrap();
    // The shape of a tensor, which takes as many bytes of the header as before.
    let gate = br#""model.layers.0.mlp.gate_proj.weight":{"dtype":"BF16","shape":[512,256]"#;
    let at = weights.windows(gate.len()).position(|bytes| bytes == gate).unwrap() + gate.len() - 9;
    for shape in ["[256,512]", "[131072 ]"] {
        let folder = both(&model);
        folder.edit("hf/model.safetensors", |bytes| bytes[at..at + 9].copy_from_slice(shape.as_bytes()));
        let found = if shape == "[256,512]" { "[256, 512]" } else { "[131072]" };
        let said = format!("has shape {found}, and config.json says [512, 256]");
        folder.refuses(run, &["`model.layers.0.mlp.gate_proj.weight`", &said]);
    }
    let folder = both(&model);
    folder.edit("hf/model.safetensors", |bytes| {
        // The last weight of the last tensor.
        let last = bytes.len() - 2;
        bytes[last..].copy_from_slice(&[0xc0, 0x7f]);
    });
    let said = folder.qdiff(run).exits(2).stderr;
    assert!(said.contains("a weight of NaN") && (said.contains("`model.") || said.contains("`lm_head.")), "{said}");
    assert!(!said.contains("blk.") && !said.contains("convert the model"), "{said}");
}

/// An engine that gives infinity where f32 ends is not wrong; what follows of it cannot be judged, and nothing is a match.
#[test]
fn a_product_beyond_f32_is_no_fault_of_the_engine() {
    let folder = both(&small("qwen2", GgmlType::BF16, false));
    folder.edit("hf/model.safetensors", |bytes| {
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
        let begin = header["model.layers.0.self_attn.q_proj.weight"]["data_offsets"][0].as_u64().unwrap();
        // The largest BF16 as a weight of the first row.
        let at = data + begin as usize + 10;
        bytes[at..at + 2].copy_from_slice(&[0x7f, 0x7f]);
    });
    let tokens = "run -m hf --subject cpu -n 1 --tokens 5,6,7,8,9,10,11,12,13,14";
    let (code, report, text) = folder.told(tokens);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("L00.q_proj is beyond f32 in any engine") && !text.contains("no health check"), "{text}");
    let coverage = &report["verdict"]["coverage"];
    assert!(coverage["judged"].as_u64() < coverage["asked"].as_u64(), "{text}");
    // A fault upstream of the infinity is found, and one beside it.
    for fault in ["rms-weight-missing@L00.attn_norm", "qkv-bias-omitted@L00.k_biased"] {
        let (code, report, text) = folder.told(&format!("{tokens} --inject {fault}"));
        let stage = fault.split('@').next_back().unwrap();
        assert_eq!((code, &report["verdict"]["findings"][0]["stage"]), (1, &json!(stage)), "{text}");
    }
}

/// transformers takes the template's own file before what tokenizer_config.json says.
#[test]
fn the_chat_template_is_that_of_transformers() {
    let folder = both(&small("qwen2", GgmlType::BF16, true));
    let tokens = || folder.qdiff("prompts haiku --template model --tokens -m hf").exits(0).stdout;
    let template = |letter: &str| format!("{{% for m in messages %}}{letter}{{{{ m.content }}}}{{% endfor %}}");
    let config = |template: Value| json!({ "chat_template": template }).to_string();
    folder.write("hf/tokenizer_config.json", config(json!(template("A"))));
    let of_config = tokens();
    folder.write("hf/chat_template.jinja", template("Z"));
    let of_file = tokens();
    assert_ne!(of_file, of_config);
    folder.write("hf/tokenizer_config.json", config(json!([{"name": "default", "template": template("Z")}])));
    std::fs::remove_file(folder.join("hf/chat_template.jinja")).unwrap();
    assert_eq!(tokens(), of_file);
    folder.write("hf/tokenizer_config.json", config(json!(3)));
    folder.refuses("prompts haiku --tokens -m hf", &["hf/tokenizer_config.json", "`chat_template`"]);
    folder.write("hf/chat_template.jinja", [0xff]);
    folder.refuses("prompts haiku --tokens -m hf", &["hf/chat_template.jinja", "UTF-8"]);
}

/// A folder that says what no graph here computes, or what its files do not hold, is refused by name; no call panics.
#[test]
fn a_folder_that_is_not_understood_is_refused() {
    let model = small("qwen2", GgmlType::BF16, true);
    let run = "run -m hf --subject cpu -n 0";
    for (key, value) in [
        ("rope_scaling", json!({"type": "yarn", "factor": 4.0})),
        ("use_sliding_window", json!(true)),
        ("attention_bias", json!(false)),
        ("hidden_act", json!("gelu")),
        ("num_key_value_heads", json!(3)),
        ("num_hidden_layers", json!(3)),
        ("num_hidden_layers", json!(1)),
        ("intermediate_size", json!(500)),
        ("vocab_size", json!(16_000_000)),
        ("tie_word_embeddings", json!(false)),
        ("rms_norm_eps", json!(-1)),
    ] {
        let folder = both(&model);
        configure(&folder, key, value);
        let word = match key {
            "num_hidden_layers" => "layers",
            "intermediate_size" => "model.layers.0.mlp.gate_proj.weight",
            key => key,
        };
        folder.refuses(run, &["hf/", word]);
    }
    let folder = both(&model);
    let weights = std::fs::read(folder.join("hf/model.safetensors")).unwrap();
    for cut in [0, 7, 8, 200, weights.len() - 1] {
        std::fs::write(folder.join("hf/model.safetensors"), &weights[..cut]).unwrap();
        folder.refuses(run, &["hf/model.safetensors"]);
    }
    std::fs::remove_file(folder.join("hf/model.safetensors")).unwrap();
    folder.refuses(run, &["neither model.safetensors nor model.safetensors.index.json"]);
    for file in ["../model.gguf", "/etc/passwd", "x.bin"] {
        let index = json!({"weight_map": {"model.norm.weight": file}});
        folder.write("hf/model.safetensors.index.json", index.to_string());
        folder.refuses(run, &["hf/model.safetensors.index.json", "no .safetensors file of the folder"]);
    }
    // Without a tokenizer, or with another one, tokens can be given.
    let folder = both(&model);
    let tokenizer = folder.json("hf/tokenizer.json").to_string();
    folder.write("hf/tokenizer.json", tokenizer.replace("NFC", "NFKC"));
    folder.refuses(run, &["tokenizer.json", "normalizer", "--tokens"]);
    folder.qdiff(&format!("{run} --tokens 5,6,7")).exits(0);
}

/// A model in several files is the model in one.
#[test]
fn shards_are_read_by_their_index() {
    let folder = both(&small("qwen3", GgmlType::BF16, false));
    let run = "run -m hf --subject cpu -n 0 --tokens 5,6,7";
    folder.qdiff(run).exits(0);
    let whole = std::fs::read(folder.join("hf/model.safetensors")).unwrap();
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    let mut map = serde_json::Map::new();
    let mut shards = [(serde_json::Map::new(), Vec::new()), (serde_json::Map::new(), Vec::new())];
    for (i, (name, entry)) in header.as_object().unwrap().iter().filter(|(n, _)| *n != "__metadata__").enumerate() {
        let offsets: Vec<usize> = serde_json::from_value(entry["data_offsets"].clone()).unwrap();
        let (entries, data) = &mut shards[i % 2];
        let mut entry = entry.clone();
        entry["data_offsets"] = json!([data.len(), data.len() + offsets[1] - offsets[0]]);
        data.extend_from_slice(&whole[8 + length..][offsets[0]..offsets[1]]);
        entries.insert(name.clone(), entry);
        map.insert(name.clone(), json!(format!("model-{}.safetensors", i % 2)));
    }
    for (i, (entries, data)) in shards.iter().enumerate() {
        let header = Value::Object(entries.clone()).to_string();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
        std::fs::write(folder.join(format!("hf/model-{i}.safetensors")), bytes).unwrap();
    }
    folder.write("hf/model.safetensors.index.json", json!({"weight_map": map}).to_string());
    folder.refuses(run, &["is beside model.safetensors.index.json"]);
    std::fs::remove_file(folder.join("hf/model.safetensors")).unwrap();
    let (code, report, text) = folder.told(run);
    assert_eq!(code, 0, "{text}");
    assert_eq!(report.stages().len(), 45, "{text}");
    std::fs::remove_file(folder.join("hf/model-1.safetensors")).unwrap();
    folder.refuses(run, &["hf/model-1.safetensors", "no such file", "model.safetensors.index.json says that it holds"]);
}
