//! Runs candle's Qwen2 or Qwen3 of safetensors on the tokens that qdiff gives it, and dumps its stages.
//!
//! Usage: field-candle-safetensors MODEL TOKENS PASSES DECODED f32|bf16      the ids of the prompt, one a line, the lengths of the
//! passes over it, and the ids that are fed after it

// Files of candle-transformers, unchanged except for the taps.
#[expect(dead_code)]
mod models;
#[expect(dead_code)]
#[path = "../vendor/candle-transformers/src/quantized_var_builder.rs"]
mod quantized_var_builder;
#[expect(dead_code)]
#[path = "../vendor/candle-transformers/src/utils.rs"]
mod utils;

use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use models::{qwen2, qwen3};
use qdiff_tap::Tap;
use serde_json::{Value, json};
use std::cell::Cell;
use std::path::Path;
use std::sync::OnceLock;

static TAP: OnceLock<Tap> = OnceLock::new();

thread_local! {
    static LAYER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Sets the layer of the taps that follow.
fn in_layer(layer: Option<usize>) {
    LAYER.set(layer);
}

/// Dumps a stage of the current layer: [1, tokens, ...], or without the axis of the batch.
fn tap(stage: &str, x: &Tensor) -> Result<()> {
    let x = if x.rank() > 2 { x.squeeze(0)? } else { x.clone() };
    let tap = TAP.get().expect("set before the model is run");
    tap.add(stage, LAYER.get(), x).map_err(candle::Error::wrap)
}

/// A file as text.
fn text(path: impl AsRef<Path>) -> Result<String> {
    std::fs::read_to_string(&path).map_err(|e| candle::Error::Msg(format!("{}: {e}", path.as_ref().display())))
}

/// The ids in a file.
fn ids(path: &str) -> Result<Vec<u32>> {
    text(path)?.split_whitespace().map(|id| id.parse().map_err(candle::Error::wrap)).collect()
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, prompt, passes, decoded, dtype] = words.as_slice() else {
        candle::bail!("usage: field-candle-safetensors MODEL TOKENS PASSES DECODED f32|bf16");
    };
    let model = Path::new(model);
    let mut config: Value = serde_json::from_str(&text(model.join("config.json"))?).map_err(candle::Error::wrap)?;
    let of_qwen3 = config["model_type"] == "qwen3";
    // candle asks for keys that have no effect where `use_sliding_window` is false; published models have them.
    for (key, value) in [
        ("sliding_window", config["max_position_embeddings"].clone()),
        ("max_window_layers", config["num_hidden_layers"].clone()),
        ("attention_bias", json!(false)),
    ] {
        if config.get(key).is_none() {
            config[key] = value;
        }
    }
    let (device, kind) = (Device::Cpu, if dtype == "bf16" { DType::BF16 } else { DType::F32 });
    let weights = candle::safetensors::load(model.join("model.safetensors"), &device)?;
    let builder = VarBuilder::from_tensors(weights, kind, &device);
    let tap = TAP.get_or_init(|| {
        Tap::begin_with(&format!("candle 0.11.1, {dtype}"), &format!(r#""arithmetic": "{dtype}""#))
            .unwrap_or_else(|e| panic!("{e}"))
    });
    let mut forward: Box<dyn FnMut(&Tensor, usize) -> Result<Tensor>> = if of_qwen3 {
        let config: qwen3::Config = serde_json::from_value(config).map_err(candle::Error::wrap)?;
        let mut model = qwen3::ModelForCausalLM::new(&config, builder)?;
        Box::new(move |tokens, first| model.forward(tokens, first))
    } else {
        let config: qwen2::Config = serde_json::from_value(config).map_err(candle::Error::wrap)?;
        let mut model = qwen2::ModelForCausalLM::new(&config, builder)?;
        Box::new(move |tokens, first| model.forward(tokens, first))
    };
    let prompt = ids(prompt)?;
    let mut steps = Vec::new();
    for length in passes.split(',') {
        let length: usize = length.parse().map_err(candle::Error::wrap)?;
        let begun: usize = steps.iter().map(Vec::len).sum();
        steps.push(prompt[begun..begun + length].to_vec());
    }
    steps.extend(ids(decoded)?.into_iter().map(|id| vec![id]));
    let mut first = 0;
    for tokens in steps {
        tap.step(first, &tokens).map_err(candle::Error::wrap)?;
        let logits = forward(&Tensor::new(tokens.as_slice(), &device)?.unsqueeze(0)?, first)?;
        // Only the last token has logits.
        self::tap("logits", &logits)?;
        first += tokens.len();
    }
    tap.close().map_err(candle::Error::wrap)
}
