//! Scales of whole matrices: a file may have, beside `NAME.weight`, `NAME.scale`, by which the product is multiplied; of experts
//! one for each. Files in NVFP4 have them.

use super::Metadata;

/// Matrices that may have a scale, without `.weight`, and the stage that is their product times it. `output` stands outside the
/// layers.
const SCALED: &[(&str, &str)] = &[
    ("attn_q", "q_scaled"),
    ("attn_k", "k_scaled"),
    ("attn_v", "v_scaled"),
    ("attn_output", "attn_out_scaled"),
    ("attn_qkv", "delta_qkv_scaled"),
    ("attn_gate", "delta_z_scaled"),
    ("ffn_gate", "ffn_gate_scaled"),
    ("ffn_up", "ffn_up_scaled"),
    ("ffn_down", "ffn_down_scaled"),
    ("ffn_gate_shexp", "shared_gate_scaled"),
    ("ffn_up_shexp", "shared_up_scaled"),
    ("ffn_down_shexp", "shared_down_scaled"),
    ("ffn_gate_exps", "expert_gate_scaled"),
    ("ffn_up_exps", "expert_up_scaled"),
    ("ffn_down_exps", "expert_down_scaled"),
    ("ssm_out", "delta_proj_scaled"),
    ("ssm_alpha", "delta_a_scaled"),
    ("ssm_beta", "delta_b_scaled"),
    ("output", "logits_scaled"),
];

/// Scales that llama.cpp loads and never applies: by architecture, the beginnings of the matrices' names.
const UNAPPLIED: &[(&str, &[&str])] = &[
    ("qwen2", &["ffn_"]),
    ("qwen2vl", &["ffn_"]),
    ("qwen3vl", &["ffn_"]),
    ("qwen2moe", &["ffn_"]),
    ("qwen3vlmoe", &["ffn_"]),
    ("qwen3next", &["attn_qkv", "attn_gate", "ssm_out"]),
];

const SUFFIX: &str = ".scale";

/// Whether a tensor is a scale of this kind, or one of activations, which no engine needs that computes with f32 or 8 bits.
pub(super) fn is_scale(tensor: &str) -> bool {
    tensor.ends_with(SUFFIX)
}

/// As [`is_scale`]: of activations in NVFP4, of which no stage knows.
pub(super) fn is_of_activations(tensor: &str) -> bool {
    let name = tensor.strip_suffix(".input_scale");
    name.is_some_and(|name| SCALED.iter().any(|(matrix, _)| name.rsplit('.').next() == Some(matrix)))
}

/// The scale of the matrix `suffix` of a layer, or outside the layers, if the file has it: its name without the layer, the stage
/// that applies it, and whether llama.cpp does.
pub(super) fn of(
    arch: &str, source: &dyn Metadata, layer: Option<u16>, suffix: &str,
) -> Option<(String, &'static str, bool)> {
    let matrix = suffix.strip_suffix(".weight")?;
    let (_, stage) = SCALED.iter().find(|(name, _)| *name == matrix)?;
    let scale = format!("{matrix}{SUFFIX}");
    let full = layer.map_or_else(|| scale.clone(), |layer| format!("blk.{layer}.{scale}"));
    source.extent(&full)?;
    let unapplied = UNAPPLIED.iter().find(|(name, _)| *name == arch).map_or(&[][..], |(_, all)| all);
    Some((scale, stage, !unapplied.iter().any(|begin| matrix.starts_with(begin))))
}
