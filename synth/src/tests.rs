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
    let room = Room { step: TOKENS.len(), context: 64, more: 0, threads: 1, gemm: Gemm::Own, kv: DType::F16.into() };
    let mut context = TappedContext::new(&load(bytes), &graph, room).unwrap();
    let step = context.step(&TOKENS, &Want::choice(&graph, &Store::usual(None))).unwrap();
    step.choice.expect("the last token's logits").get().data.clone()
}

/// Root mean square of the difference, relative to the spread of `a`.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len() as f32;
    let mean = a.iter().sum::<f32>() / n;
    let spread: f32 = a.iter().map(|x| (x - mean).powi(2)).sum();
    let diff: f32 = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum();
    (diff / spread).sqrt()
}

fn qwen3() -> Synth {
    Synth { arch: "qwen3", head_dim: 128, ..Synth::default() }
}

#[test]
fn every_weight_type_runs_close_to_f32() {
    // The search for an IQ format's codes takes its time: the models are small, and each has a thread.
    let small = |base: Synth| Synth { n_layers: 1, n_ff: 256, n_vocab: base_vocab(), ..base };
    std::thread::scope(|threads| {
        for base in [small(Synth::default()), small(qwen3())] {
            threads.spawn(move || every_weight_type_of(&base));
        }
    });
}

fn every_weight_type_of(base: &Synth) {
    let exact = run(&Synth { weight_type: GgmlType::F32, ..base.clone() }.to_bytes());
    for &weight_type in GgmlType::ALL_SUPPORTED {
        let logits = run(&Synth { weight_type, ..base.clone() }.to_bytes());
        assert_eq!(logits.len(), base.n_vocab);
        assert!(logits.iter().all(|x| x.is_finite()), "{} {weight_type:?}", base.arch);
        let d = distance(&exact, &logits);
        // Fewer than four bits a weight leave less of it.
        let bits = 8.0 * weight_type.type_size() as f32 / weight_type.block_size() as f32;
        let most = if bits > 4.0 { 0.5 } else { 1.6 };
        assert!(d < most, "{} {weight_type:?}: {d}", base.arch);
    }
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

#[test]
fn leaving_a_bias_out_shows() {
    let bytes = Synth { weight_type: GgmlType::F32, ..Synth::default() }.to_bytes();
    let whole = run(&bytes);
    for part in ["q", "k", "v"] {
        let mut bytes = bytes.clone();
        for layer in 0..2 {
            let name = format!("blk.{layer}.attn_{part}.bias");
            if part != "v" {
                let values = Synth::default().values(&name);
                assert!(values.iter().any(|x| (10.0..30.0).contains(&x.abs())));
            }
            patch(&mut bytes, &name, |raw| raw.fill(0));
        }
        let d = distance(&whole, &run(&bytes));
        assert!(d > 0.05, "{part}: {d}");
    }
}

#[test]
fn patch_reaches_single_blocks() {
    let model = Synth { weight_type: GgmlType::Q8_0, ..Synth::default() };
    let bytes = model.to_bytes();
    let mut patched = bytes.clone();
    patch(&mut patched, "blk.1.ffn_down.weight", |raw| {
        assert_eq!(raw.len(), 512 * 256 / 32 * 34);
        // The scale of the fourth block.
        raw[3 * 34..3 * 34 + 2].copy_from_slice(&half::f16::from_f32(8.0).to_le_bytes());
    });
    let start = tensor_range(&bytes, "blk.1.ffn_down.weight").start + 3 * 34;
    let changed: Vec<_> = (0..bytes.len()).filter(|&i| bytes[i] != patched[i]).collect();
    assert!(!changed.is_empty() && changed.iter().all(|i| (start..start + 2).contains(i)));
    assert!(distance(&run(&bytes), &run(&patched)) > 0.1);
}

#[test]
fn f32_tensor_holds_the_values() {
    let model = Synth { weight_type: GgmlType::F32, ..Synth::default() };
    let mut bytes = model.to_bytes();
    for name in model.tensor_names() {
        let values: Vec<u8> = model.values(&name).iter().flat_map(|x| x.to_le_bytes()).collect();
        patch(&mut bytes, &name, |raw| assert_eq!(raw, values, "{name}"));
    }
}

#[test]
#[should_panic(expected = "no tensor \"blk.9.attn_q.weight\"")]
fn override_of_an_unknown_tensor_panics() {
    let overrides = vec![("blk.9.attn_q.weight".into(), GgmlType::F16)];
    Synth { overrides, ..Synth::default() }.to_bytes();
}

#[test]
#[should_panic(expected = "not whole blocks")]
fn partial_blocks_panic() {
    Synth { n_ff: 480, weight_type: GgmlType::Q4_K, ..Synth::default() }.to_bytes();
}

#[test]
#[should_panic(expected = "no tensor")]
fn patch_of_an_unknown_tensor_panics() {
    patch(&mut Synth::default().to_bytes(), "nothing", |_| ());
}
