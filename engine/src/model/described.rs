//! Every stage in words, and where it is found in other engines: what an exporter asks.

use super::{Axis, Node, Role, dialect};
use crate::ops::{Definition, Op, RowSoftmax};

/// A stage in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// What it is: before or after what, and what stands in entries that nobody reads.
    pub what: &'static str,
    /// Where it is in Hugging Face transformers, as modules of a layer are called; empty where it is never materialised.
    pub transformers: String,
    /// The same of vLLM.
    pub vllm: &'static str,
}

/// Stands for the name of the module that holds the weights.
const OWN: &str = "its module";

/// Its shape in symbols: T tokens of this step, N tokens so far, E width of the residual stream, H query heads, G heads of
/// keys and values, D width of a head, F width of the feed-forward network, X experts, K of them that a token takes, V size of
/// the vocabulary.
pub fn symbolic(node: &Node) -> String {
    let symbols: &[&str] = match (node.role, &node.op) {
        (Role::Query, _) | (Role::Attention, Op::AttnContext(_)) => &["H", "D"],
        (Role::Key | Role::Value, _) => &["G", "D"],
        (Role::Attention, _) => &["H"],
        (Role::Gate | Role::Up | Role::FfnHidden, _) => &["F"],
        (Role::Logits, _) => &["V"],
        (Role::Mixer, _) => &[],
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
    let fixed = node.shape.iter().filter(|a| matches!(a, Axis::Fixed(_))).count();
    // Of an op of its own the axes are what they are.
    let numbers = || node.shape.iter().filter_map(|a| if let Axis::Fixed(n) = a { Some(n.to_string()) } else { None });
    // Heads and what is in them may stand in one axis.
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

/// The stage in words. Names are those in the Qwen2 and Qwen3 models of transformers 5 and of vLLM.
pub fn described(node: &Node) -> Described {
    let of = |what, transformers: &str, vllm| {
        let module = dialect::module(node).and_then(|path| path.rsplit('.').next()).filter(|_| transformers == OWN);
        let transformers = module.map_or_else(|| transformers.to_owned(), |module| format!("`{module}`"));
        Described { what, transformers, vllm }
    };
    let fused = "in `qkv_proj`, its columns";
    match (&node.op, node.role) {
        (Op::Defined(op), _) => of(op.about(), "", ""),
        (Op::Embed, _) => of("rows of the embedding table", OWN, "`embed_tokens`"),
        (Op::RmsNorm(_), Role::AttnInput) => of(
            "the residual stream, normed and times the norm's weight",
            OWN,
            "`input_layernorm`, first output (its only one in the first layer)",
        ),
        (Op::RmsNorm(_), Role::FfnInput) => of(
            "the residual stream after attention, normed and times the norm's weight",
            OWN,
            "`post_attention_layernorm`, first output",
        ),
        (Op::RmsNorm(_), Role::HeadInput) => {
            of("the last layer's output, normed and times the norm's weight", OWN, "`norm`, first output")
        }
        (Op::RmsNorm(_), Role::Query) => {
            of("each head normed and times the norm's weight, before rotation", OWN, "`q_norm`")
        }
        (Op::RmsNorm(_), Role::Mixer) => {
            of("each head of what the state gave, normed and times the norm's weight", "", "")
        }
        (Op::SwiGlu, Role::Mixer) => of("SiLU of the gate z, times the normed output", "", ""),
        (Op::Linear, Role::Mixer) => of("a projection of the delta net", "", ""),
        (Op::RmsNorm(_), _) => of("each head normed and times the norm's weight, before rotation", OWN, "`k_norm`"),
        (Op::Linear, Role::Query | Role::Key | Role::Value) => of(
            "the product with the weight, before the bias and the norm of heads, if there are any",
            "the projection's output where it has no bias (Qwen3)",
            "in `qkv_proj` where it has no bias (Qwen3)",
        ),
        (Op::Bias, Role::Query) => of("after the bias, before rotation", OWN, fused),
        (Op::Bias, Role::Key) => of("after the bias, before rotation", OWN, fused),
        (Op::Bias, _) => of("after the bias", OWN, fused),
        (Op::Rope(_), Role::Query) => of(
            "rotated, and not yet scaled",
            "`apply_rotary_pos_emb`, first output, as [batch, H, T, D]",
            "`rotary_emb`, first output",
        ),
        (Op::Rope(_), _) => of(
            "rotated; each of the G heads once, not repeated for the query heads that share it",
            "`apply_rotary_pos_emb`, second output, as [batch, G, T, D]",
            "`rotary_emb`, second output",
        ),
        (Op::KvCache(_), Role::Key) => of(
            "all rows so far, this step's included, in the order of positions",
            "`past_key_values.layers[i].keys`, as [batch, G, N, D]",
            "`kv_cache[0]`, by the block table",
        ),
        (Op::KvCache(_), _) => of(
            "all rows so far, this step's included, in the order of positions",
            "`past_key_values.layers[i].values`, as [batch, G, N, D]",
            "`kv_cache[1]`, by the block table",
        ),
        (Op::AttnScores(_), _) => of(
            "queries times keys, neither scaled nor masked; what stands at keys after the token does not count",
            "`eager_attention_forward`, its first product (eager attention only)",
            "",
        ),
        (Op::AttnWeights(_), _) => of(
            "softmax of the scaled and masked scores; keys after the token are 0",
            "`eager_attention_forward`, second output (eager attention only)",
            "",
        ),
        (Op::AttnContext(_), _) => {
            of("weights times values, before the output projection", "input of `o_proj`", "`attn`")
        }
        (Op::Linear, Role::AttnOutput) => {
            of("the output projection, before the residual is added", OWN, "`o_proj` (after the all-reduce)")
        }
        (Op::Residual, Role::AttnOutput) => of(
            "the layer's input plus the output projection",
            "input of `post_attention_layernorm`",
            "`post_attention_layernorm`, second output",
        ),
        (Op::Linear, Role::Router) => of("a score for each expert, or for the shared one", "", ""),
        (Op::Linear, Role::Gate) => {
            of("the gate's product, before SiLU", OWN, "in `gate_up_proj`, its first F columns")
        }
        (Op::Linear, Role::Up) => of("the other product", OWN, "in `gate_up_proj`, its last F columns"),
        (Op::SwiGlu, _) => of("SiLU of the gate, times the other product", "input of `down_proj`", "`act_fn`"),
        (Op::Linear, Role::FfnOutput) => {
            of("the down projection, before the residual is added", OWN, "`down_proj` (after the all-reduce)")
        }
        (Op::Residual, _) if node.emission.name.starts_with("ffn_out") => {
            of("the experts' sum plus what the shared expert gives", "", "")
        }
        (Op::Residual, _) => of(
            "the layer's output: the residual stream after attention plus the down projection",
            "the layer's output",
            "the sum of the layer's two outputs",
        ),
        (Op::Linear, Role::Logits) => of(
            "a logit per token id; of a prompt the last token's alone is enough",
            OWN,
            "`logits_processor`, without its padding",
        ),
        (Op::Linear, _) => of("a product with a weight", "", ""),
        (Op::Collective(_), _) => of("the parts of all ranks together", "", ""),
    }
}
