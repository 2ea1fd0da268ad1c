//! Runs mistral.rs's quantised Qwen2 or Qwen3 on the tokens that qdiff gives it, and dumps every stage.
//!
//! Usage: field-mistralrs MODEL TOKENS PASSES DECODED FORMAT      the ids of the prompt, one a line, the lengths of the passes over
//! it, the ids that are fed after it, and the format of attention: auto, as where the user names none, or f32, f16 or bf16

use candle_core::quantized::{GgmlDType, gguf_file};
use candle_core::{DType, Tensor};
use mistralrs_core::field::{Model, STAGES};
use qdiff_tap::{Elements, Tap};
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The ids in a file.
fn ids(path: &str) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    text.split_whitespace().map(|id| id.parse().map_err(|e| format!("{path}: {e}").into())).collect()
}

/// A tensor in f32, f16 or bf16.
fn elements(x: &Tensor) -> Result<Elements> {
    let (shape, flat) = (x.dims().to_vec(), x.flatten_all()?);
    Ok(match x.dtype() {
        DType::F32 => Elements::of(shape, flat.to_vec1::<f32>()?),
        DType::F16 => Elements::of(shape, flat.to_vec1::<half::f16>()?),
        DType::BF16 => Elements::of(shape, flat.to_vec1::<half::bf16>()?),
        other => return Err(format!("a stage in {other:?}").into()),
    })
}

/// What candle 0.10 multiplies weights of each format with on x86-64 (k_quants.rs): activations in blocks, whose halves are
/// rounded away from zero. Attention reads queries, keys and values in its format, sums in f32, and rounds its result to its format.
fn arithmetic(format: &str) -> String {
    let linear: Vec<String> = [
        ("q4_0", "q8_0_ref"),
        ("q4_1", "q8_1_half_sum"),
        ("q5_0", "q8_0_ref"),
        ("q5_1", "q8_1_half_sum"),
        ("q8_0", "q8_0_ref"),
        ("q2_K", "q8_K_128"),
        ("q3_K", "q8_K_128"),
        ("q4_K", "q8_K_128"),
        ("q5_K", "q8_K_128"),
        ("q6_K", "q8_K_128"),
    ]
    .map(|(weights, activations)| format!(r#"{{"weights": "{weights}", "activations": "{activations}"}}"#))
    .into();
    let linear = linear.join(", ");
    format!(
        r#""arithmetic": {{"kv": "{format}", "attention": [{{"scores": "{format}"}}], "outputs": {{"default": "f32", "ops": {{"attn_context": "{format}"}}}}, "linear": [{linear}]}}"#
    )
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, prompt, passes, decoded, format] = words.as_slice() else {
        return Err("usage: field-mistralrs MODEL TOKENS PASSES DECODED FORMAT".into());
    };
    for (name, tensor) in &gguf_file::Content::read(&mut std::fs::File::open(path)?)?.tensor_infos {
        use GgmlDType::{BF16, F16, F32, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        if !matches!(tensor.ggml_dtype, BF16 | F16 | F32 | Q2K | Q3K | Q4_0 | Q4_1 | Q4K | Q5_0 | Q5_1 | Q5K | Q6K | Q8_0) {
            return Err(format!("{name} is {:?}: no declaration here says how its products round their inputs", tensor.ggml_dtype).into());
        }
    }
    let (model, format) = Model::load(path, format)?;
    let tap = Tap::begin_with("mistralrs-core 0.8.1", &arithmetic(format.as_str()))?;
    let prompt = ids(prompt)?;
    let mut steps = Vec::new();
    let mut begun = 0;
    for length in passes.split(',') {
        let length: usize = length.parse()?;
        steps.push(prompt.get(begun..begun + length).ok_or("the passes are longer than the prompt")?.to_vec());
        begun += length;
    }
    steps.extend(ids(decoded)?.into_iter().map(|id| vec![id]));
    let mut first = 0;
    for tokens in steps {
        tap.step(first, &tokens)?;
        model.forward(&tokens, first)?;
        first += tokens.len();
        for (stage, layer, x) in STAGES.take() {
            tap.add(stage, layer, elements(&x)?)?;
        }
    }
    Ok(tap.close()?)
}
