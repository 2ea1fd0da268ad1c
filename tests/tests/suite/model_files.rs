//! Model files that are bad in one way each: `qdiff run` names key or tensor and what is expected, in one
//! line, independent of llama.cpp's answer to the same file.

use super::gguf_files::{Case, Expected, classes, refused, stricter, taken};
use super::llama_says::Asked;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::quant::{GgmlType, Part};
use qdiff_tests::synth::{Kv, Synth, patch};
use qdiff_tests::{empty, exact, folder_with, headline};

/// As `qdiff run` says it; a good one is inspected, which is faster.
#[track_caller]
fn check(case: &Case) {
    let folder = empty();
    folder.write("bad.gguf", &case.bytes);
    match case.expected {
        Expected::Taken => drop(folder.qdiff("inspect bad.gguf").exits(0)),
        Expected::Refused(words) | Expected::Stricter(words, _) => {
            folder.refuses("run -m bad.gguf", &[words, &["bad.gguf: "]].concat());
            // All readable facts of the file come before the same line.
            let said = folder.qdiff("inspect bad.gguf").exits(2);
            assert!(words.iter().all(|word| said.stderr.contains(word)), "{words:?}: {said}");
        }
    }
}

/// A model of little work.
fn tiny() -> Synth {
    Synth { n_embd: 64, n_heads: 2, n_kv_heads: 1, head_dim: 32, n_ff: 64, ..Synth::default() }
}

/// It, with other metadata.
fn with(change: impl FnOnce(&mut Kv)) -> Vec<u8> {
    tiny().to_bytes_with(change)
}

/// It, with one integer set.
fn integer(key: &str, value: u32) -> Vec<u8> {
    with(|kv| kv.u32(key, value))
}

/// It, with one real set.
fn real(key: &str, value: f32) -> Vec<u8> {
    with(|kv| kv.f32(key, value))
}

/// It, without a key.
fn without(key: &str) -> Vec<u8> {
    with(|kv| kv.remove(key))
}

/// It, with another type of one tensor.
fn stored(tensor: &str, ty: GgmlType) -> Vec<u8> {
    Synth { overrides: vec![(tensor.to_owned(), ty)], ..tiny() }.to_bytes()
}

/// It, with its tokens changed.
fn tokens(change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Vec<u8> {
    let mut all: Vec<_> = (0..512).map(|i| format!("token{i}").into_bytes()).collect();
    change(&mut all);
    with(|kv| kv.strings(TOKENS, &all))
}

/// It, with another kind of tokenizer.
fn kind(model: &str) -> Vec<u8> {
    with(|kv| kv.string("tokenizer.ggml.model", model))
}

/// Tokens of a SentencePiece vocabulary: every byte, then others.
fn pieces(first_byte: u32) -> Vec<u8> {
    let spelled = (first_byte..256).map(|byte| format!("<0x{byte:02X}>"));
    let others = (0..).map(|i| format!("piece{i}"));
    let all: Vec<String> = spelled.chain(others).take(512).collect();
    with(|kv| {
        kv.string("tokenizer.ggml.model", "llama");
        kv.strings(TOKENS, &all);
        kv.f32s("tokenizer.ggml.scores", &[0.0; 512]);
    })
}

/// It, with its data aligned to `bytes` and begun at an offset whose remainder by 32 is as `wanted`.
fn aligned(bytes: u32, wanted: impl Fn(u64) -> bool) -> Vec<u8> {
    let named = |n| with(|kv| (kv.align(bytes), kv.string("general.name", &"x".repeat(n))).1);
    let offset =
        |file: &Vec<u8>| Gguf::from_bytes(file.clone()).expect("the parser takes any alignment").parts()[0].data_offset;
    (0..64).map(named).find(|file| wanted(offset(file) % 32)).expect("a name as long as it takes")
}

/// It, with another name of a tensor, equally long.
fn renamed(from: &str, to: &str) -> Vec<u8> {
    let mut file = tiny().to_bytes();
    let at = file.windows(from.len()).position(|w| w == from.as_bytes()).expect("the tensor is there");
    file[at..at + from.len()].copy_from_slice(to.as_bytes());
    file
}

/// A model whose rows are two blocks of any format and more.
fn wide(weight_type: GgmlType) -> Synth {
    Synth { weight_type, n_embd: 512, head_dim: 256, n_ff: 512, ..tiny() }
}

/// It, with these upper bits of a scale or an offset of the second block in the fourth row of a matrix.
fn damaged(ty: GgmlType, part: Part, top: u8) -> Vec<u8> {
    let mut file = wide(ty).to_bytes();
    let field = ty.format().and_then(|f| f.field(part)).expect("the format has the field");
    patch(&mut file, DAMAGED, |bytes| bytes[3 * ty.row_bytes(512) + ty.type_size()..][field.bytes.end - 1] = top);
    file
}

const DAMAGED: &str = "blk.1.attn_q.weight";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const EPS: &str = "qwen2.attention.layer_norm_rms_epsilon";
const BASE: &str = "qwen2.rope.freq_base";
const PARTLY_ROTATED: &[&str] =
    &["metadata key `qwen2.rope.dimension_count` is", "RoPE that rotates a part of each head is not supported yet"];
const NO_ALIGNMENT: &[&str] = &["`general.alignment` is", "32 or a greater power of 2"];
const NAN: &str = "no engine can be right with it";
const NOT_QWEN: &str = "what it makes of one depends on its entries";
const NOT_THIS: &str = "it computes by the key as another model would";

classes! {
    check;

    a_good_model: [taken(tiny().to_bytes()), taken(Synth { arch: "qwen3", ..tiny() }.to_bytes())];
    duplicate_tokens: [
        refused(&[TOKENS, r#"tokens 3 and 7 of"#, r#"are both "token3""#], tokens(|all| all[7] = all[3].clone())),
    ];
    /// A NUL cuts a token in llama.cpp, which may make it one that is there.
    tokens_with_nul: [
        refused(&["token 7", "NUL"], tokens(|all| all[7] = b"token3\0rest".to_vec())),
        stricter("llama.cpp cuts it", &["token 7", "NUL"], tokens(|all| all[7] = b"other\0rest".to_vec())),
    ];
    empty_and_other_tokens_load: [
        taken(tokens(|all| (all[7], all[8]) = (Vec::new(), Vec::new()))),
        taken(tokens(|all| all[9] = b"\xff\xfe".to_vec())),
    ];
    as_many_tokens_as_rows: [
        refused(&[TOKENS, "511 tokens", "512 rows"], tokens(|all| drop(all.pop()))),
        refused(&[TOKENS, "513 tokens", "512 rows"], tokens(|all| all.push(b"one more".to_vec()))),
        refused(&[TOKENS, "0 tokens"], tokens(Vec::clear)),
    ];
    token_lists_of_another_type: [
        refused(&[TOKENS, "array of strings"], with(|kv| kv.i32s(TOKENS, &[1; 512]))),
        refused(&[TYPES, "array of i32"], with(|kv| kv.f32s(TYPES, &[1.0; 512]))),
        refused(&[SCORES, "array of f32"], with(|kv| kv.strings(SCORES, &[""; 512]))),
        refused(&["tokenizer.ggml.merges", "array of strings"], with(|kv| kv.i32s("tokenizer.ggml.merges", &[1]))),
    ];
    short_lists: [
        refused(&[TYPES, "511 entries for 512 tokens"], with(|kv| kv.i32s(TYPES, &[1; 511]))),
        refused(&[SCORES, "3 entries for 512 tokens"], with(|kv| kv.f32s(SCORES, &[0.0; 3]))),
        taken(with(|kv| kv.i32s(TYPES, &[1; 513]))),
    ];
    merges_that_name_no_token_load: [taken(with(|kv| kv.strings("tokenizer.ggml.merges", &["no such", "x", "", " "])))];
    vocabularies_that_are_missing: [
        refused(&[TOKENS], without(TOKENS)),
        refused(&["tokenizer.ggml.merges"], without("tokenizer.ggml.merges")),
        refused(&["tokenizer.ggml.model"], without("tokenizer.ggml.model")),
        refused(&["tokenizer.ggml.model", "is `none`", "expected `gpt2`"], kind("none")),
    ];
    /// No Qwen model has such a vocabulary.
    vocabularies_of_another_kind: [
        stricter(NOT_QWEN, &["is `rwkv`: expected `gpt2`"], kind("rwkv")),
        stricter(NOT_QWEN, &["is `t5`"], kind("t5")),
        stricter(NOT_QWEN, &["is `bert`"], kind("bert")),
        refused(&["is `plamo2`"], kind("plamo2")),
        refused(&["is `nonsense`"], kind("nonsense")),
    ];
    sentencepiece_without_its_bytes: [
        taken(pieces(0)),
        refused(&["no token <0x00>", "every byte"], pieces(256)),
    ];

    zero_hyperparameters: [
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
    ].map(|key| refused(&["metadata key `qwen2.", "is 0", "between 1 and 2^24"], integer(&format!("qwen2.{key}"), 0)));
    absurd_hyperparameters: [
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
    ].map(|key| refused(&["metadata key `qwen2.", "is 4294967295"], integer(&format!("qwen2.{key}"), u32::MAX)));
    a_context_of_none_or_too_many: [0, u32::MAX].map(|n| {
        stricter("llama.cpp believes it", &["`qwen2.context_length`", "between 1 and 2^24"], integer("qwen2.context_length", n))
    });
    more_layers_than_there_are: [
        refused(&["`qwen2.block_count` is 65535", "at most 512"], integer("qwen2.block_count", 65_535)),
        refused(&["`qwen2.block_count` is 512", "no tensor `blk.511."], integer("qwen2.block_count", 512)),
        refused(&["`qwen2.block_count` is 3", "no tensor `blk.2."], integer("qwen2.block_count", 3)),
    ];
    fewer_layers_than_there_are: [refused(&["tensor `blk.1.", "of 1 layers"], integer("qwen2.block_count", 1))];
    heads_that_do_not_divide: [
        refused(&["`qwen2.attention.head_count` is 3"], integer("qwen2.attention.head_count", 3)),
        refused(&["`qwen2.attention.head_count_kv` is 3"], integer("qwen2.attention.head_count_kv", 3)),
        refused(&["`qwen2.attention.head_count` is 128"], integer("qwen2.attention.head_count", 128)),
        refused(&["`qwen2.attention.head_count` is 64", "even length"], integer("qwen2.attention.head_count", 64)),
    ];
    shapes_that_contradict: [
        refused(&["tensor `token_embd.weight` has shape"], integer("qwen2.embedding_length", 96)),
        refused(&["tensor `blk.0.ffn_gate.weight` has shape"], integer("qwen2.feed_forward_length", 96)),
        refused(&["tensor `blk.0.attn_k.weight` has shape"], integer("qwen2.attention.head_count_kv", 2)),
        refused(&["tensor `blk.0.attn_q.weight` has shape"], integer("qwen2.attention.key_length", 16)),
    ];
    rope_dimensions: [0, 33, 64, u32::MAX].map(|n| {
        refused(&["metadata key `qwen2.rope.dimension_count` is", "convert the model again"], integer("qwen2.rope.dimension_count", n))
    });
    heads_that_are_rotated_in_part: [2, 16].map(|n| {
        refused(PARTLY_ROTATED, integer("qwen2.rope.dimension_count", n))
    });
    value_heads_of_another_length: [
        refused(&["`qwen2.attention.value_length` is 16", "not supported yet"], integer("qwen2.attention.value_length", 16)),
    ];
    experts: [
        refused(&["`qwen2.expert_used_count` is 2"], integer("qwen2.expert_used_count", 2)),
        refused(&["`qwen2.expert_group_count` is 2"], integer("qwen2.expert_group_count", 2)),
        refused(&["`qwen2.expert_count` is 8"], integer("qwen2.expert_count", 8)),
        refused(&["`qwen2.expert_count` is 4000000000"], integer("qwen2.expert_count", 4_000_000_000)),
        taken(integer("qwen2.expert_count", 0)),
    ];
    keys_that_make_another_model: [
        stricter(NOT_THIS, &["`qwen2.attention.causal` is false"], with(|kv| kv.bool("qwen2.attention.causal", false))),
        stricter(NOT_THIS, &["`qwen2.rope.scale_linear` is NaN"], real("qwen2.rope.scale_linear", f32::NAN)),
        stricter(NOT_THIS, &["`qwen2.rope.scaling.type` is `longrope`", "not supported yet"], with(|kv| kv.string("qwen2.rope.scaling.type", "longrope"))),
        stricter(NOT_THIS, &["`qwen2.attention.sliding_window` is 64"], integer("qwen2.attention.sliding_window", 64)),
        taken(real("qwen2.rope.scaling.factor", 4.0)),
    ];

    epsilons: [
        refused(&[EPS, "is -1e-5", "from 0.0 to 1.0"], real(EPS, -1e-5)),
        refused(&[EPS, "is NaN", "from 0.0 to 1.0"], real(EPS, f32::NAN)),
        stricter(NAN, &[EPS, "is inf", "from 0.0 to 1.0"], real(EPS, f32::INFINITY)),
        refused(&[EPS, "is missing"], without(EPS)),
        taken(real(EPS, 0.0)),
    ];
    rope_bases: [0.0, -10_000.0, f32::NAN, f32::INFINITY, 0.5].map(|base| {
        stricter(NAN, &["metadata key `qwen2.rope.freq_base` is", "expected a number from 1.0 to 1e30"], real(BASE, base))
    });
    hyperparameters_of_another_type: [
        refused(&[EPS, "is of type u32, expected f32"], integer(EPS, 1)),
        refused(&[BASE, "is of type u32, expected f32"], integer(BASE, 1_000_000)),
        refused(&["qwen2.block_count", "is of type f32, expected u32"], real("qwen2.block_count", 2.0)),
        refused(&["qwen2.attention.head_count_kv", "is of type str"], with(|kv| kv.string("qwen2.attention.head_count_kv", "1"))),
        refused(&["general.architecture", "is of type u32"], integer("general.architecture", 2)),
        stricter("one number a layer: no graph has it", &["qwen2.attention.head_count", "is of type arr: expected u32; a value for each layer is not supported yet"],
            with(|kv| kv.i32s("qwen2.attention.head_count", &[2, 2]))),
    ];
    hyperparameters_that_are_missing: [
        "qwen2.block_count", "qwen2.context_length", "qwen2.embedding_length", "qwen2.attention.head_count",
        "qwen2.feed_forward_length", "general.architecture",
    ].map(|key| refused(&["metadata key `", "is missing"], without(key)));

    alignments_that_cannot_be_mapped: [1, 2, 16].map(|bytes| refused(NO_ALIGNMENT, aligned(bytes, |rest| rest > 0)));
    alignments_that_can_be_mapped_by_chance: [
        stricter("its next version, with a longer name, might not load", NO_ALIGNMENT, aligned(16, |rest| rest == 0)),
    ];
    a_greater_alignment_loads: [taken(with(|kv| kv.align(4096)))];
    norms_and_biases_that_are_not_f32: [
        refused(&["tensor `blk.0.attn_norm.weight` is stored as F16, expected F32"], stored("blk.0.attn_norm.weight", GgmlType::F16)),
        refused(&["tensor `blk.1.attn_k.bias` is stored as F16, expected F32"], stored("blk.1.attn_k.bias", GgmlType::F16)),
        refused(&["tensor `output_norm.weight` is stored as BF16, expected F32"], stored("output_norm.weight", GgmlType::BF16)),
        refused(&["tensor `blk.0.attn_q.bias` is stored as Q8_0, expected F32"], stored("blk.0.attn_q.bias", GgmlType::Q8_0)),
    ];
    tensors_that_are_missing_or_too_many: [
        refused(&["tensor `blk.0.attn_k.bias` is missing", "without it is not supported yet"], renamed("blk.0.attn_k.bias", "blk.0.attn_k.bits")),
        refused(&["tensor `blk.1.ffn_up.weight` is missing"], renamed("blk.1.ffn_up.weight", "blk.1.ffn_xp.weight")),
        refused(&["tensor `token_embd.weight` is missing"], renamed("token_embd.weight", "tokem_embd.weight")),
        refused(&["tensor `outpux.weight` is none that qdiff knows of a qwen2 model of 2 layers"], renamed("\0output.weight", "\0outpux.weight")),
    ];

    /// A block whose scale or offset is NaN or infinite is the file's own fault, named with tensor, block and byte; so is a number.
    weights_that_are_not_finite: [
        (GgmlType::Q5_0, Part::Scale, 0x7e), (GgmlType::Q8_0, Part::Scale, 0x7c), (GgmlType::Q4_1, Part::Offset, 0xfc),
        (GgmlType::Q4_K, Part::Offset, 0x7f), (GgmlType::Q6_K, Part::Scale, 0x7f),
    ].map(|(ty, part, top)| {
        stricter(NAN, &["tensor `blk.1.attn_q.weight` (", "row 3, block 1 ", "byte ", "the file itself is damaged"], damaged(ty, part, top))
    });
    numbers_that_are_not_finite: [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|x| {
        let mut file = exact().to_bytes();
        for tensor in ["blk.0.ffn_norm.weight", "blk.1.ffn_norm.weight"] {
            patch(&mut file, tensor, |bytes| bytes[4 * 5..][..4].copy_from_slice(&x.to_le_bytes()));
        }
        stricter(NAN, &["tensor `blk.0.ffn_norm.weight` (F32)", "row 0, block 5 ", "1 other tensor as well"], file)
    });
}

/// llama.cpp takes what qdiff takes, and what qdiff refuses on purpose.
#[test]
fn llama_cpp_agrees() {
    all().agree(Asked::Model);
}

/// If only llama.cpp finds the defect, qdiff prints its words; `inspect` prints all readable facts of the file first.
#[test]
fn what_llama_cpp_refuses() {
    let folder = empty();
    folder.write("bad.gguf", with(|kv| kv.string("tokenizer.ggml.pre", "nonsense")));
    let words = "llama.cpp cannot load bad.gguf: llama_model_load: error loading model: error loading model vocabulary: \
                 unknown pre-tokenizer type: 'nonsense'";
    folder.refuses("run -m bad.gguf", &[words]);
    let said = folder.qdiff("inspect bad.gguf --json told.json").exits(2);
    assert!(said.stderr.contains(words) && said.stdout.contains("stages: embed "), "{said}");
    assert_eq!(folder.json("told.json")["graph"]["stages"], 47);
}

/// `weights` names the damage and compares nothing behind it; of two files it says what both hold.
#[test]
fn weights_of_a_damaged_file() {
    let folder = folder_with(&tiny());
    folder.write("bad.gguf", damaged(GgmlType::Q5_0, Part::Scale, 0x7e));
    folder.refuses("weights bad.gguf", &["tensor `blk.1.attn_q.weight` (Q5_0): row 3, block 1 holds a weight of NaN"]);
    folder.write("good.gguf", wide(GgmlType::Q5_0).to_bytes());
    let (code, json, text) = folder.told("weights bad.gguf --against good.gguf");
    assert_eq!((code, &json["check"]["mismatches"][0]["cause"]), (1, &serde_json::Value::Null), "{text}");
    let damage = &json["check"]["not_finite"][0];
    assert_eq!(
        (&damage["tensor"], &damage["row"], &damage["block"]),
        (&DAMAGED.into(), &3.into(), &1.into()),
        "{text}"
    );
    let (code, _, text) = folder.told("weights bad.gguf --against bad.gguf");
    assert!(code == 0 && headline(&text).contains("NaN or infinity in 1 tensor included"), "{text}");
}

/// Keys by which a model is computed make two files differ; keys that describe a file are listed.
#[test]
fn metadata_of_two_files() {
    let folder = folder_with(&tiny());
    let against = |change: &dyn Fn(&mut Kv)| {
        folder.write("other.gguf", with(change));
        folder.told("weights model.gguf --against other.gguf")
    };
    let (code, json, text) = against(&|kv| kv.f32(BASE, 10_000.0));
    assert_eq!((code, json["check"]["metadata"].as_array().map(Vec::len)), (1, Some(1)), "{text}");
    assert!(
        text.starts_with("DIVERGED at metadata key qwen2.rope.freq_base: 1000000.0 (f32) where 10000.0 (f32) belongs"),
        "{text}"
    );
    let (_, _, text) = against(&|kv| kv.i32s(TYPES, &[1; 512]));
    assert!(text.contains("metadata key tokenizer.ggml.token_type["), "{text}");
    let (_, _, text) = against(&|kv| kv.remove("tokenizer.chat_template"));
    assert!(
        text.contains("tokenizer.chat_template: \"") && text.contains("only in the file under suspicion"),
        "{text}"
    );
    let (code, json, text) = against(&|kv| kv.string("general.name", "another"));
    assert_eq!((code, &json["check"]["metadata"][0]["computes"]), (0, &false.into()), "{text}");
    assert!(text.starts_with("MATCH") && text.contains("general.name"), "{text}");
    let nan = |kv: &mut Kv| kv.f32("qwen2.own", f32::NAN);
    folder.write("model.gguf", with(nan));
    assert_eq!(against(&nan).0, 0, "NaN is NaN");
}
