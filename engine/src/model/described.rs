//! Every stage in words. Where engines have it say their dialects.

use super::{Axis, Node, Role};
use crate::ops::{Definition, Op, RowSoftmax};

/// Its shape in symbols: T tokens of this step, N tokens so far, E width of the residual stream, H query heads, G heads of
/// keys and values, D width of a head, F width of the feed-forward network, X experts, K of them that a token takes, M any width
/// of a delta net, of residual streams or of an indexer (two M in one shape may differ), V size of the vocabulary.
pub fn symbolic(node: &Node) -> String {
    let symbols: &[&str] = match (node.role, &node.op) {
        // Two parts in one product.
        _ if node.id.name == "q_gate_proj" => &["2·H·D"],
        _ if node.id.name == "expert_gate_up" => &["2·F"],
        (Role::Query, _) | (Role::Attention, Op::AttnContext(_)) => &["H", "D"],
        (Role::Key | Role::Value, _) => &["G", "D"],
        (Role::Attention, _) => &["H"],
        (Role::Gate | Role::Up | Role::FfnHidden, _) => &["F"],
        (Role::Logits, _) => &["V"],
        (Role::Mixer | Role::Streams | Role::Index, _) => &["M", "M"],
        (Role::Router, op) if op.anatomy().is_layer() || op.name() == RowSoftmax.name() => &["X"],
        (Role::Router, _) => &["K"],
        (
            Role::Embedding | Role::AttnInput | Role::AttnOutput | Role::FfnInput | Role::FfnOutput | Role::HeadInput,
            _,
        ) => &["E"],
    };
    let role = node.role;
    let of_experts = [&["K"], symbols].concat();
    let of_network = matches!(role, Role::Gate | Role::Up | Role::FfnHidden | Role::FfnOutput);
    let symbols = if of_network && node.shape.len() == 3 { of_experts.as_slice() } else { symbols };
    let wide = matches!(role, Role::Mixer | Role::Streams | Role::Index);
    let symbols = if wide && node.shape.len() == 2 { &["M"] } else { symbols };
    let fixed = node.shape.iter().filter(|a| matches!(a, Axis::Fixed(_))).count();
    // An op defined outside the engine has its own axes.
    let numbers = || node.shape.iter().filter_map(|a| if let Axis::Fixed(n) = a { Some(n.to_string()) } else { None });
    // Heads and their elements may share one axis.
    let names = if fixed > symbols.len() {
        numbers().collect()
    } else if fixed < symbols.len() {
        vec![symbols.join("·")]
    } else {
        symbols.iter().map(|s| (*s).to_owned()).collect()
    };
    let mut names = names.into_iter();
    let axis = |axis: &Axis| match axis {
        Axis::Tokens => "T".to_owned(),
        Axis::Keys => "N".to_owned(),
        Axis::Last => "1".to_owned(),
        Axis::Fixed(1) => "1".to_owned(),
        Axis::Fixed(_) => names.next().unwrap_or_default(),
    };
    node.shape.iter().map(axis).collect::<Vec<_>>().join(", ")
}

/// A stage in words: before or after what, and the contents of entries that are not read.
pub fn described(node: &Node) -> &'static str {
    match (&node.op, node.role) {
        (Op::Defined(_), _) if node.id.name == "delta_q_normed" => "each head of the queries, divided by its L2 norm",
        (Op::Defined(_), _) if node.id.name == "delta_k_normed" => "each head of the keys, divided by its L2 norm",
        (Op::Defined(op), _) => op.about(),
        (Op::Embed, _) => "rows of the embedding table",
        (Op::RmsNorm(_), Role::AttnInput) => "the residual stream, normed and times the norm's weight",
        (Op::RmsNorm(_), Role::FfnInput) => "the residual stream after attention, normed and times the norm's weight",
        (Op::RmsNorm(_), Role::HeadInput) => "the last layer's output, normed and times the norm's weight",
        (Op::RmsNorm(_), Role::Mixer) => "each head of the delta net's output, normed and times the norm's weight",
        (Op::SwiGlu, Role::Mixer) => "SiLU of the gate z, times the normed output",
        (Op::Linear, Role::Mixer | Role::Streams | Role::Index) => by_name(node.id.name),
        (Op::RmsNorm(_), Role::Index) => "each head of the indexer's queries, normed and times the norm's weight",
        (Op::Rope(_), Role::Index) => "the indexer's queries, rotated",
        (Op::RmsNorm(_), _) => "each head normed and times the norm's weight, before rotation",
        (Op::Linear, Role::Query | Role::Key | Role::Value) => {
            "the product with the weight, before the bias and the norm of heads, if there are any"
        }
        (Op::Bias, Role::Query | Role::Key) => "after the bias, before rotation",
        (Op::Bias, _) => "after the bias",
        (Op::Rope(_), Role::Query) => "rotated, and not yet scaled",
        (Op::Rope(_), _) => "rotated; each of the G heads once, not repeated for the query heads that share it",
        (Op::KvCache(_), Role::Index) => "the indexer's keys so far, in the order of positions",
        (Op::KvCache(_), _) => "all rows so far, this step's included, in the order of positions",
        (Op::AttnScores(_), _) => {
            "queries times keys, neither scaled nor masked; values at keys after the token do not count"
        }
        (Op::AttnWeights(_), _) => "softmax of the scaled and masked scores; keys after the token are 0",
        (Op::AttnContext(_), _) => "weights times values, before the output projection",
        (Op::Linear, Role::AttnOutput) => "the output projection, before the residual is added",
        (Op::Residual, Role::AttnOutput) => "the layer's input plus the output projection",
        (Op::Linear, Role::Router) if node.id.name == "shared_score" => "the score of the shared expert",
        (Op::Linear, Role::Router) => "a score for each expert",
        (Op::Linear, Role::Gate) => "the gate's product, before SiLU",
        (Op::Linear, Role::Up) => "the up projection",
        (Op::SwiGlu, _) => "SiLU of the gate, times the up projection",
        (Op::Linear, Role::FfnOutput) => "the down projection, before the residual is added",
        (Op::Residual, _) if node.emission.name.starts_with("ffn_out") => {
            "the experts' sum plus what the shared expert gives"
        }
        (Op::Residual, _) => {
            "the layer's output: the residual stream after attention plus the result of the feed-forward network or the experts"
        }
        (Op::Linear, Role::Logits) => "a logit per token id; for a prompt, the logits of the last token are enough",
        (Op::Linear, _) => "a product with a weight",
        (Op::Collective(_), _) => "the parts of all ranks together",
    }
}

/// A product of a delta net, of residual streams or of an indexer: the role leaves open which.
fn by_name(name: &str) -> &'static str {
    match name {
        "delta_qkv" => "queries, keys and values of the delta net in one product, before the convolution",
        "delta_z" => "the product of z, which gates the delta net's output",
        "delta_ba" => "the products of β and of the decay, computed by one matrix",
        "index_k" => "the product of the indexer's keys, before any norm",
        "index_q_proj" => "the product of the indexer's queries, before any norm",
        "ngram_key" => "the n-grams' key for each stream: their embedding times the key's weight",
        "ngram_value" => "the n-grams' value, one for all streams: their embedding times the value's weight",
        "attn_streams_down" => "the normed streams before attention or delta net, projected down for the gates",
        "attn_streams_gate" => {
            "the streams' gates before attention or delta net: the low-rank product projected up, before the sigmoid"
        }
        "attn_inject" => {
            "a score for each stream, computed from the normed streams; it sets how much of the result of attention or delta net is added to this stream"
        }
        "ffn_streams_down" => "the normed streams before the experts, projected down for the gates",
        "ffn_streams_gate" => {
            "the streams' gates before the experts: the low-rank product projected up, before the sigmoid"
        }
        "ffn_inject" => {
            "a score for each stream, computed from the normed streams; it sets how much of the experts' result is added to this stream"
        }
        "final_streams_down" => "the normed streams after the last layer, projected down for the gates",
        "final_streams_gate" => {
            "the streams' gates after the last layer: the low-rank product projected up, before the sigmoid"
        }
        _ => "a product of the delta net, of the residual streams or of the indexer",
    }
}
