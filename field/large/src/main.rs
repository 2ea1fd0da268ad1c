//! Runs large's Qwen3 on the tokens that qdiff gives it, and dumps every stage but scores and weights of attention.
//!
//! Usage: field-large MODEL TOKENS PASSES DECODED      the ids of the prompt, one a line, the lengths of the passes over it, and
//! the ids that are fed after it
//!
//! large takes one token at a time: the rows of a pass are appended to those before them, and are one step.

// A file of large, unchanged except for the taps.
#[expect(dead_code)]
#[path = "../vendor/large/src/gguf.rs"]
mod gguf;
#[expect(dead_code)]
#[path = "../vendor/large/src/model.rs"]
mod model;
#[path = "../vendor/large/src/tensor.rs"]
mod tensor;

use qdiff_tap::{Rows, Strided, Tap};
use std::error::Error;
use std::sync::OnceLock;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The dump, and the width of a head.
static TAP: OnceLock<(Tap, usize)> = OnceLock::new();

/// Dumps the row of a token; heads are an axis of its own where they are rotated. The tap keeps its first error, which `main` gets when
/// it closes the dump.
fn tap(stage: &'static str, layer: Option<usize>, row: &[f32]) {
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
        return Err("usage: field-large MODEL TOKENS PASSES DECODED".into());
    };
    let file = gguf::GgufFile::open(file)?;
    let mut model = model::Qwen3Model::from_gguf(&file);
    let tap = Tap::begin_with("large 0.2.0", r#""arithmetic": "f32""#)?;
    let (tap, width) = TAP.get_or_init(|| (tap, model.config.head_dim));
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
        for (layer, kept) in model.kv_cache.iter().enumerate() {
            for (stage, rows) in [("k_cache", &kept.keys), ("v_cache", &kept.values)] {
                let data = rows.concat();
                let of_row = data.len() / first;
                let shape = [first, of_row / width, *width];
                tap.add(stage, layer, Strided { data: &data, shape: &shape, strides: &[of_row, *width, 1] })?;
            }
        }
    }
    Ok(tap.close()?)
}
