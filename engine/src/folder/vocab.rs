//! tokenizer.json: the vocabulary of a byte-level BPE with Qwen2's pre-tokenizer, as llama.cpp's converter would write it
//! into a GGUF. Whatever makes other tokens of a text than that is refused by its name.

use super::config::{brief, text_value};
use super::object::Object;
use crate::gguf::{ArrayValue, StringArray, Value};
use crate::tokenizer::Rule;
use serde_json::{Value as Json, json};

/// Token types of llama.cpp.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// What tokenizer.json says, under the keys of a GGUF of a model with `rows` token ids.
///
/// # Errors
/// What is not Qwen's tokenizer, or is no tokenizer.
pub(super) fn read(text: &[u8], rows: usize) -> Result<Vec<(String, Value)>, String> {
    let keys: Object<Json> = serde_json::from_slice(text).map_err(|e| format!("is no JSON object: {e}"))?;
    let model = keys.get("model").ok_or("has no key `model`")?;
    let other =
        |what: &str, found: &Json| Err(format!("has another {what} than Qwen's byte-level BPE: {}", brief(found)));
    if model["type"] != "BPE" {
        return other("kind of model", &model["type"]);
    }
    let neutral = [
        ("dropout", json!(0.0)),
        ("continuing_subword_prefix", json!("")),
        ("end_of_word_suffix", json!("")),
        ("byte_fallback", json!(false)),
        ("ignore_merges", json!(false)),
    ];
    for (key, usual) in neutral {
        if !model[key].is_null() && model[key] != usual {
            return other(&format!("`{key}`"), &model[key]);
        }
    }
    if let Err(found) = pre_tokenizer(keys.get("pre_tokenizer").unwrap_or(&Json::Null)) {
        return other("pre-tokenizer", found);
    }
    let normalizer = keys.get("normalizer").unwrap_or(&Json::Null);
    if !normalizer.is_null() && *normalizer != json!({"type": "NFC"}) {
        return other("normalizer", normalizer);
    }
    let post = keys.get("post_processor").unwrap_or(&Json::Null);
    if !post.is_null() && post["type"] != "ByteLevel" {
        return other("post-processor", post);
    }

    let mut tokens: Vec<Option<(String, i32)>> = vec![None; rows];
    let mut place = |text: &str, id: Option<u64>, kind: i32| {
        let slot = id.and_then(|id| tokens.get_mut(usize::try_from(id).ok()?));
        let slot = slot.ok_or_else(|| format!("token {text:?} has no id below {rows}, the model's rows"))?;
        match slot {
            // An added token may be in the vocabulary as well.
            Some((own, _)) if own != text => Err(format!("tokens {own:?} and {text:?} have one id")),
            _ => {
                *slot = Some((text.to_owned(), kind));
                Ok(())
            }
        }
    };
    for (text, id) in model["vocab"].as_object().ok_or("has no `vocab` in its model")? {
        place(text, id.as_u64(), NORMAL)?;
    }
    for added in keys.get("added_tokens").and_then(Json::as_array).into_iter().flatten() {
        let text = added["content"].as_str().ok_or("has an added token without `content`")?;
        if let Some(flag) = ["single_word", "lstrip", "rstrip", "normalized"].iter().find(|f| added[**f] == true) {
            return Err(format!("recognises token {text:?} only in some places (`{flag}`)"));
        }
        place(text, added["id"].as_u64(), if added["special"] == true { CONTROL } else { USER_DEFINED })?;
    }
    let (mut texts, mut kinds) = (StringArray::default(), Vec::with_capacity(rows));
    for (id, token) in tokens.into_iter().enumerate() {
        let (text, kind) = token.unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED));
        texts.push(text.as_bytes());
        kinds.push(kind);
    }
    let mut merges = StringArray::default();
    for merge in model["merges"].as_array().ok_or("has no `merges` in its model")? {
        // "left right", or since 2024 ["left", "right"].
        let halves: Option<Vec<&str>> = match merge {
            Json::String(merge) => Some(merge.split(' ').collect()),
            Json::Array(halves) => halves.iter().map(Json::as_str).collect(),
            _ => None,
        };
        let halves =
            halves.filter(|halves| halves.len() == 2 && halves.iter().all(|h| !h.is_empty() && !h.contains(' ')));
        let halves = halves.ok_or_else(|| format!("has a merge that is no pair: {merge}"))?;
        merges.push(halves.join(" ").as_bytes());
    }
    let strings = |texts| Value::Array(ArrayValue::String(texts));
    Ok([
        ("model", text_value("gpt2")),
        ("pre", text_value("qwen2")),
        ("tokens", strings(texts)),
        ("token_type", Value::Array(ArrayValue::I32(kinds))),
        ("merges", strings(merges)),
        ("add_bos_token", Value::Bool(false)),
        ("add_eos_token", Value::Bool(false)),
    ]
    .map(|(key, value)| (format!("tokenizer.ggml.{key}"), value))
    .into())
}

/// Whether words are cut as Qwen2's are; if not, what says so.
fn pre_tokenizer(found: &Json) -> Result<(), &Json> {
    let rules = [
        Rule::Contraction,
        Rule::Letters,
        Rule::Number,
        Rule::Symbols,
        Rule::LineEnds,
        Rule::SpacesBeforeText,
        Rule::Spaces,
    ];
    let expression = rules.map(|rule| rule.to_string()).join("|");
    let split = json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false});
    let right = match found["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([first, second]) => {
            let plain = second["add_prefix_space"] == false && second["use_regex"] == false;
            found["type"] == "Sequence" && *first == split && second["type"] == "ByteLevel" && plain
        }
        _ => false,
    };
    if right { Ok(()) } else { Err(found) }
}
