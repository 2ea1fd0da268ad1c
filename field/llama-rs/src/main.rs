//! Runs a Qwen model of llama-rs on the tokens that qdiff gives it, and dumps its stages.
//!
//! Usage: field-llama-rs MODEL TOKENS PASSES DECODED      the ids of the prompt, one a line, the lengths of the passes over it, and
//! the ids that are fed after it

use llama_rs::backend::cpu::CpuBackend;
use llama_rs::model::RecurrentLayerState;
use llama_rs::tap::ROWS;
use llama_rs::{Model, load_llama_model};
use qdiff_tap::{Rows, Strided, Tap};
use std::error::Error;
use std::sync::{Arc, OnceLock};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The dump, and the width of a head.
static TAP: OnceLock<(Tap, usize)> = OnceLock::new();

/// Dumps the row of a token; heads are an axis of its own where they are rotated. The tap keeps its first error, which `main` gets when
/// it closes the dump.
fn append(stage: &'static str, layer: Option<usize>, row: &[f32]) {
    let (tap, width) = TAP.get().expect("set before the model is run");
    let _ = if stage.ends_with("_rope") {
        let (shape, strides) = ([1, row.len() / width, *width], [row.len(), *width, 1]);
        tap.append(stage, layer, Strided { data: row, shape: &shape, strides: &strides })
    } else {
        tap.append(stage, layer, Rows { data: row, width: row.len() })
    };
}

/// The ids in a file.
fn ids(path: &str) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    text.split_whitespace().map(|id| id.parse().map_err(|e| format!("{path}: {e}").into())).collect()
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, prompt, passes, decoded] = words.as_slice() else {
        return Err("usage: field-llama-rs MODEL TOKENS PASSES DECODED".into());
    };
    let model = load_llama_model(file)?;
    let mut context = model.create_context(Arc::new(CpuBackend::new()));
    let tap = Tap::begin_with("llama-rs 0.23.1", r#""arithmetic": "f32""#)?;
    let (tap, _) = TAP.get_or_init(|| (tap, model.config().key_length));
    ROWS.get_or_init(|| append);
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
        model.forward(&tokens, &mut context)?;
        first += tokens.len();
        let states = context.recurrent_state.as_ref().map(|all| &all.states);
        for (layer, state) in states.into_iter().flatten().enumerate() {
            let Some(RecurrentLayerState::DeltaNet(state)) = state else { continue };
            let config = model.config();
            for (stage, data, rows) in [
                ("conv_state", &state.conv_state, config.ssm_conv_kernel - 1),
                ("delta_state", &state.ssm_state, config.ssm_dt_rank),
            ] {
                let columns = data.len() / rows;
                tap.add(
                    stage,
                    layer,
                    Strided { data, shape: &[1, rows, columns], strides: &[data.len(), columns, 1] },
                )?;
            }
        }
        for layer in (0..model.config().num_layers).filter(|&layer| states.is_none_or(|all| all[layer].is_none())) {
            for (stage, cache) in
                [("k_cache", &context.kv_cache.k_cache[layer]), ("v_cache", &context.kv_cache.v_cache[layer])]
            {
                let [heads, positions, width] = cache.shape() else {
                    return Err(format!("{stage}: {:?}", cache.shape()).into());
                };
                tap.add(
                    stage,
                    layer,
                    Strided {
                        data: cache.as_f32()?,
                        shape: &[first, *heads, *width],
                        strides: &[*width, positions * width, 1],
                    },
                )?;
            }
        }
    }
    Ok(tap.close()?)
}
