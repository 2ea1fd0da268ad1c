//! What llama.cpp's loader requires of a vocabulary (`llama_vocab::impl::load`). Over some of it the loader ends the
//! process, and over some the first prompt does, so all of it is checked first.

use super::VocabError;
use super::vocab::{TOKEN_TYPES, TOKENS, list, merges, strings};
use crate::gguf::{ArrayValue, Gguf, Value};
use std::collections::HashMap;

/// Key of the kind of tokenizer.
const MODEL: &str = "tokenizer.ggml.model";
const SCORES: &str = "tokenizer.ggml.scores";

/// Checks the vocabulary of a model with `rows` rows in its embedding table.
///
/// # Errors
/// [`VocabError`] naming the key or the token, and what is expected.
pub fn check(gguf: &Gguf, rows: usize) -> Result<(), VocabError> {
    let refuse = |what: String| Err(VocabError(format!("{what}; convert the model again")));
    let model = list(gguf, MODEL, "text", Value::as_str)?;
    match model {
        "gpt2" => drop(merges(gguf)?),
        "llama" => {}
        other => return refuse(format!("`{MODEL}` is `{other}`: expected `gpt2`, as Qwen models have it, or `llama`")),
    }
    let tokens = strings(gguf, TOKENS)?;
    if tokens.len() != rows || rows == 0 {
        let n = tokens.len();
        return refuse(format!("`{TOKENS}` has {n} tokens, and the embedding table has {rows} rows"));
    }
    let enough = |key: &str, n: usize| match n < rows {
        true => refuse(format!("`{key}` has {n} entries for {rows} tokens")),
        false => Ok(()),
    };
    if gguf.get(TOKEN_TYPES).is_some() {
        enough(TOKEN_TYPES, list(gguf, TOKEN_TYPES, "an array of i32", Value::as_i32_array)?.len())?;
    }
    match gguf.get(SCORES) {
        None => {}
        Some(Value::Array(scores @ (ArrayValue::F32(_) | ArrayValue::I32(_)))) => enough(SCORES, scores.len())?,
        Some(other) => return refuse(format!("`{SCORES}` is of type {}, expected an array of f32", other.type_name())),
    }
    let mut ids = HashMap::with_capacity(rows);
    for (id, text) in tokens.iter().enumerate() {
        if text.contains(&0) {
            return refuse(format!("token {id} of `{TOKENS}` holds a NUL byte, where llama.cpp would cut it"));
        }
        // Empty ones are given names of their own.
        if let Some(first) = ids.insert(text, id).filter(|_| !text.is_empty()) {
            return refuse(format!("tokens {first} and {id} of `{TOKENS}` are both \"{}\"", text.escape_ascii()));
        }
    }
    // SentencePiece spells what is no token in bytes, and each must be one.
    let spelled = |byte: &u8| ids.contains_key(format!("<0x{byte:02X}>").as_bytes()) || ids.contains_key(&[*byte][..]);
    match (0..=255).find(|byte| model == "llama" && !spelled(byte)) {
        Some(byte) => {
            refuse(format!("`{TOKENS}` has no token <0x{byte:02X}>, and a `llama` vocabulary needs every byte"))
        }
        None => Ok(()),
    }
}
