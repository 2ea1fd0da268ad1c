//! What a file must be so that llama.cpp can load it and computes what its graph says. llama.cpp ends the process over
//! some of this, and computes otherwise over some; each refusal names the key or the tensor, and what is expected.

use super::slices::tensor_of;
use super::{ConfigError, Graph, Metadata, Node, Role, config, scales};
use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::ops::Weight;
use crate::quant::GgmlType;
use crate::tokenizer::VocabError;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use thiserror::Error;

/// Why a model cannot be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file cannot be read as GGUF.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file describes no model that can be run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Tensors do not fit the graph.
    #[error("{0}")]
    Tensors(String),
    /// llama.cpp could not load the vocabulary.
    #[error(transparent)]
    Vocabulary(#[from] VocabError),
}

/// Whether a tensor of `found` has the extent that a graph declares. GGUF leaves
/// out trailing axes of length 1, or keeps them.
pub fn same_extent(found: &[u64], declared: &[usize]) -> bool {
    let axes = found.len().max(declared.len());
    (0..axes).all(|i| found.get(i).map_or(1, |&n| n as usize) == declared.get(i).copied().unwrap_or(1))
}

/// Where ggml's CPU backend wants mapped weights to begin: at multiples of so many bytes (`TENSOR_ALIGNMENT`).
const ALIGNMENT: u64 = 32;

/// Keys, without the architecture, by which engines compute another model than the graph says that did not ask for them, with
/// the values under which they change nothing: those of llama.cpp (`LLM_KV_NAMES` in llama-arch.cpp) that any decoder might
/// read, and two of ollama's.
const COMPUTING: &[(&str, &[f64])] = &[
    ("activation.situ_beta", &[]),
    ("attention.causal", &[1.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.compress_ratios", &[]),
    ("attention.indexer.top_k", &[0.0]),
    ("attention.kv_lora_rank", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.q_lora_rank", &[0.0]),
    ("attention.recurrent_layers", &[]),
    ("attention.scale", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.sliding_window", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("embedding_length_out", &[0.0]),
    ("embedding_length_per_layer_input", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("expert_count", &[0.0]),
    // Softmax, as everywhere here.
    ("expert_gating_func", &[0.0, 1.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_group_used_count", &[0.0]),
    ("expert_shared_count", &[0.0]),
    ("expert_shared_feed_forward_length", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("expert_weights_norm", &[]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("final_logit_softcapping", &[0.0]),
    ("full_attention_interval", &[]),
    ("hyper_connection.count", &[0.0, 1.0]),
    ("interleave_moe_layer_step", &[0.0, 1.0]),
    ("leading_dense_block_count", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("moe_every_n_layers", &[0.0, 1.0]),
    ("n_deepstack_layers", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
    ("ple.layers", &[]),
    ("residual_scale", &[0.0, 1.0]),
    ("rope.dimension_sections", &[]),
    ("rope.mrope_interleaved", &[0.0]),
    ("rope.scale_linear", &[0.0, 1.0]),
    ("rope.scaling.alpha", &[0.0]),
    ("rope.scaling.attn_factor", &[1.0]),
    ("rope.scaling.factor", &[0.0, 1.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
    ("rope.scaling.yarn_ext_factor", &[]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ("router_logit_softcapping", &[0.0]),
    ("ssm.conv_kernel", &[]),
    ("ssm.state_size", &[]),
    ("ssm.v_head_reordered", &[0.0]),
    ("swiglu_clamp_exp", &[0.0]),
    ("swiglu_clamp_shexp", &[0.0]),
    ("use_parallel_residual", &[0.0]),
];

/// Metadata that notes which of its keys are read.
pub(super) struct Asked<'a> {
    gguf: &'a Gguf,
    keys: RefCell<BTreeSet<String>>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(gguf: &'a Gguf) -> Self {
        Self { gguf, keys: RefCell::default() }
    }

    fn note(&self, key: &str) -> &'a Gguf {
        self.keys.borrow_mut().insert(key.to_owned());
        self.gguf
    }

    /// Refuses a key that nobody asked for, though engines compute by it.
    pub(super) fn complete(&self, arch: &str) -> Result<(), ConfigError> {
        let keys = self.keys.borrow();
        for (suffix, neutral) in COMPUTING {
            let key = format!("{arch}.{suffix}");
            let Some(value) = self.gguf.get(&key).filter(|_| !keys.contains(&key)) else { continue };
            let number = value.as_u64().map(|n| n as f64).or(value.as_f64()).or(value.as_bool().map(|b| b.into()));
            if !number.is_some_and(|n| neutral.contains(&n)) {
                let value = value.json(4);
                return Err(ConfigError::Invalid(format!(
                    "metadata key `{key}` is {value}: engines compute by it, and no {arch} model with it is supported yet; use one without it"
                )));
            }
        }
        Ok(())
    }
}

impl Metadata for Asked<'_> {
    fn integer(&self, key: &str) -> Option<u64> {
        self.note(key).integer(key)
    }
    fn real(&self, key: &str) -> Option<f64> {
        self.note(key).real(key)
    }
    fn boolean(&self, key: &str) -> Option<bool> {
        self.note(key).boolean(key)
    }
    fn integers(&self, key: &str) -> Option<Vec<i64>> {
        self.note(key).integers(key)
    }
    fn text(&self, key: &str) -> Option<String> {
        self.note(key).text(key)
    }
    fn extent(&self, tensor: &str) -> Option<Vec<u64>> {
        self.gguf.extent(tensor)
    }
    fn type_name(&self, key: &str) -> Option<&'static str> {
        self.gguf.type_name(key)
    }
}

/// Refuses a file that llama.cpp cannot map.
pub(super) fn alignment(gguf: &Gguf) -> Result<(), ConfigError> {
    if let Some(part) = gguf.parts().iter().find(|part| part.alignment < ALIGNMENT && !gguf.is_folder()) {
        let why = "llama.cpp maps weights at multiples of 32 bytes; expected 32 or a greater power of 2";
        return Err(config::invalid("general.alignment", part.alignment, why));
    }
    Ok(())
}

/// Refuses a file that lacks a tensor of the graph, holds one that is none of it, or holds one in another shape or in a
/// type that one of the engines cannot compute with.
pub(super) fn tensors(gguf: &Gguf, graph: &Graph) -> Result<(), LoadError> {
    let arch = &graph.config.arch;
    let refuse = |name: &str, what: String| Err(LoadError::Tensors(format!("tensor `{name}` {what}")));
    let weights = graph.tensors();
    let products = |node: &&Node| {
        let anatomy = node.op.anatomy();
        anatomy.multiplies_weights() || anatomy.looks_up()
    };
    // llama.cpp casts the taps of a convolution over residual streams.
    let cast = |node: &&Node| node.role == Role::Streams && node.op.anatomy().looks_back();
    let others = graph.nodes.iter().filter(|node| !products(node) && !cast(node));
    let plain: HashSet<&str> = others.flat_map(|node| &node.weights).map(|weight| tensor_of(&weight.name)).collect();
    for Weight { name, extent } in &weights {
        let Some(TensorInfo { dims, ggml_type, .. }) = gguf.tensor(name) else {
            // llama.cpp does without biases.
            let what = if extent.len() == 1 && name.ends_with(".bias") {
                format!("is missing; a {arch} model without it is not supported yet")
            } else {
                format!("is missing, and a {arch} model needs it; convert the model again")
            };
            return refuse(name, what);
        };
        let declared: Vec<u64> = extent.iter().map(|n| *n as u64).collect();
        // safetensors have the contiguous axis last, and leave none out.
        let (fits, found, declared, source) = match gguf.is_folder() {
            false => (same_extent(dims, extent), dims.clone(), declared, "the metadata say"),
            true => {
                let turned = |axes: &[u64]| -> Vec<u64> { axes.iter().rev().copied().collect() };
                (*dims == declared, turned(dims), turned(&declared), "config.json says")
            }
        };
        if !fits {
            return refuse(name, format!("has shape {found:?}, and {source} {declared:?}; convert the model again"));
        }
        if !ggml_type.is_supported() {
            let known: Vec<String> = GgmlType::ALL_SUPPORTED.iter().map(ToString::to_string).collect();
            let known = known.join(", ");
            return refuse(
                name,
                format!("is stored as {ggml_type}, which is not supported; requantise the model to one of {known}"),
            );
        }
        // ggml ends the process where it is to add or multiply by another type.
        if (extent.len() == 1 || plain.contains(name.as_str())) && *ggml_type != GgmlType::F32 && !gguf.is_folder() {
            let what = "llama.cpp computes with norms, biases and convolutions in F32 alone; convert the model again";
            return refuse(name, format!("is stored as {ggml_type}, expected F32: {what}"));
        }
    }
    let used: HashSet<&str> = weights.iter().map(|w| w.name.as_str()).collect();
    let c = &graph.config;
    let of_mtp = |tensor: &str| {
        let block = tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
        block.is_some_and(|block| (c.n_layers..c.n_layers + c.n_mtp).contains(&block))
    };
    let unread = |name: &str| scales::is_of_activations(name) || of_mtp(name);
    match gguf.tensors.iter().find(|t| !used.contains(t.name.as_str()) && !unread(&t.name)) {
        Some(TensorInfo { name, .. }) => {
            let layers = graph.config.n_layers;
            let what = "if llama.cpp loads the file, it computes with that tensor, and this is not supported yet; if \
                        not, convert the model again";
            refuse(name, format!("is none that qdiff knows of a {arch} model of {layers} layers: {what}"))
        }
        None => Ok(()),
    }
}
