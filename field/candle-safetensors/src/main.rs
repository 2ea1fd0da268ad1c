//! Runs candle's Qwen2, Qwen3 or Qwen3-MoE of safetensors on the tokens that qdiff gives it, and dumps its stages.
//!
//! Usage: field-candle-safetensors MODEL TOKENS PASSES DECODED f32|bf16      the ids of the prompt, one a line, the lengths of the
//! passes over it, and the ids that are fed after it. MODEL is a folder of safetensors, or a GGUF of Qwen3-MoE, whose decoded
//! weights are given to candle under the names of safetensors.

// Files of candle-transformers, unchanged except for the taps.
#[expect(dead_code)]
#[path = "../vendor/candle-transformers/src/fused_moe.rs"]
mod fused_moe;
#[expect(dead_code)]
mod models;
#[expect(dead_code)]
#[path = "../vendor/candle-transformers/src/quantized_var_builder.rs"]
mod quantized_var_builder;
#[expect(dead_code)]
#[path = "../vendor/candle-transformers/src/utils.rs"]
mod utils;

use candle::quantized::gguf_file::{Content, Value as Key};
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use models::{qwen2, qwen3, qwen3_moe};
use qdiff_tap::Tap;
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
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

/// The configuration and the weights of a folder of safetensors.
fn of_folder(folder: &Path, device: &Device) -> Result<(Value, HashMap<String, Tensor>)> {
    let mut config: Value = serde_json::from_str(&text(folder.join("config.json"))?).map_err(candle::Error::wrap)?;
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
    Ok((config, candle::safetensors::load(folder.join("model.safetensors"), device)?))
}

/// The configuration and the decoded weights of a GGUF of Qwen3-MoE, as a folder of safetensors has them.
fn of_gguf(path: &Path, device: &Device) -> Result<(Value, HashMap<String, Tensor>)> {
    let mut file = File::open(path)?;
    let content = Content::read(&mut file)?;
    let key = |name: &str| match content.metadata.get(&format!("qwen3moe.{name}")) {
        Some(Key::U32(value)) => Ok(json!(value)),
        Some(Key::F32(value)) => Ok(json!(value)),
        other => Err(candle::Error::Msg(format!("qwen3moe.{name}: {other:?}"))),
    };
    let [vocabulary, width] = content.tensor_infos["token_embd.weight"].shape.dims() else {
        candle::bail!("token_embd.weight is no matrix");
    };
    let config = json!({
        "model_type": "qwen3_moe", "vocab_size": vocabulary, "hidden_size": width, "hidden_act": "silu",
        "intermediate_size": key("expert_feed_forward_length")?, "num_hidden_layers": key("block_count")?,
        "num_attention_heads": key("attention.head_count")?, "num_key_value_heads": key("attention.head_count_kv")?,
        "head_dim": key("attention.key_length")?, "attention_bias": false, "sliding_window": null, "use_sliding_window": false,
        "max_position_embeddings": key("context_length")?, "max_window_layers": key("block_count")?,
        "tie_word_embeddings": !content.tensor_infos.contains_key("output.weight"), "rope_theta": key("rope.freq_base")?,
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon")?, "decoder_sparse_step": 1, "norm_topk_prob": true,
        "moe_intermediate_size": key("expert_feed_forward_length")?, "num_experts": key("expert_count")?,
        "num_experts_per_tok": key("expert_used_count")?,
    });
    let mut weights = HashMap::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut file, name, device)?.dequantize(device)?;
        let Some((layer, of)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            let told = match name.as_str() {
                "token_embd.weight" => "model.embed_tokens.weight",
                "output_norm.weight" => "model.norm.weight",
                "output.weight" => "lm_head.weight",
                other => candle::bail!("{other} has no name in safetensors here"),
            };
            weights.insert(told.to_owned(), tensor);
            continue;
        };
        let told = match of {
            "attn_norm.weight" => "input_layernorm",
            "attn_q.weight" => "self_attn.q_proj",
            "attn_k.weight" => "self_attn.k_proj",
            "attn_v.weight" => "self_attn.v_proj",
            "attn_output.weight" => "self_attn.o_proj",
            "attn_q_norm.weight" => "self_attn.q_norm",
            "attn_k_norm.weight" => "self_attn.k_norm",
            "ffn_norm.weight" => "post_attention_layernorm",
            "ffn_gate_inp.weight" => "mlp.gate",
            "ffn_gate_exps.weight" => "gate_proj",
            "ffn_up_exps.weight" => "up_proj",
            "ffn_down_exps.weight" => "down_proj",
            other => candle::bail!("{other} has no name in safetensors here"),
        };
        if of.ends_with("_exps.weight") {
            for expert in 0..tensor.dim(0)? {
                weights.insert(format!("model.layers.{layer}.mlp.experts.{expert}.{told}.weight"), tensor.get(expert)?);
            }
        } else {
            weights.insert(format!("model.layers.{layer}.{told}.weight"), tensor);
        }
    }
    Ok((config, weights))
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, prompt, passes, decoded, dtype] = words.as_slice() else {
        candle::bail!("usage: field-candle-safetensors MODEL TOKENS PASSES DECODED f32|bf16");
    };
    let model = Path::new(model);
    let (device, kind) = (Device::Cpu, if dtype == "bf16" { DType::BF16 } else { DType::F32 });
    let (config, weights) = if model.is_dir() { of_folder(model, &device)? } else { of_gguf(model, &device)? };
    let builder = VarBuilder::from_tensors(weights, kind, &device);
    let tap = TAP.get_or_init(|| {
        Tap::begin_with(&format!("candle 0.11.1, {dtype}"), &format!(r#""arithmetic": "{dtype}""#))
            .unwrap_or_else(|e| panic!("{e}"))
    });
    let mut forward: Box<dyn FnMut(&Tensor, usize) -> Result<Tensor>> = if config["model_type"] == "qwen3_moe" {
        let config: qwen3_moe::Config = serde_json::from_value(config).map_err(candle::Error::wrap)?;
        let mut model = qwen3_moe::ModelForCausalLM::new(&config, builder)?;
        Box::new(move |tokens, first| model.forward(tokens, first))
    } else if config["model_type"] == "qwen3" {
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
