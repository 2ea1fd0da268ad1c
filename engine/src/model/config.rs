//! Hyperparameters, read from GGUF metadata or from any other source of it.

use crate::gguf::{ArrayValue, Gguf, Value};
use crate::ops::{Rope, Scaling};
use std::fmt::Display;
use std::ops::RangeInclusive;
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
    /// The value of a key that is true or false, if present.
    fn boolean(&self, _key: &str) -> Option<bool> {
        None
    }
    /// The values of a key that is a list of integers, if present.
    fn integers(&self, _key: &str) -> Option<Vec<i64>> {
        None
    }
    /// The value of a text key, if present.
    fn text(&self, key: &str) -> Option<String>;
    /// Extent of a tensor in ggml order (contiguous axis first), if present.
    fn extent(&self, tensor: &str) -> Option<Vec<u64>>;
    /// The type of the value of `key`, if present, where the source knows types: the type that was found.
    fn type_name(&self, _key: &str) -> Option<&'static str> {
        None
    }
}

/// Of integers only u32, of reals only f32: llama.cpp reads hyperparameters from no other type.
impl Metadata for Gguf {
    fn integer(&self, key: &str) -> Option<u64> {
        self.get(key).filter(|v| matches!(v, Value::U32(_))).and_then(Value::as_u64)
    }
    fn real(&self, key: &str) -> Option<f64> {
        self.get(key).filter(|v| matches!(v, Value::F32(_))).and_then(Value::as_f64)
    }
    fn boolean(&self, key: &str) -> Option<bool> {
        self.get(key).and_then(Value::as_bool)
    }
    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        match self.get(key)? {
            Value::Array(ArrayValue::Bool(all)) => Some(all.iter().map(|is| i64::from(*is)).collect()),
            Value::Array(ArrayValue::I32(all)) => Some(all.iter().map(|n| i64::from(*n)).collect()),
            Value::Array(ArrayValue::U32(all)) => Some(all.iter().map(|n| i64::from(*n)).collect()),
            Value::Array(ArrayValue::U64(all)) => Some(all.iter().map(|n| n.cast_signed()).collect()),
            _ => None,
        }
    }
    fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(Value::as_str).map(str::to_owned)
    }
    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        self.tensor(tensor).map(|t| t.dims.clone())
    }
    fn type_name(&self, key: &str) -> Option<&'static str> {
        self.get(key).map(Value::type_name)
    }
}

/// Why a GGUF file cannot be run.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A key the graph needs is absent.
    #[error(
        "metadata key `{0}` is missing; the file is incomplete: convert the model again with llama.cpp's converter"
    )]
    Missing(String),
    /// A key has a value that no such model can have, or none that this engine can run.
    #[error("{0}")]
    Invalid(String),
}

/// `key` has a value that no model can have.
pub(super) fn invalid(key: &str, value: impl Display, why: &str) -> ConfigError {
    ConfigError::Invalid(format!("metadata key `{key}` is {value}: {why}; convert the model again"))
}

/// `key` has a value that a right file may have, and that no graph describes.
pub(super) fn unsupported(key: &str, value: impl Display, what: &str) -> ConfigError {
    ConfigError::Invalid(format!("metadata key `{key}` is {value}: {what} not supported yet; use another model"))
}

/// `key` has no value of the type `expected`.
pub(super) fn absent(source: &dyn Metadata, key: &str, expected: &str) -> ConfigError {
    match source.type_name(key) {
        Some(found @ "arr") if BY_LAYER.iter().any(|suffix| key.ends_with(suffix)) => {
            let what = format!("expected {expected}; a value for each layer is");
            unsupported(key, format_args!("of type {found}"), &what)
        }
        Some(found) => ConfigError::Invalid(format!(
            "metadata key `{key}` is of type {found}, expected {expected}; convert the model again"
        )),
        None => ConfigError::Missing(key.to_owned()),
    }
}

/// Layers that llama.cpp has room for (`LLAMA_MAX_LAYERS`); with more it ends the process.
pub const MAX_LAYERS: usize = 512;

/// Keys that hold a number for each layer where the layers of a model differ.
const BY_LAYER: [&str; 4] =
    [".attention.head_count", ".attention.head_count_kv", ".feed_forward_length", ".expert_used_count"];

/// Key of how much of a head RoPE rotates.
pub(super) const ROTATED: &str = "rope.dimension_count";

/// Key of what is added to mean squares.
pub(super) const EPSILON: &str = "attention.layer_norm_rms_epsilon";

/// Tensor of the embedding table, whose rows are the vocabulary of every model.
pub(crate) const EMBEDDING: &str = "token_embd.weight";

/// Values of every model, for any kind of layer. Values of only some models (the width of a feed-forward network, the
/// number of experts) an architecture reads itself and keeps in its nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`.
    pub arch: String,
    /// `general.name`, for display.
    pub name: String,
    /// Number of layers.
    pub n_layers: usize,
    /// Blocks behind the layers that guess further tokens (multi-token prediction) and take no part in a step.
    pub n_mtp: usize,
    /// Width of the residual stream, E.
    pub n_embd: usize,
    /// Query heads, H.
    pub n_heads: usize,
    /// Key and value heads, G; H is a multiple of it.
    pub n_kv_heads: usize,
    /// Length of one head, D.
    pub head_dim: usize,
    /// Elements at the start of a head that RoPE rotates.
    pub rotated: usize,
    /// Number of token ids, V: the rows of the embedding table.
    pub n_vocab: usize,
    /// Longest context the model was trained on, in tokens.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// How angles are scaled for a longer context.
    pub rope_scaling: Option<Scaling>,
    /// Epsilon of RMSNorm.
    pub rms_eps: f64,
    /// What llama.cpp computes otherwise than the model says, as a clause.
    pub llama_departs: Option<String>,
}

/// What llama.cpp does of a key by which the model is otherwise than it computes: see [`Config::llama_departs`].
pub(super) fn unread_by_llama(key: &str) -> String {
    format!("llama.cpp never reads the metadata key `{key}`")
}

impl Config {
    /// Leaves out the blocks that guess further tokens: `block_count` counts them.
    ///
    /// # Errors
    /// As many of them as there are blocks.
    pub(super) fn without_mtp(mut self, source: &dyn Metadata) -> Result<Self, ConfigError> {
        let key = format!("{}.nextn_predict_layers", self.arch);
        self.n_mtp = source.integer(&key).unwrap_or(0) as usize;
        if self.n_mtp >= self.n_layers {
            return Err(invalid(&key, self.n_mtp, &format!("`block_count`, {}, leaves no layer", self.n_layers)));
        }
        self.n_layers -= self.n_mtp;
        Ok(self)
    }

    /// The rotation of queries and keys.
    pub fn rope(&self) -> Rope {
        Rope { rotated: self.rotated, scaling: self.rope_scaling, ..Rope::neox(self.rope_base, self.head_dim) }
    }

    /// The integer `<arch>.<suffix>` of `source`.
    ///
    /// # Errors
    /// If it is missing, 0, or beyond 2^24, which bounds a graph's size by something that no real model reaches.
    pub fn integer(arch: &str, suffix: &str, source: &dyn Metadata) -> Result<usize, ConfigError> {
        let key = format!("{arch}.{suffix}");
        let value = source.integer(&key).ok_or_else(|| absent(source, &key, "u32"))?;
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
        let key = |suffix: &str| format!("{arch}.{suffix}");
        let integer = |suffix: &str| Self::integer(arch, suffix, source);
        let or = |suffix: &str, usual: usize| match integer(suffix) {
            Err(ConfigError::Missing(_)) => Ok(usual),
            read => read,
        };
        let refused = |suffix, value: usize, why: &str| Err(invalid(&key(suffix), value, why));
        let real = |suffix: &str, usual: Option<f64>, range: RangeInclusive<f64>| {
            let key = key(suffix);
            let read = source.real(&key).ok_or_else(|| absent(source, &key, "f32"));
            let value = match (read, usual) {
                (Err(ConfigError::Missing(_)), Some(usual)) => usual,
                (read, _) => read?,
            };
            // NaN is in no range. Told as the f32 that the file holds.
            let expected = || format!("expected a number from {:?} to {:?}", range.start(), range.end());
            let told = || format!("{:?}", value as f32);
            if range.contains(&value) { Ok(value) } else { Err(invalid(&key, told(), &expected())) }
        };
        let n_embd = integer("embedding_length")?;
        let n_heads = integer("attention.head_count")?;
        let n_kv_heads = or("attention.head_count_kv", n_heads)?;
        if n_heads % n_kv_heads != 0 {
            let why = format!("the {n_heads} query heads are no multiple of it");
            return refused("attention.head_count_kv", n_kv_heads, &why);
        }
        let head_dim = match integer("attention.key_length") {
            Err(ConfigError::Missing(_)) if n_embd % n_heads == 0 => n_embd / n_heads,
            Err(ConfigError::Missing(_)) => {
                let why = format!("`embedding_length`, {n_embd}, is no multiple of it, and there is no `key_length`");
                return refused("attention.head_count", n_heads, &why);
            }
            read => read?,
        };
        if head_dim % 2 != 0 {
            let why = format!("heads of {head_dim} cannot be rotated; expected an even length");
            return match source.integer(&key("attention.key_length")) {
                Some(_) => refused("attention.key_length", head_dim, &why),
                None => refused("attention.head_count", n_heads, &why),
            };
        }
        let value_length = "attention.value_length";
        let found = or(value_length, head_dim)?;
        if found != head_dim {
            let what = format!("keys have {head_dim}; values of another length than keys are");
            return Err(unsupported(&key(value_length), found, &what));
        }
        let rotated = or(ROTATED, head_dim)?;
        if rotated > head_dim || rotated % 2 != 0 {
            return refused(ROTATED, rotated, &format!("expected {head_dim}, the length of a head"));
        }
        let table = source.extent(EMBEDDING).ok_or_else(|| {
            ConfigError::Invalid(format!(
                "tensor `{EMBEDDING}` is missing, and every model needs it; convert the model again"
            ))
        })?;
        let n_layers = integer("block_count")?;
        if n_layers > MAX_LAYERS {
            return refused("block_count", n_layers, &format!("expected at most {MAX_LAYERS} layers"));
        }
        // A base below 1 turns the rotations round; llama.cpp takes 10,000 where none is given.
        let (context, rope_base) = (integer("context_length")?, real("rope.freq_base", Some(10_000.0), 1.0..=1e30)?);
        let optional = |suffix: &str, usual: f64| real(suffix, Some(usual), 1e-6..=1e6);
        let kind = source.text(&key("rope.scaling.type")).unwrap_or_else(|| "linear".to_owned());
        // The older key is read where the newer is not there; 0 is none.
        let factor = match source.real(&key("rope.scaling.factor")).or(source.real(&key("rope.scale_linear"))) {
            None | Some(0.0) => 1.0,
            Some(_) if source.real(&key("rope.scaling.factor")).is_some() => optional("rope.scaling.factor", 1.0)?,
            Some(_) => optional("rope.scale_linear", 1.0)?,
        };
        let extra = optional("rope.scaling.attn_factor", 1.0)?;
        let mut llama_departs = None;
        let rope_scaling = match kind.as_str() {
            "none" | "linear" => {
                let factor = if kind == "none" { 1.0 } else { factor };
                (factor != 1.0 || extra != 1.0).then_some(Scaling { factor, magnitude: extra, between: None })
            }
            "yarn" => {
                let trained = or("rope.scaling.original_context_length", context)? as f64;
                let turns = [("rope.scaling.yarn_beta_fast", 32.0), ("rope.scaling.yarn_beta_slow", 1.0)];
                let [fast, slow] = turns.map(|(suffix, usual)| optional(suffix, usual));
                let [fast, slow] = [fast?, slow?];
                let unread = turns.iter().zip([fast, slow]).find(|((_, usual), turns)| turns != usual);
                llama_departs = unread.map(|((suffix, _), _)| unread_by_llama(&key(suffix)));
                let between = Scaling::planes((rotated, rope_base), trained, [fast, slow]);
                // Angles that are not made smaller keep their magnitude.
                let magnitude = extra * (1.0 + 0.1 * factor.ln().max(0.0));
                Some(Scaling { factor, magnitude, between: Some(between) })
            }
            _ => {
                let what = "scaling of this kind is";
                return Err(unsupported(&key("rope.scaling.type"), format_args!("`{kind}`"), what));
            }
        };
        Ok(Self {
            arch: arch.to_owned(),
            name: source.text("general.name").unwrap_or_else(|| arch.to_owned()),
            n_layers,
            n_mtp: 0,
            n_embd,
            n_heads,
            n_kv_heads,
            head_dim,
            rotated,
            n_vocab: table.get(1).map_or(1, |rows| *rows as usize),
            context,
            rope_base,
            rope_scaling,
            rms_eps: real(EPSILON, None, 0.0..=1.0)?,
            llama_departs,
        })
    }
}
