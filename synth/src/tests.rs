//! The synthetic models, loaded and run by llama.cpp itself.

use super::*;
use qdiff::capture::{Store, Want};
use qdiff::llama::context::TappedContext;
use qdiff::room::Room;
use qdiff_engine::cuda::Gemm;
use qdiff_engine::dtype::DType;
use qdiff_engine::gguf::Gguf;
use std::sync::Arc;

const TOKENS: [u32; 5] = [39, 68, 75, 75, 78];

fn load(bytes: &[u8]) -> Arc<qdiff::llama::Model> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Arc::new(qdiff::llama::Model::load(file.path(), qdiff::llama::Load::Cpu).expect("the model loads"))
}

/// The logits after the last of [`TOKENS`].
fn run(bytes: &[u8]) -> Vec<f32> {
    let graph = model::build(&Gguf::from_bytes(bytes.to_vec()).unwrap()).unwrap();
    let room = Room {
        step: TOKENS.len(),
        context: 64,
        more: 0,
        threads: 1,
        gemm: Gemm::Own,
        kv: DType::F16.into(),
        ..Room::default()
    };
    let mut context = TappedContext::new(&load(bytes), &graph, room).unwrap();
    let step = context.step(&TOKENS, &Want::choice(&graph, &Store::usual(None))).unwrap();
    step.choice.expect("the last token's logits").get().data.clone()
}

fn qwen3() -> Synth {
    Synth { arch: "qwen3", head_dim: 128, ..Synth::default() }
}

#[test]
fn text_round_trips() {
    let llama = load(&Synth::default().to_bytes());
    let tokenize = |text: &str| llama.tokenize(text.as_bytes(), true).unwrap();
    // Nothing stands before them.
    let hello = tokenize("Hello world");
    assert_eq!(hello.len(), 2, "{hello:?}");
    for text in ["Hello world", "What is the model?\n\nÜber 12 %", "<|im_start|>user\nHello<|im_end|>\n"] {
        let pieces = tokenize(text).into_iter().map(|t| llama.piece_bytes(t, true).unwrap());
        assert_eq!(pieces.collect::<Vec<_>>().concat(), text.as_bytes());
    }
    let last = base_vocab() as u32 - 1;
    assert_eq!(llama.metadata("tokenizer.ggml.eos_token_id"), Some(last.to_string()));
    assert!(llama.metadata("tokenizer.chat_template").is_some());
    assert_eq!(tokenize("<|im_end|>"), [last]);
}

#[test]
fn merges_and_tokens_are_consistent() {
    let v = vocab::Vocab::build();
    let mut seen = std::collections::BTreeSet::new();
    assert!(v.tokens.iter().all(|t| seen.insert(t)), "a token occurs twice");
    for merge in &v.merges {
        let (left, right) = merge.split_once(' ').unwrap();
        for token in [left, right, &format!("{left}{right}")] {
            assert!(seen.contains(&token.to_owned()), "{token:?}");
        }
    }
    assert_eq!(v.types.len(), v.tokens.len());
    assert!(base_vocab() <= Synth::default().n_vocab, "{}", base_vocab());
}

#[test]
fn smallest_vocabulary_tied_and_mixed_types_load() {
    let overrides = vec![("blk.0.attn_v.weight".into(), GgmlType::Q6_K), ("token_embd.weight".into(), GgmlType::Q5_0)];
    let model = Synth { n_vocab: base_vocab(), tied: true, weight_type: GgmlType::Q4_K, overrides, ..Synth::default() };
    assert!(!model.tensor_names().contains(&"output.weight".into()));
    let bytes = model.to_bytes();
    assert_eq!(tensor_range(&bytes, "blk.0.attn_v.weight").len(), 256 * 128 / 256 * 210);
    assert!(run(&bytes).iter().all(|x| x.is_finite()));
}

#[test]
fn bytes_follow_the_seed() {
    let model = Synth::default();
    assert_eq!(model.to_bytes(), model.to_bytes());
    let other = Synth { seed: 2, ..model.clone() };
    assert_ne!(model.to_bytes(), other.to_bytes());
    assert_eq!(model.values("output.weight"), qwen3().values("output.weight"));
}
