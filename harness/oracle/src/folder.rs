//! A folder of safetensors as the `safetensors` crate and serde read it: the oracle's weights and hyperparameters. It shares
//! nothing with the engine's reader but the mapped bytes, which files a folder has, and the table of names.

use anyhow::{Context as _, Result, ensure};
use half::{bf16, f16};
use qdiff_engine::folder::CONFIG;
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::{ARCHITECTURES, MAX_LAYERS, Metadata, WeightSource, of_transformers, skeleton};
use qdiff_engine::quant::{GgmlType, Stored};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::HashMap;

/// What of config.json the graphs are built from.
#[derive(Deserialize)]
struct Config {
    model_type: String,
    num_hidden_layers: u32,
    max_position_embeddings: u32,
    hidden_size: u32,
    intermediate_size: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
    head_dim: Option<u32>,
    rms_norm_eps: f32,
    rope_theta: Option<f32>,
    rope_parameters: Option<RopeParameters>,
    rope_scaling: Option<RopeParameters>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: Option<f32>,
}

struct Entry<'a> {
    ty: GgmlType,
    dims: Vec<u64>,
    bytes: &'a [u8],
    start: u64,
}

/// The tensors of a folder by their names in a GGUF, and its hyperparameters.
pub struct FolderWeights<'a> {
    config: Config,
    entries: HashMap<String, Entry<'a>>,
}

impl<'a> FolderWeights<'a> {
    /// Reads the files that `model` has mapped.
    ///
    /// # Errors
    /// A file that the crate refuses, or a config.json that lacks something.
    pub fn read(model: &'a Gguf) -> Result<Self> {
        let (config, shards) = model.parts().split_first().context("a folder without files")?;
        let config: Config = serde_json::from_slice(config.bytes()).context(CONFIG)?;
        let build = ARCHITECTURES.iter().find(|(arch, _)| *arch == config.model_type);
        let (_, build) = build.with_context(|| format!("{CONFIG}: `model_type` is {}", config.model_type))?;
        let layers = config.num_hidden_layers as usize;
        ensure!((1..=MAX_LAYERS).contains(&layers), "{CONFIG}: `num_hidden_layers` is {layers}");
        let names = of_transformers(&skeleton(*build, layers));
        let names: HashMap<&str, &str> = names.iter().map(|(own, theirs)| (theirs.as_str(), own.as_str())).collect();
        let mut entries = HashMap::new();
        for shard in shards {
            let shown = || shard.path.as_ref().map_or_else(String::new, |path| path.display().to_string());
            let read = SafeTensors::deserialize(shard.bytes()).with_context(shown)?;
            for (name, view) in read.iter() {
                let ty = match view.dtype() {
                    Dtype::F32 => GgmlType::F32,
                    Dtype::F16 => GgmlType::F16,
                    Dtype::BF16 => GgmlType::BF16,
                    other => anyhow::bail!("{}: tensor `{name}` is of dtype {other:?}", shown()),
                };
                let own = names.get(name).with_context(|| format!("{}: unknown tensor `{name}`", shown()))?;
                let start = view.data().as_ptr() as u64 - shard.bytes().as_ptr() as u64;
                let dims = view.shape().iter().rev().map(|n| *n as u64).collect();
                entries.insert((*own).to_owned(), Entry { ty, dims, bytes: view.data(), start });
            }
        }
        if config.tie_word_embeddings == Some(true)
            && let Some((_, tied)) = names.iter().find(|(theirs, _)| theirs.starts_with("lm_head."))
        {
            entries.remove(*tied);
        }
        Ok(Self { config, entries })
    }

    /// Extent in ggml's order.
    pub fn dims(&self, tensor: &str) -> Option<&[u64]> {
        self.entries.get(tensor).map(|entry| entry.dims.as_slice())
    }

    /// First byte of a tensor in its file.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn start(&self, tensor: &str) -> u64 {
        self.entry(tensor).start
    }

    fn entry(&self, tensor: &str) -> &Entry<'a> {
        self.entries.get(tensor).unwrap_or_else(|| panic!("tensor `{tensor}` was checked at load"))
    }
}

impl Metadata for FolderWeights<'_> {
    fn integer(&self, key: &str) -> Option<u64> {
        let config = &self.config;
        let value = match key.strip_prefix(&config.model_type)?.strip_prefix('.')? {
            "block_count" => config.num_hidden_layers,
            "context_length" => config.max_position_embeddings,
            "embedding_length" => config.hidden_size,
            "feed_forward_length" => config.intermediate_size,
            "attention.head_count" => config.num_attention_heads,
            "attention.head_count_kv" => config.num_key_value_heads,
            "attention.key_length" | "attention.value_length" | "rope.dimension_count" => config.head_dim?,
            _ => return None,
        };
        Some(value.into())
    }

    fn real(&self, key: &str) -> Option<f64> {
        let config = &self.config;
        let value = match key.strip_prefix(&config.model_type)?.strip_prefix('.')? {
            "attention.layer_norm_rms_epsilon" => config.rms_norm_eps,
            "rope.freq_base" => {
                let inner = [&config.rope_parameters, &config.rope_scaling].into_iter().flatten();
                config.rope_theta.or_else(|| inner.filter_map(|rope| rope.rope_theta).next())?
            }
            _ => return None,
        };
        Some(value.into())
    }

    fn text(&self, key: &str) -> Option<String> {
        (key == "general.architecture").then(|| self.config.model_type.clone())
    }

    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        self.dims(tensor).map(<[u64]>::to_vec)
    }
}

impl WeightSource for FolderWeights<'_> {
    fn stored(&self, tensor: &str) -> Stored<'_> {
        let Entry { ty, dims, bytes, .. } = self.entry(tensor);
        let row = dims.first().map_or(1, |n| *n as usize);
        Stored { ty: *ty, extent: (row, dims.iter().skip(1).product::<u64>() as usize), bytes }
    }

    fn rows(&self, tensor: &str, first: usize, out: &mut [f32]) {
        let Stored { ty, extent: (n, _), bytes } = self.stored(tensor);
        let size = if ty == GgmlType::F32 { 4 } else { 2 };
        let bytes = &bytes[first * n * size..][..out.len() * size];
        let halves = || bytes.as_chunks::<2>().0.iter().copied();
        match ty {
            GgmlType::F32 => {
                out.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
            }
            GgmlType::F16 => out.iter_mut().zip(halves()).for_each(|(x, b)| *x = f16::from_le_bytes(b).to_f32()),
            _ => out.iter_mut().zip(halves()).for_each(|(x, b)| *x = bf16::from_le_bytes(b).to_f32()),
        }
    }
}
