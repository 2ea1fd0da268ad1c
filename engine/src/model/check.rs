//! What a file must be so that llama.cpp can load it and computes what its graph says. llama.cpp ends the process over
//! some of this, and computes otherwise over some; each refusal names the key or the tensor, and what is expected.

use super::{Architecture, ConfigError, Graph, LoadError, architecture, config, same_extent};
use crate::gguf::{Gguf, TensorInfo};
use crate::ops::Weight;
use crate::quant::GgmlType;
use std::collections::HashSet;

/// Where ggml's CPU backend wants mapped weights to begin: at multiples of so many bytes (`TENSOR_ALIGNMENT`).
const ALIGNMENT: u64 = 32;

/// Keys, without the architecture, by which llama.cpp loads or computes another model than any graph here
/// (`load_hparams` in llama-model.cpp), with the values under which they change nothing.
const FIXED: &[(&str, &[f64])] = &[
    ("attention.causal", &[1.0]),
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("expert_group_count", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
    ("rope.scaling.factor", &[0.0, 1.0]),
    ("rope.scale_linear", &[0.0, 1.0]),
    ("rope.scaling.attn_factor", &[1.0]),
];

/// Refuses metadata of a model that no graph describes.
pub(super) fn metadata(gguf: &Gguf, known: &[Architecture]) -> Result<(), ConfigError> {
    let (arch, _) = architecture(gguf, known)?;
    if let Some(part) = gguf.parts().iter().find(|part| part.alignment < ALIGNMENT && !gguf.is_folder()) {
        let why = "llama.cpp maps weights at multiples of 32 bytes; expected 32 or a greater power of 2";
        return Err(config::invalid("general.alignment", part.alignment, why));
    }
    for (suffix, neutral) in FIXED {
        let key = format!("{arch}.{suffix}");
        let Some(value) = gguf.get(&key) else { continue };
        let number = value.as_u64().map(|n| n as f64).or(value.as_f64()).or(value.as_bool().map(|b| b.into()));
        if !number.is_some_and(|n| neutral.contains(&n)) {
            let value = value.json(4);
            return Err(ConfigError::Invalid(format!(
                "metadata key `{key}` is {value}: llama.cpp computes by it, and such models are not supported yet; use one without it"
            )));
        }
    }
    Ok(())
}

/// Refuses a file that lacks a tensor of the graph, holds one that is none of it, or holds one in another shape or in a
/// type that one of the engines cannot compute with.
pub(super) fn tensors(gguf: &Gguf, graph: &Graph) -> Result<(), LoadError> {
    let arch = &graph.config.arch;
    let refuse = |name: &str, what: String| Err(LoadError::Tensors(format!("tensor `{name}` {what}")));
    let weights = graph.weights();
    for Weight { name, extent } in &weights {
        let Some(TensorInfo { dims, ggml_type, .. }) = gguf.tensor(name) else {
            // llama.cpp does without biases, and takes fused projections.
            let what = if extent.len() == 1 && name.ends_with(".bias") {
                format!("is missing; a {arch} model without it is not supported yet")
            } else if let Some(fused) = gguf.tensors.iter().find(|t| t.name.contains(".attn_qkv.")) {
                format!("is missing, and `{}` is there; fused projections are not supported yet", fused.name)
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
        if extent.len() == 1 && *ggml_type != GgmlType::F32 && !gguf.is_folder() {
            let what = "llama.cpp computes with norms and biases in F32 alone; convert the model again";
            return refuse(name, format!("is stored as {ggml_type}, expected F32: {what}"));
        }
    }
    let used: HashSet<&str> = weights.iter().map(|w| w.name.as_str()).collect();
    match gguf.tensors.iter().find(|t| !used.contains(t.name.as_str())) {
        Some(TensorInfo { name, .. }) => {
            let layers = graph.config.n_layers;
            let what = "if llama.cpp loads the file, it computes with that tensor, and this is not supported yet; if \
                        not, convert the model again";
            refuse(name, format!("is none that qdiff knows of a {arch} model of {layers} layers: {what}"))
        }
        None => Ok(()),
    }
}
