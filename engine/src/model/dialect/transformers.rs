//! Hugging Face transformers: its modules, the functions between them, and the tensors of its checkpoints.

use super::{Place, Site, at, projected};
use crate::model::{Graph, Node, Role};
use crate::ops::Op;
use std::collections::BTreeMap;

/// The module that holds the weights of `node`. `None` of a node without weights.
pub(super) fn module(node: &Node) -> Option<&'static str> {
    Some(match (&node.op, node.role) {
        (Op::Embed, _) => "embed_tokens",
        (Op::RmsNorm(_), Role::AttnInput) => "input_layernorm",
        (Op::RmsNorm(_), Role::FfnInput) => "post_attention_layernorm",
        (Op::RmsNorm(_), Role::HeadInput) => "norm",
        (Op::RmsNorm(_), Role::Query) => "self_attn.q_norm",
        (Op::RmsNorm(_), Role::Key) => "self_attn.k_norm",
        (Op::Linear | Op::Bias, Role::Query) => "self_attn.q_proj",
        (Op::Linear | Op::Bias, Role::Key) => "self_attn.k_proj",
        (Op::Linear | Op::Bias, Role::Value) => "self_attn.v_proj",
        (Op::Linear, Role::AttnOutput) => "self_attn.o_proj",
        (Op::Linear, Role::Gate) => "mlp.gate_proj",
        (Op::Linear, Role::Up) => "mlp.up_proj",
        (Op::Linear, Role::FfnOutput) => "mlp.down_proj",
        (Op::Linear, Role::Logits) => "lm_head",
        _ => return None,
    })
}

/// What every engine has whose modules are named as these: all that modules give and are given.
pub(super) fn modules(node: &Node) -> Option<Place> {
    Some(match (&node.op, node.role) {
        (Op::Linear | Op::Bias, Role::Query | Role::Key | Role::Value) => projected(node, Site::Output(module(node)?)),
        (Op::AttnContext(_), _) => at(Site::Input("self_attn.o_proj")),
        (Op::Residual, Role::AttnOutput) => at(Site::Input("post_attention_layernorm")),
        (Op::SwiGlu, _) => at(Site::Input("mlp.down_proj")),
        (Op::Residual, Role::FfnOutput) => at(Site::Layer),
        _ => at(Site::Output(module(node)?)),
    })
}

/// Where it has a stage.
pub(super) fn place(node: &Node) -> Option<Place> {
    let rotated = "apply_rotary_pos_emb";
    let eager = "eager_attention_forward";
    Some(match (&node.op, node.role) {
        (Op::Rope(_), Role::Query) => at(Site::Function(rotated, Some(0))).noted("as [batch, H, T, D]"),
        (Op::Rope(_), _) => at(Site::Function(rotated, Some(1))).noted("as [batch, G, T, D]"),
        (Op::KvCache(_), Role::Key) => at(Site::Kept("past_key_values.layers[i].keys")).noted("as [batch, G, N, D]"),
        (Op::KvCache(_), _) => at(Site::Kept("past_key_values.layers[i].values")).noted("as [batch, G, N, D]"),
        (Op::AttnScores(_), _) => at(Site::FirstProduct(eager)).noted("of eager attention only"),
        (Op::AttnWeights(_), _) => at(Site::Function(eager, Some(1))).noted("of eager attention only"),
        _ => return modules(node),
    })
}

/// The name that transformers gives each tensor of `graph`, by the name in a GGUF. llama.cpp's converter leaves the values
/// of these tensors as they are.
pub fn tensors(graph: &Graph) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for node in &graph.nodes {
        let (Some(module), Some(weight)) = (module(node), node.weights.first()) else { continue };
        let parameter = if node.op == Op::Bias { "bias" } else { "weight" };
        let name = match (node.id.layer, node.role) {
            (Some(layer), _) => format!("model.layers.{layer}.{module}.{parameter}"),
            (None, Role::Logits) => format!("{module}.{parameter}"),
            (None, _) => format!("model.{module}.{parameter}"),
        };
        // A tied head reads the table of the embedding, which comes first.
        names.entry(weight.name.clone()).or_insert(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{qwen2, qwen3, skeleton};
    use std::collections::BTreeSet;

    #[test]
    fn every_tensor_has_one_name_in_transformers() {
        for (arch, build) in [(qwen2::ARCH, qwen2::graph as _), (qwen3::ARCH, qwen3::graph as _)] {
            let graph = skeleton(build, 3);
            let names = tensors(&graph);
            assert_eq!(names.len(), graph.weights().len(), "{arch}");
            assert_eq!(names.values().collect::<BTreeSet<_>>().len(), names.len(), "{arch}");
            assert!(graph.nodes.iter().all(|n| n.weights.len() < 2), "{arch}: each tensor of a node needs a name");
        }
    }
}
