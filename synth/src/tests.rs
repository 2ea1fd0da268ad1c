//! The synthetic models, loaded and run by llama.cpp itself.

use std::ffi::CString;

use super::*;
use llama_cpp_sys_2 as sys;

/// A log that keeps nothing.
unsafe extern "C" fn silent(_: sys::ggml_log_level, _: *const std::ffi::c_char, _: *mut std::ffi::c_void) {}

/// A model and a context of llama.cpp, freed on drop.
struct Llama {
    model: *mut sys::llama_model,
    ctx: *mut sys::llama_context,
    _file: tempfile::NamedTempFile,
}

impl Llama {
    fn load(bytes: &[u8]) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let path = CString::new(file.path().to_str().unwrap()).unwrap();
        // SAFETY: the path is a C string, the parameters are the defaults with
        // plain numbers changed, and the context is made of the live model.
        unsafe {
            sys::llama_log_set(Some(silent), std::ptr::null_mut());
            sys::llama_backend_init();
            let mut mp = sys::llama_model_default_params();
            mp.n_gpu_layers = 0;
            mp.check_tensors = true;
            let model = sys::llama_model_load_from_file(path.as_ptr(), mp);
            assert!(!model.is_null(), "the model does not load");
            let mut cp = sys::llama_context_default_params();
            cp.n_ctx = 64;
            cp.n_threads = 1;
            cp.n_threads_batch = 1;
            let ctx = sys::llama_init_from_model(model, cp);
            assert!(!ctx.is_null(), "no context");
            Self { model, ctx, _file: file }
        }
    }

    fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is live.
        unsafe { sys::llama_model_get_vocab(self.model) }
    }

    fn tokenize(&self, text: &str) -> Vec<i32> {
        let mut tokens = vec![0; 256];
        let (from, to, room) = (text.as_ptr().cast(), tokens.as_mut_ptr(), tokens.len() as i32);
        // SAFETY: the text and the buffer are live and of the stated lengths.
        let n = unsafe { sys::llama_tokenize(self.vocab(), from, text.len() as i32, to, room, true, true) };
        tokens.truncate(usize::try_from(n).expect("room for the tokens"));
        tokens
    }

    fn text(&self, tokens: &[i32]) -> String {
        let mut buffer = vec![0_u8; 1024];
        let (from, count, to, room) = (tokens.as_ptr(), tokens.len() as i32, buffer.as_mut_ptr().cast(), 1024);
        // SAFETY: the tokens and the buffer are live and of the stated lengths.
        let n = unsafe { sys::llama_detokenize(self.vocab(), from, count, to, room, false, true) };
        buffer.truncate(usize::try_from(n).expect("room for the text"));
        String::from_utf8(buffer).unwrap()
    }

    /// The logits after the last of `tokens`.
    fn logits(&self, tokens: &[i32]) -> Vec<f32> {
        let mut tokens = tokens.to_vec();
        // SAFETY: the batch points to live tokens; the logits are those of the
        // last token, one per token of the vocabulary, copied before the next call.
        unsafe {
            let batch = sys::llama_batch_get_one(tokens.as_mut_ptr(), tokens.len() as i32);
            assert_eq!(sys::llama_decode(self.ctx, batch), 0);
            let count = sys::llama_vocab_n_tokens(self.vocab()) as usize;
            std::slice::from_raw_parts(sys::llama_get_logits_ith(self.ctx, -1), count).to_vec()
        }
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        // SAFETY: both were made in `load` and are freed once.
        unsafe {
            sys::llama_free(self.ctx);
            sys::llama_model_free(self.model);
        }
    }
}

const TOKENS: [i32; 5] = [39, 68, 75, 75, 78];

fn run(bytes: &[u8]) -> Vec<f32> {
    Llama::load(bytes).logits(&TOKENS)
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
    for base in [Synth::default(), qwen3()] {
        let exact = run(&Synth { weight_type: GgmlType::F32, ..base.clone() }.to_bytes());
        for &weight_type in GgmlType::ALL_SUPPORTED {
            let logits = run(&Synth { weight_type, ..base.clone() }.to_bytes());
            assert_eq!(logits.len(), base.n_vocab);
            assert!(logits.iter().all(|x| x.is_finite()), "{} {weight_type:?}", base.arch);
            let d = distance(&exact, &logits);
            assert!(d < 0.5, "{} {weight_type:?}: {d}", base.arch);
        }
    }
}

#[test]
fn text_round_trips() {
    let llama = Llama::load(&Synth::default().to_bytes());
    let hello = llama.tokenize("Hello world");
    assert_eq!(hello.len(), 2, "{hello:?}");
    for text in ["Hello world", "What is the model?\n\nÜber 12 %", "<|im_start|>user\nHello<|im_end|>\n"] {
        assert_eq!(llama.text(&llama.tokenize(text)), text);
    }
    // SAFETY: the vocabulary is live.
    unsafe {
        assert!(!sys::llama_vocab_get_add_bos(llama.vocab()));
        assert_eq!(sys::llama_vocab_eos(llama.vocab()), base_vocab() as i32 - 1);
        assert!(!sys::llama_model_chat_template(llama.model, std::ptr::null()).is_null());
    }
    assert_eq!(*llama.tokenize("<|im_end|>"), [base_vocab() as i32 - 1]);
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
#[should_panic(expected = "unknown tensor")]
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
