//! config.json: the hyperparameters, under the keys that llama.cpp's converter would give them in a GGUF.
//!
//! Every key must be known: one that is read, one whose value must be what every graph computes anyway, or one that changes
//! nothing that a forward pass computes. The effect of an unknown key on the mathematics is unknown, so the key is
//! refused.

use super::object::Object;
use crate::gguf::Value;
use crate::model::{MAX_LAYERS, qwen2, qwen3};
use serde_json::{Value as Json, json};

/// Keys of integers: of config.json, and in a GGUF without the architecture.
const INTEGERS: &[(&str, &str)] = &[
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    (HEAD_DIM, "attention.key_length"),
];

/// The same of reals.
const REALS: &[(&str, &str)] = &[("rms_norm_eps", "attention.layer_norm_rms_epsilon"), (ROPE_THETA, "rope.freq_base")];

/// The length of a head: a Qwen2 may leave it out, which has `hidden_size / num_attention_heads`.
const HEAD_DIM: &str = "head_dim";
/// The base of RoPE, on its own or in one of the objects [`ROPE`].
const ROPE_THETA: &str = "rope_theta";
/// Where RoPE is described: in transformers 5, and before.
const ROPE: [&str; 2] = ["rope_parameters", "rope_scaling"];
/// Whether the head is the embedding table; by default it is not, in both architectures.
const TIED: &str = "tie_word_embeddings";
const VOCABULARY: &str = "vocab_size";

/// Keys that change what is computed, with the value under which that is what the graphs compute; absent or null, they have it.
const FIXED: &[(&str, &str)] = &[
    ("hidden_act", "\"silu\""),
    ("use_sliding_window", "false"),
    ("use_mrope", "false"),
    ("partial_rotary_factor", "1.0"),
    ("mlp_bias", "false"),
    ("is_encoder_decoder", "false"),
    ("add_cross_attention", "false"),
    ("pruned_heads", "{}"),
];

/// Keys by which no forward pass computes anything else.
const NEUTRAL: &[&str] = &[
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "attention_dropout",
    "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label", "initializer_range",
    "is_decoder", "label2id", // For a sliding window that is not in use.
    "max_window_layers", "sliding_window", "model_type", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "problem_type", "return_dict", "tokenizer_class", "torch_dtype",
    "torchscript", "transformers_version", "use_bfloat16", "use_cache",
];

/// What config.json says.
pub(super) struct Config {
    /// Keys and values, as in a GGUF.
    pub(super) metadata: Vec<(String, Value)>,
    /// The architecture, as in a GGUF.
    pub(super) arch: &'static str,
    pub(super) layers: usize,
    /// Rows of the embedding table.
    pub(super) vocabulary: u64,
    /// Whether the head is that table.
    pub(super) tied: bool,
    /// Tokens that end a text.
    pub(super) ends: Vec<u32>,
}

/// Keys of a GGUF, without the architecture, with those of config.json.
pub(super) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    INTEGERS.iter().chain(REALS).map(|(key, suffix)| (*suffix, *key))
}

/// The value in config.json for a key of a GGUF, without the architecture.
pub(super) fn name(suffix: &str) -> Option<&'static str> {
    names().find(|(own, _)| *own == suffix).map(|(_, key)| key)
}

/// Reads the text of config.json, of a model that is called `name`.
///
/// # Errors
/// The key that is missing, wrong or not known, and what is expected.
pub(super) fn read(text: &[u8], name: &str) -> Result<Config, String> {
    let keys: Object<Json> =
        serde_json::from_slice(text).map_err(|e| format!("is no JSON object: {e}; fetch it again"))?;
    let get = |key: &str| keys.get(key).filter(|value| !value.is_null());
    let arch = match get("model_type") {
        Some(kind) if *kind == qwen2::ARCH => qwen2::ARCH,
        Some(kind) if *kind == qwen3::ARCH => qwen3::ARCH,
        other => {
            let found = other.map_or_else(|| "missing".to_owned(), brief);
            return Err(format!("key `model_type` is {found}; use a Qwen2, Qwen2.5 or Qwen3 (dense) model"));
        }
    };
    known(&keys, arch)?;
    let mut metadata =
        vec![("general.architecture".to_owned(), text_value(arch)), ("general.name".to_owned(), text_value(name))];
    let missing =
        |key: &str| format!("has no key `{key}`, and what {arch} models have without it is not assumed; add it");
    let integer = |key: &str| {
        let value = get(key).ok_or_else(|| missing(key))?;
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| format!("key `{key}` is {}, expected a positive integer; fetch it again", brief(value)))
    };
    for (key, suffix) in INTEGERS {
        if *key == HEAD_DIM && arch == qwen2::ARCH && get(key).is_none() {
            continue;
        }
        metadata.push((format!("{arch}.{suffix}"), Value::U32(integer(key)?)));
    }
    for (key, suffix) in REALS {
        let value = match *key {
            ROPE_THETA => base(&keys)?,
            _ => get(key).cloned(),
        };
        let value = value.ok_or_else(|| missing(key))?;
        let number = value.as_f64();
        let number =
            number.ok_or_else(|| format!("key `{key}` is {}, expected a number; fetch it again", brief(&value)))?;
        metadata.push((format!("{arch}.{suffix}"), Value::F32(number as f32)));
    }
    let layers = integer("num_hidden_layers")? as usize;
    if layers == 0 || layers > MAX_LAYERS {
        return Err(format!("key `num_hidden_layers` is {layers}, expected 1 to {MAX_LAYERS}; fetch it again"));
    }
    let tied = match get(TIED) {
        None => false,
        Some(Json::Bool(tied)) => *tied,
        Some(value) => {
            return Err(format!("key `{TIED}` is {}, expected true or false; fetch it again", brief(value)));
        }
    };
    let (vocabulary, ends) = (integer(VOCABULARY)?.into(), ids(get("eos_token_id")));
    Ok(Config { metadata, arch, layers, vocabulary, tied, ends })
}

/// A text as a GGUF holds it.
pub(super) fn text_value(text: &str) -> Value {
    Value::String(text.as_bytes().into())
}

/// A value as an error shows it: no longer than a line or two.
pub(super) fn brief(value: &Json) -> String {
    const MOST: usize = 120;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The ids of a key that holds one, or a list.
pub(super) fn ids(value: Option<&Json>) -> Vec<u32> {
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Json::Array(all)) => all.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Refuses a key by which another model is computed than the graph says, or might be.
fn known(keys: &Object<Json>, arch: &str) -> Result<(), String> {
    for (key, value) in keys.0.iter().filter(|(_, value)| !value.is_null()) {
        let refuse = |expected: &str| {
            Err(format!(
                "key `{key}` is {}: engines compute by it, and only {expected} is supported; use another model",
                brief(value)
            ))
        };
        let key = key.as_str();
        if let Some((_, fixed)) = FIXED.iter().find(|(fixed, _)| *fixed == key) {
            match same(value, fixed) {
                true => continue,
                false => return refuse(fixed),
            }
        }
        match key {
            // Biases of Q, K and V, which Qwen2 has in any case, and of the output projection.
            "attention_bias" if *value != Json::Bool(arch == qwen2::ARCH) => {
                return refuse(if arch == qwen2::ARCH { "true" } else { "false" });
            }
            "layer_types" => {
                let full = |kind: &Json| kind.as_str() == Some("full_attention");
                let layers = keys.get("num_hidden_layers").and_then(Json::as_u64);
                let each = |kinds: &Vec<Json>| layers.is_none_or(|n| n == kinds.len() as u64);
                if !value.as_array().is_some_and(|kinds| each(kinds) && kinds.iter().all(full)) {
                    return refuse("\"full_attention\" once for each layer");
                }
            }
            "architectures" => {
                let head = if arch == qwen2::ARCH { "Qwen2ForCausalLM" } else { "Qwen3ForCausalLM" };
                if *value != json!([head]) {
                    return refuse(&format!("[\"{head}\"]"));
                }
            }
            _ if ROPE.contains(&key) => {
                let Some(own) = value.as_object() else { return refuse("an object") };
                for (key, value) in own.iter().filter(|(_, value)| !value.is_null()) {
                    let usual = match key.as_str() {
                        ROPE_THETA => true,
                        "rope_type" | "type" => value.as_str() == Some("default"),
                        "factor" | "attention_factor" | "partial_rotary_factor" => value.as_f64() == Some(1.0),
                        _ => false,
                    };
                    if !usual {
                        return refuse("RoPE of type \"default\", without scaling");
                    }
                }
            }
            "quantization_config" | "compression_config" => {
                return Err(format!(
                    "key `{key}`: quantised weights are not supported; use the model in BF16, F16 or F32"
                ));
            }
            "attention_bias" | TIED | VOCABULARY | ROPE_THETA => {}
            _ if NEUTRAL.contains(&key) || is_read(key) => {}
            _ => {
                return Err(format!(
                    "key `{key}` is {}, and what engines compute by it is not known; if it changes nothing that a \
                     forward pass computes, take it out",
                    brief(value)
                ));
            }
        }
    }
    Ok(())
}

/// Whether a value is the one that this text says; 1 is 1.0.
fn same(value: &Json, text: &str) -> bool {
    let number = |json: &Json| json.as_f64();
    serde_json::from_str::<Json>(text)
        .is_ok_and(|fixed| fixed == *value || number(&fixed).is_some() && number(&fixed) == number(value))
}

fn is_read(key: &str) -> bool {
    names().any(|(_, own)| own == key)
}

/// The base of RoPE, from wherever it stands.
fn base(keys: &Object<Json>) -> Result<Option<Json>, String> {
    let inner = ROPE.iter().filter_map(|key| keys.get(key)?.get(ROPE_THETA));
    let mut all = keys.get(ROPE_THETA).into_iter().chain(inner).filter(|value| !value.is_null());
    let first = all.next();
    match all.find(|other| other.as_f64() != first.and_then(Json::as_f64)) {
        Some(other) => {
            let first = first.map(brief).unwrap_or_default();
            Err(format!("says `{ROPE_THETA}` more than once, {first} and {}; leave one", brief(other)))
        }
        None => Ok(first.cloned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As transformers writes it for the Qwen2.5 models.
    const QWEN2: &str = r#"{"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,
        "eos_token_id":[151645,151643],"hidden_act":"silu","hidden_size":896,"initializer_range":0.02,"intermediate_size":4864,
        "max_position_embeddings":32768,"max_window_layers":21,"model_type":"qwen2","num_attention_heads":14,
        "num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,
        "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.43.1","use_cache":true,
        "use_sliding_window":false,"vocab_size":151936}"#;

    fn said(change: impl Fn(&mut serde_json::Map<String, Json>)) -> Result<Config, String> {
        let Json::Object(mut keys) = serde_json::from_str(QWEN2).unwrap() else { panic!("an object") };
        change(&mut keys);
        read(Json::Object(keys).to_string().as_bytes(), "mine")
    }

    #[test]
    fn what_transformers_writes_is_read() {
        let config = said(|_| ()).unwrap();
        assert_eq!((config.arch, config.layers, config.vocabulary, config.tied), ("qwen2", 24, 151_936, true));
        assert_eq!(config.ends, [151_645, 151_643]);
        let value = |key: &str| config.metadata.iter().find(|(own, _)| own == key).map(|(_, value)| value.clone());
        assert_eq!(value("qwen2.feed_forward_length"), Some(Value::U32(4864)));
        assert_eq!(value("qwen2.rope.freq_base"), Some(Value::F32(1e6)));
        assert_eq!(value("qwen2.attention.layer_norm_rms_epsilon"), Some(Value::F32(1e-6)));
        // As transformers 5 writes it.
        let newer = said(|keys| {
            keys.remove("rope_theta");
            keys.insert("rope_parameters".into(), json!({"rope_theta": 10000, "rope_type": "default"}));
            keys.insert("layer_types".into(), json!(vec!["full_attention"; 24]));
            keys.insert("rope_scaling".into(), Json::Null);
            keys.insert("pad_token_id".into(), Json::Null);
        });
        let base = newer.unwrap().metadata.into_iter().find(|(key, _)| key == "qwen2.rope.freq_base");
        assert_eq!(base.unwrap().1, Value::F32(1e4));
    }

    /// An engine computes otherwise by each of these, and a graph that leaves it out would call that engine wrong.
    #[test]
    fn a_key_that_changes_the_mathematics_is_refused_by_its_name() {
        let changed = [
            ("rope_scaling", json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})),
            ("rope_scaling", json!({"rope_type": "default", "mrope_section": [16, 24, 24]})),
            ("rope_parameters", json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6})),
            ("use_sliding_window", json!(true)),
            ("layer_types", json!(["full_attention", "sliding_attention"])),
            ("layer_types", json!(vec!["full_attention"; 23])),
            ("layer_types", json!([])),
            ("_scale", json!(2.0)),
            ("vocab_size", json!(-1)),
            ("num_hidden_layers", json!(24.0)),
            ("attention_bias", json!(false)),
            ("hidden_act", json!("gelu")),
            ("partial_rotary_factor", json!(0.5)),
            ("quantization_config", json!({"quant_method": "gptq"})),
            ("architectures", json!(["Qwen2ForSequenceClassification"])),
            ("model_type", json!("qwen2_moe")),
            ("final_logit_softcapping", json!(30.0)),
            ("dual_chunk_attention_config", json!({"chunk_size": 8192})),
            ("num_hidden_layers", json!(0)),
            ("num_hidden_layers", json!(4_000_000_000u32)),
            ("hidden_size", json!(-1)),
            ("rms_norm_eps", json!("1e-6")),
            ("tie_word_embeddings", json!(1)),
        ];
        for (key, value) in changed {
            let why = said(|keys| drop(keys.insert(key.to_owned(), value.clone()))).err().unwrap_or_default();
            assert!(why.contains(&format!("`{key}`")), "{key} = {value}: {why}");
        }
        for key in ["rope_theta", "rms_norm_eps", "num_key_value_heads", "vocab_size", "model_type"] {
            let why = said(|keys| drop(keys.remove(key))).err().unwrap_or_default();
            assert!(why.contains(&format!("`{key}`")), "without {key}: {why}");
            // What is there and wrong is not said to be missing, and is not shown at any length.
            let long = json!(vec!["x"; 1000]);
            let why = said(|keys| drop(keys.insert(key.to_owned(), long.clone()))).err().unwrap_or_default();
            assert!(why.contains(&format!("`{key}` is [\"x\"")) && why.len() < 400, "{key} is a list: {why}");
        }
        let why = said(|keys| drop(keys.insert("rope_parameters".into(), json!({"rope_theta": 1e4})))).err().unwrap();
        assert!(why.contains("more than once"), "{why}");
        // In Qwen3 the length of a head is no quotient.
        let why = said(|keys| {
            keys.insert("model_type".into(), json!("qwen3"));
            keys.insert("architectures".into(), json!(["Qwen3ForCausalLM"]));
        });
        assert!(why.err().unwrap().contains("`head_dim`"));
    }
}
