//! Runs candle's quantised Qwen2 on the tokens that qdiff gives it, and dumps every stage.
//!
//! Usage: engine-candle MODEL TOKENS DECODED      files with one token id a line: the prompt, and what is fed after it

// The model of candle-transformers, unchanged but for the taps.
#[expect(dead_code)]
mod models {
    pub mod quantized_qwen2;
    pub mod with_tracing;
}
#[expect(dead_code)]
mod quantized_nn;
#[expect(dead_code)]
mod quantized_var_builder;
#[expect(dead_code)]
mod utils;

use candle::quantized::{GgmlDType, gguf_file};
use candle::{Device, Result, Tensor};
use models::quantized_qwen2::ModelWeights;
use qdiff_tap::Tap;
use std::cell::Cell;
use std::fs::File;
use std::sync::OnceLock;

/// What candle 0.11 multiplies weights of each format with on x86-64 (k_quants.rs, repack_x86.rs): activations in blocks, whose
/// halves are rounded away from zero.
const ARITHMETIC: &str = r#""arithmetic": {"linear": [
    {"weights": "q4_0", "activations": "q8_0_ref"}, {"weights": "q5_0", "activations": "q8_0_ref"},
    {"weights": "q8_0", "activations": "q8_0_ref"}, {"weights": "q4_K", "activations": "q8_K_away"},
    {"weights": "q5_K", "activations": "q8_K_away"}, {"weights": "q6_K", "activations": "q8_K_away"}]}"#;

static TAP: OnceLock<Tap> = OnceLock::new();

thread_local! {
    static LAYER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Sets the layer of the next taps.
fn in_layer(layer: Option<usize>) {
    LAYER.set(layer);
}

/// Dumps a stage of the current layer: [1, tokens, ...], or without the axis of the batch.
fn tap(stage: &str, x: &Tensor) -> Result<()> {
    let x = if x.rank() > 2 { x.squeeze(0)? } else { x.clone() };
    let tap = TAP.get().expect("set before the model is run");
    tap.add(stage, LAYER.get(), x).map_err(candle::Error::wrap)
}

/// The ids in a file.
fn ids(path: &str) -> Result<Vec<u32>> {
    let problem = |e: &dyn std::fmt::Display| candle::Error::Msg(format!("{path}: {e}"));
    let text = std::fs::read_to_string(path).map_err(|e| problem(&e))?;
    text.split_whitespace().map(|id| id.parse().map_err(|e| problem(&e))).collect()
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, prompt, decoded] = words.as_slice() else {
        candle::bail!("usage: engine-candle MODEL TOKENS DECODED");
    };
    let mut file = File::open(model)?;
    let content = gguf_file::Content::read(&mut file)?;
    for (name, tensor) in &content.tensor_infos {
        use GgmlDType::{F32, Q4_0, Q4K, Q5_0, Q5K, Q6K, Q8_0};
        // What q8_0 in rows of whole 256 is multiplied with depends on the processor.
        let whole = tensor.shape.dims().last().is_some_and(|n| n % 256 == 0);
        let declared = matches!(tensor.ggml_dtype, F32 | Q4_0 | Q4K | Q5_0 | Q5K | Q6K | Q8_0);
        if !declared || (tensor.ggml_dtype == Q8_0 && whole) {
            candle::bail!("{name} is {:?}: no declaration here says how its products round their inputs", tensor.ggml_dtype);
        }
    }
    let tap = TAP.get_or_init(|| Tap::begin_with("candle 0.11.1", ARITHMETIC).unwrap_or_else(|e| panic!("{e}")));
    let mut weights = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let prompt = ids(prompt)?;
    let steps = std::iter::once(prompt).chain(ids(decoded)?.into_iter().map(|id| vec![id]));
    let mut first = 0;
    for tokens in steps {
        tap.step(first, &tokens).map_err(candle::Error::wrap)?;
        weights.forward(&Tensor::new(tokens.as_slice(), &Device::Cpu)?.unsqueeze(0)?, first)?;
        first += tokens.len();
    }
    tap.close().map_err(candle::Error::wrap)
}
