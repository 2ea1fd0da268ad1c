//! Runs large's Qwen3 on the tokens that qdiff gives it, and dumps every stage but scores and weights of attention.
//!
//! Usage: field-large MODEL TOKENS PASSES DECODED      the ids of the prompt, one a line, the lengths of the passes over it, and
//! the ids that are fed after it
//!
//! large takes one token at a time: the rows of a pass are collected, and dumped as one step.

// A file of large, unchanged except for the taps.
#[expect(dead_code)]
#[path = "../vendor/large/src/gguf.rs"]
mod gguf;
#[expect(dead_code)]
#[path = "../vendor/large/src/model.rs"]
mod model;
#[path = "../vendor/large/src/tensor.rs"]
mod tensor;

use qdiff_tap::{Strided, Tap};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

thread_local! {
    /// The elements of a pass so far, by stage and layer.
    static ROWS: RefCell<BTreeMap<(&'static str, Option<usize>), Vec<f32>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Adds elements to a stage of this pass: the row of a token, or a head of it.
fn tap(stage: &'static str, layer: Option<usize>, x: &[f32]) {
    ROWS.with_borrow_mut(|rows| rows.entry((stage, layer)).or_default().extend_from_slice(x));
}

/// Dumps rows whose heads, of this width, are an axis of their own.
fn heads(tap: &Tap, stage: &str, layer: usize, data: &[f32], (rows, width): (usize, usize)) -> Result<()> {
    let of_row = data.len() / rows;
    Ok(tap.add(stage, layer, Strided { data, shape: &[rows, of_row / width, width], strides: &[of_row, width, 1] })?)
}

/// The ids in a file.
fn ids(path: &str) -> Result<Vec<u32>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    text.split_whitespace().map(|id| id.parse().map_err(|e| format!("{path}: {e}").into())).collect()
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, prompt, passes, decoded] = words.as_slice() else {
        return Err("usage: field-large MODEL TOKENS PASSES DECODED".into());
    };
    let file = gguf::GgufFile::open(file)?;
    let mut model = model::Qwen3Model::from_gguf(&file);
    let tap = Tap::begin_with("large 0.2.0", r#""arithmetic": "f32""#)?;
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
        for (i, &token) in tokens.iter().enumerate() {
            let logits = model.forward(token, first + i);
            self::tap("logits", None, &logits);
        }
        first += tokens.len();
        for ((stage, layer), data) in ROWS.take() {
            if data.len() % tokens.len() != 0 {
                return Err(format!("{stage}: {} elements are no {} rows", data.len(), tokens.len()).into());
            }
            match layer {
                Some(layer) if stage.ends_with("_rope") => {
                    heads(&tap, stage, layer, &data, (tokens.len(), model.config.head_dim))?
                }
                _ => tap.rows(stage, layer, &data, data.len() / tokens.len())?,
            }
        }
        for (layer, kept) in model.kv_cache.iter().enumerate() {
            for (stage, rows) in [("k_cache", &kept.keys), ("v_cache", &kept.values)] {
                heads(&tap, stage, layer, &rows.concat(), (first, model.config.head_dim))?;
            }
        }
    }
    Ok(tap.close()?)
}
