//! vLLM and SGLang: projections are fused, and the residual is added within the norm that reads it.

use super::transformers::module;
use super::{Columns, Place, Site, at, columns, projected};
use crate::model::{Node, Role};
use crate::ops::Op;

/// What both have.
fn fused(node: &Node) -> Option<Place> {
    let gate_up = "mlp.gate_up_proj";
    Some(match (&node.op, node.role) {
        (Op::RmsNorm(_), Role::AttnInput) => {
            at(Site::Part("input_layernorm", 0)).noted("its only output in the first layer")
        }
        (Op::RmsNorm(_), Role::FfnInput | Role::HeadInput) => at(Site::Part(module(node)?, 0)),
        (Op::Linear | Op::Bias, Role::Query | Role::Key | Role::Value) => {
            projected(node, Site::Columns("self_attn.qkv_proj", columns(node)))
        }
        (Op::Rope(_), Role::Query) => at(Site::Part("self_attn.rotary_emb", 0)),
        (Op::Rope(_), _) => at(Site::Part("self_attn.rotary_emb", 1)),
        (Op::AttnContext(_), _) => at(Site::Output("self_attn.attn")),
        (Op::Linear, Role::AttnOutput | Role::FfnOutput) => {
            at(Site::Part(module(node)?, 0)).noted("after the all-reduce")
        }
        (Op::Residual, Role::AttnOutput) => at(Site::Part("post_attention_layernorm", 1)),
        (Op::Linear, Role::Gate) => at(Site::Columns(gate_up, Columns::First)),
        (Op::Linear, Role::Up) => at(Site::Columns(gate_up, Columns::Second)),
        (Op::SwiGlu, _) => at(Site::Output("mlp.act_fn")),
        (Op::Residual, Role::FfnOutput) => at(Site::NextNorm(1)),
        (Op::Linear, Role::Logits) => at(Site::Output("logits_processor")).noted("without its padding"),
        _ => at(Site::Output(module(node)?)),
    })
}

/// Where vLLM has a stage.
pub(super) fn vllm(node: &Node) -> Option<Place> {
    Some(match (&node.op, node.role) {
        (Op::KvCache(_), Role::Key) => at(Site::Columns("self_attn.attn.kv_cache", Columns::First))
            .noted("by the block table, as [blocks, G, block, D]"),
        (Op::KvCache(_), _) => at(Site::Columns("self_attn.attn.kv_cache", Columns::Second))
            .noted("by the block table, as [blocks, G, block, D]"),
        _ => return fused(node),
    })
}

/// Where SGLang has a stage.
pub(super) fn sglang(node: &Node) -> Option<Place> {
    Some(match (&node.op, node.role) {
        (Op::KvCache(_), Role::Key) => {
            at(Site::Kept("token_to_kv_pool.k_buffer[i]")).noted("by req_to_token, as [slots, G, D]")
        }
        (Op::KvCache(_), _) => {
            at(Site::Kept("token_to_kv_pool.v_buffer[i]")).noted("by req_to_token, as [slots, G, D]")
        }
        _ => return fused(node),
    })
}
