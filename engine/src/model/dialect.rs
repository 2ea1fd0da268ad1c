//! What Hugging Face transformers calls the modules and the tensors of a model: the one table of these names.

use super::{Graph, Node, Role};
use crate::ops::Op;
use std::collections::BTreeMap;

/// The module of transformers that holds the weights of `node`, as its layer (or, outside layers, its decoder) calls it.
/// `None` of a node without weights.
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

/// The name that transformers gives each tensor of `graph`, by the name in a GGUF. llama.cpp's converter leaves the values
/// of these tensors as they are.
pub fn of_transformers(graph: &Graph) -> BTreeMap<String, String> {
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
            let names = of_transformers(&graph);
            assert_eq!(names.len(), graph.weights().len(), "{arch}");
            assert_eq!(names.values().collect::<BTreeSet<_>>().len(), names.len(), "{arch}");
            assert!(graph.nodes.iter().all(|n| n.weights.len() < 2), "{arch}: each tensor of a node needs a name");
        }
    }
}
