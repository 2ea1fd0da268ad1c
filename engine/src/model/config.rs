//! Hyperparameters, read from GGUF metadata or from any other source of it.

use crate::gguf::{Gguf, Value};
use thiserror::Error;

/// Where hyperparameters come from.
///
/// The engine reads them from its own [`Gguf`]; the oracle of the harness
/// reads them from llama.cpp, so that a misread key cannot hide itself.
pub trait Metadata {
    /// The value of an integer key, if present.
    fn integer(&self, key: &str) -> Option<u64>;
    /// The value of a real key, if present.
    fn real(&self, key: &str) -> Option<f64>;
    /// The value of a text key, if present.
    fn text(&self, key: &str) -> Option<String>;
    /// Extent of a tensor in ggml order (contiguous axis first), if present.
    fn extent(&self, tensor: &str) -> Option<Vec<u64>>;
}

impl Metadata for Gguf {
    fn integer(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }
    fn real(&self, key: &str) -> Option<f64> {
        self.get(key).and_then(Value::as_f64)
    }
    fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(Value::as_str).map(str::to_owned)
    }
    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        self.tensor(tensor).map(|t| t.dims.clone())
    }
}

/// Why a GGUF file cannot be run.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A key the graph needs is absent or of another type.
    #[error(
        "metadata key `{0}` is missing or not a number; the file is incomplete: convert the model again with llama.cpp's converter"
    )]
    Missing(String),
    /// A key has a value that no such model can have, or none that this engine can run.
    #[error("{0}")]
    Invalid(String),
}

fn invalid(key: &str, value: u64, why: &str) -> ConfigError {
    ConfigError::Invalid(format!("metadata key `{key}` is {value}: {why}"))
}

/// Tensor of the embedding table, whose rows are the vocabulary of every model.
pub(super) const EMBEDDING: &str = "token_embd.weight";

/// What every model has, whatever its layers are made of. What only some have (the width of a feed-forward network, the
/// number of experts) an architecture reads itself and keeps in its nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`.
    pub arch: String,
    /// `general.name`, for display.
    pub name: String,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream, E.
    pub n_embd: usize,
    /// Query heads, H.
    pub n_heads: usize,
    /// Key and value heads, G; H is a multiple of it.
    pub n_kv_heads: usize,
    /// Length of one head, D.
    pub head_dim: usize,
    /// Number of token ids, V: the rows of the embedding table.
    pub n_vocab: usize,
    /// Longest context the model was trained on, in tokens.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// Epsilon of RMSNorm.
    pub rms_eps: f64,
}

impl Config {
    /// The integer `<arch>.<suffix>` of `source`.
    ///
    /// # Errors
    /// If it is missing, 0, or beyond 2^24, which bounds a graph's size by something that no real model reaches.
    pub fn integer(arch: &str, suffix: &str, source: &dyn Metadata) -> Result<usize, ConfigError> {
        let key = format!("{arch}.{suffix}");
        let value = source.integer(&key).ok_or_else(|| ConfigError::Missing(key.clone()))?;
        if value == 0 || value > 1 << 24 {
            return Err(invalid(&key, value, "expected between 1 and 2^24"));
        }
        Ok(value as usize)
    }

    /// Reads the hyperparameters of `arch` from `source`.
    ///
    /// # Errors
    /// A missing key, or a value that no such model can have.
    pub fn read(arch: &str, source: &dyn Metadata) -> Result<Self, ConfigError> {
        let integer = |suffix: &str| Self::integer(arch, suffix, source);
        let or = |suffix: &str, usual: usize| match integer(suffix) {
            Err(ConfigError::Missing(_)) => Ok(usual),
            read => read,
        };
        let refused = |suffix, value: usize, why| Err(invalid(&format!("{arch}.{suffix}"), value as u64, why));
        let real = |suffix: &str| -> Result<f64, ConfigError> {
            let key = format!("{arch}.{suffix}");
            source.real(&key).ok_or(ConfigError::Missing(key))
        };
        if let Some(kind) = source.text(&format!("{arch}.rope.scaling.type"))
            && kind != "none"
        {
            return Err(ConfigError::Invalid(format!(
                "rope scaling `{kind}` is not supported; use a model without context extension"
            )));
        }
        let n_embd = integer("embedding_length")?;
        let n_heads = integer("attention.head_count")?;
        let n_kv_heads = or("attention.head_count_kv", n_heads)?;
        if n_heads % n_kv_heads != 0 {
            let why = "the number of query heads must be a multiple of it";
            return refused("attention.head_count_kv", n_kv_heads, why);
        }
        let head_dim = or("attention.key_length", n_embd / n_heads)?;
        if head_dim % 2 != 0 || head_dim == 0 {
            return refused("attention.key_length", head_dim, "rotary embedding needs an even head length");
        }
        let table = source.extent(EMBEDDING).and_then(|dims| dims.get(1).copied());
        let n_vocab = table.ok_or_else(|| ConfigError::Missing(EMBEDDING.to_owned()))? as usize;
        let n_layers = integer("block_count")?;
        if n_layers > usize::from(u16::MAX) {
            return refused("block_count", n_layers, "more layers than any model has");
        }
        Ok(Self {
            arch: arch.to_owned(),
            name: source.text("general.name").unwrap_or_else(|| arch.to_owned()),
            n_layers,
            n_embd,
            n_heads,
            n_kv_heads,
            head_dim,
            n_vocab,
            context: integer("context_length")?,
            rope_base: real("rope.freq_base").unwrap_or(10_000.0),
            rms_eps: real("attention.layer_norm_rms_epsilon")?,
        })
    }
}
