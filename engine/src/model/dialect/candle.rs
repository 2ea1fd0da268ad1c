//! The quantized models of candle-transformers. candle has no hooks: a place is a field whose result is tapped in the code, or a
//! variable.

use super::{Place, Site, at, projected};
use crate::model::{Node, Role};
use crate::ops::Op;

/// Where it has a stage.
pub(super) fn place(node: &Node) -> Option<Place> {
    let rotated = "apply_rotary_emb";
    Some(match (&node.op, node.role) {
        (Op::Embed, _) => at(Site::Output("tok_embeddings")),
        (Op::RmsNorm(_), Role::AttnInput) => at(Site::Output("attention_norm")),
        (Op::RmsNorm(_), Role::FfnInput) => at(Site::Output("ffn_norm")),
        (Op::RmsNorm(_), Role::HeadInput) => at(Site::Output("norm")),
        (Op::RmsNorm(_), Role::Query) => at(Site::Output("q_norm")),
        (Op::RmsNorm(_), _) => at(Site::Output("k_norm")),
        (Op::Linear, Role::Query) => at(Site::Output("attention_wq")),
        (Op::Linear, Role::Key) => at(Site::Output("attention_wk")),
        (Op::Linear, Role::Value) => at(Site::Output("attention_wv")),
        (Op::Bias, Role::Query) => projected(node, Site::Variable("q")).noted("after `attention_bq`"),
        (Op::Bias, Role::Key) => projected(node, Site::Variable("k")).noted("after `attention_bk`"),
        (Op::Bias, _) => projected(node, Site::Variable("v")).noted("after `attention_bv`"),
        (Op::Rope(_), Role::Query) => at(Site::Function(rotated, None)).noted("its first call, as [batch, H, T, D]"),
        (Op::Rope(_), _) => at(Site::Function(rotated, None)).noted("its second call, as [batch, G, T, D]"),
        (Op::KvCache(_), Role::Key) => at(Site::Kept("kv_cache.0")).noted("as [batch, G, N, D]"),
        (Op::KvCache(_), _) => at(Site::Kept("kv_cache.1")).noted("as [batch, G, N, D]"),
        (Op::AttnScores(_), _) => at(Site::Variable("att")).noted("before it is scaled"),
        (Op::AttnWeights(_), _) => at(Site::Variable("att")).noted("after softmax"),
        (Op::AttnContext(_), _) => at(Site::Input("attention_wo")),
        (Op::Linear, Role::AttnOutput) => at(Site::Output("attention_wo")),
        (Op::Residual, Role::AttnOutput) => at(Site::Input("ffn_norm")),
        (Op::Linear, Role::Gate) => at(Site::Output("feed_forward_w1")),
        (Op::Linear, Role::Up) => at(Site::Output("feed_forward_w3")),
        (Op::SwiGlu, _) => at(Site::Input("feed_forward_w2")),
        (Op::Linear, Role::FfnOutput) => at(Site::Output("feed_forward_w2")),
        (Op::Residual, _) => at(Site::Layer),
        (Op::Linear, Role::Logits) => at(Site::Output("output")).noted("for the last token only"),
        _ => return None,
    })
}
