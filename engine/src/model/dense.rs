//! The decoder that Qwen2 and Qwen3 share, dense and with experts; the architectures differ in what stands between the
//! projections and the rotation, and in the feed-forward network.

use super::builder::Builder;
use super::config::{EMBEDDING, ROTATED, invalid, unsupported};
use super::experts::{Experts, Mixture};
use super::graph::{Axis, EmittedLayout, Graph, Role};
use super::{Config, ConfigError, Metadata};
use crate::ops::{Attention, KvCache, Op, RmsNorm, Softmax};

/// What architectures differ in.
pub(super) struct Traits {
    /// `q/k/v = W x + b` (Qwen2).
    pub(super) qkv_bias: bool,
    /// RMSNorm over each head of q and k (Qwen3).
    pub(super) qk_norm: bool,
    /// The feed-forward network: experts, and how they are weighted, or one for all tokens.
    pub(super) experts: Option<Mixture>,
    /// Whether the embedding table may be the output projection.
    pub(super) may_be_tied: bool,
    /// How positions have sections, for images: text alone is known.
    pub(super) sections: Option<Sections>,
}

/// Tensor that every layer begins with.
const ATTN_NORM: &str = "attn_norm.weight";

/// Tensor of the output projection; a file without it uses the embedding table.
pub(crate) const HEAD: &str = "output.weight";

/// Refuses a file that lacks the last layer, before a node is made: their number is what a graph's size depends on.
pub(super) fn last_layer(arch: &str, source: &dyn Metadata, layers: usize) -> Result<(), ConfigError> {
    let last = format!("blk.{}.{ATTN_NORM}", layers - 1);
    match source.extent(&last) {
        Some(_) => Ok(()),
        None => Err(invalid(&format!("{arch}.block_count"), layers, &format!("there is no tensor `{last}`"))),
    }
}

/// How the pairs of a head are dealt out among positions in the text, in height and in width.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sections {
    /// Section after section.
    InTurn,
    /// Pair by pair, while a section lasts; the pairs that are left have positions in the text.
    Interleaved,
}

/// Reads sections, by which every pair of a text is rotated alike, as the three positions of a token are the same. llama.cpp
/// rotates no pair that no section has: what it then computes otherwise, as a clause.
///
/// # Errors
/// No sections, or such by which not every pair is in one.
pub(super) fn sections(
    arch: &str, source: &dyn Metadata, rotated: usize, dealt: Sections,
) -> Result<Option<String>, ConfigError> {
    let key = format!("{arch}.rope.dimension_sections");
    let Some(all) = source.integers(&key) else { return Err(ConfigError::Missing(key)) };
    let of = |i: usize| all.get(i).copied().unwrap_or(0);
    let sum: i64 = (0..4).map(of).sum();
    let turned = |sector: i64| match dealt {
        Sections::Interleaved => sector < 3 * of((sector % 3) as usize),
        Sections::InTurn => sector < (0..3).map(of).sum(),
    };
    let pairs = rotated as i64 / 2;
    let left: Vec<i64> = (0..pairs).filter(|pair| sum <= 0 || !turned(pair % sum)).collect();
    if left.is_empty() {
        return Ok(None);
    }
    if sum > 0 && dealt == Sections::Interleaved {
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        return Ok(Some(format!("llama.cpp does not rotate every pair of a head in a text (not {})", left.join(", "))));
    }
    let what = format!("sections that leave some of {pairs} pairs of a text unrotated are");
    Err(unsupported(&key, format_args!("{all:?}"), &what))
}

pub(super) fn graph(arch: &str, source: &dyn Metadata, traits: &Traits) -> Result<Graph, ConfigError> {
    let mut c = Config::read(arch, source)?;
    if c.rotated != c.head_dim {
        let what = format!("a head has {} elements; RoPE that rotates a part of each head is", c.head_dim);
        return Err(unsupported(&format!("{arch}.{ROTATED}"), c.rotated, &what));
    }
    let of_positions = traits.sections.map(|dealt| sections(arch, source, c.rotated, dealt)).transpose()?.flatten();
    let (e, h, g, d) = (c.n_embd, c.n_heads, c.n_kv_heads, c.head_dim);
    let experts = traits.experts.as_ref().map(|mixture| Experts::read(arch, source, *mixture)).transpose()?;
    c.llama_departs = experts.as_ref().and_then(|experts| experts.llama_departs.clone()).or(of_positions);
    let f = if experts.is_none() { Config::integer(arch, "feed_forward_length", source)? } else { 0 };
    last_layer(arch, source, c.n_layers)?;
    let v = c.n_vocab;
    let (n_layers, rms_eps, shape) = (c.n_layers, c.rms_eps, c.clone());

    let mut b = Builder::new(c);
    let embed =
        b.stage("embed", Role::Embedding, Op::Embed, &[], &[e]).weight(EMBEDDING, &[e, v]).add("embd", "GET_ROWS");

    let mut residual = embed;
    for layer in 0..n_layers {
        b.enter(Some(layer as u16));
        let normed = norm(&mut b, ("attn_norm", Role::AttnInput), residual, ATTN_NORM, "attn_norm", &shape);

        // Projection, then bias or per-head norm, as the architecture has it: the stages' names, that of the tensors
        // without `.weight`, `.bias` and `_norm.weight`, and the one by which llama.cpp announces all of them.
        let project = |b: &mut Builder, role, stages: &[&'static str], tensor: &str, emitted: &str, n: usize| {
            let mut x = linear(b, (stages[0], role), normed, &format!("{tensor}.weight"), [e, n], emitted);
            if traits.qkv_bias {
                let bias = format!("{tensor}.bias");
                x = b.stage(stages[1], role, Op::Bias, &[x], &[n]).weight(&bias, &[n]).add(emitted, "ADD");
            }
            if let Some(name) = stages.get(2).filter(|_| traits.qk_norm) {
                let per_head = Op::RmsNorm(RmsNorm { eps: rms_eps, groups: n / d });
                x = b
                    .stage(name, role, per_head, &[x], &[n])
                    .weight(&format!("{tensor}_norm.weight"), &[d])
                    .add(&format!("{emitted}_normed"), "MUL");
            }
            x
        };
        let q = project(&mut b, Role::Query, &["q_proj", "q_biased", "q_normed"], "attn_q", "Qcur", h * d);
        let k = project(&mut b, Role::Key, &["k_proj", "k_biased", "k_normed"], "attn_k", "Kcur", g * d);
        let v = project(&mut b, Role::Value, &["v_proj", "v_biased"], "attn_v", "Vcur", g * d);

        let context = attend(&mut b, [q, k, v], &shape, "kqv_out");
        let attn_out = linear(&mut b, ("attn_out", Role::AttnOutput), context, "attn_output.weight", [h * d, e], "");
        let attn_residual =
            b.stage("attn_residual", Role::AttnOutput, Op::Residual, &[attn_out, residual], &[e]).add("ffn_inp", "ADD");

        let ffn = ("ffn_norm", Role::FfnInput);
        let ffn_norm = norm(&mut b, ffn, attn_residual, "ffn_norm.weight", "ffn_norm", &shape);
        let ffn_out = match &experts {
            Some(experts) => experts.declare(&mut b, ffn_norm, e),
            None => mlp(&mut b, &DENSE, ffn_norm, [e, f]),
        };
        residual =
            b.stage("layer_out", Role::FfnOutput, Op::Residual, &[ffn_out, attn_residual], &[e]).add("l_out", "ADD");
    }

    b.enter(None);
    let last = ("final_norm", Role::HeadInput);
    let last = norm(&mut b, last, residual, "output_norm.weight", "result_norm", &shape);
    let tied = traits.may_be_tied && source.extent(HEAD).is_none();
    let head = if tied { EMBEDDING } else { HEAD };
    linear(&mut b, ("logits", Role::Logits), last, head, [e, v], "result_output");
    Ok(b.finish())
}

/// The norm of the residual stream; llama.cpp announces it as `emitted`.
pub(super) fn norm(
    b: &mut Builder, (name, role): (&'static str, Role), x: usize, tensor: &str, emitted: &str, c: &Config,
) -> usize {
    let op = Op::RmsNorm(RmsNorm { eps: c.rms_eps, groups: 1 });
    b.stage(name, role, op, &[x], &[c.n_embd]).weight(tensor, &[c.n_embd]).add(emitted, "MUL")
}

/// Attention over all tokens so far: rotation of queries and keys, caches, softmax of the scores, and values by their weights,
/// which llama.cpp announces as `emitted`.
pub(super) fn attend(b: &mut Builder, [q, k, v]: [usize; 3], c: &Config, emitted: &str) -> usize {
    let (h, g, d, rope) = (c.n_heads, c.n_kv_heads, c.head_dim, Op::Rope(c.rope()));
    let cache = Op::KvCache(KvCache { n_kv_heads: g, head_dim: d });
    let attention = Attention { n_heads: h, n_kv_heads: g, head_dim: d };
    let q_rope = b.stage("q_rope", Role::Query, rope.clone(), &[q], &[h, d]).add("Qcur", "ROPE");
    let k_rope = b.stage("k_rope", Role::Key, rope.clone(), &[k], &[g, d]).add("Kcur", "ROPE");

    let cached = [Axis::Keys, Axis::Fixed(g), Axis::Fixed(d)];
    let k_cache = b
        .stage("k_cache", Role::Key, cache.clone(), &[k_rope], &[])
        .laid_out(&cached, EmittedLayout::KeyCache)
        .add("cache_k", "SET_ROWS");
    let v_cache = b
        .stage("v_cache", Role::Value, cache.clone(), &[v], &[])
        .laid_out(&cached, EmittedLayout::ValueCacheTransposed)
        .add("cache_v", "SET_ROWS");

    let pairs = [Axis::Fixed(h), Axis::Tokens, Axis::Keys];
    let scores = b
        .stage("attn_scores", Role::Attention, Op::AttnScores(attention), &[q_rope, k_cache], &[])
        .laid_out(&pairs, EmittedLayout::PaddedKeys)
        .add("kq", "MUL_MAT");
    let softmax = Op::AttnWeights(Softmax { scale: 1.0 / (d as f64).sqrt() });
    let weights = b
        .stage("attn_weights", Role::Attention, softmax, &[scores], &[])
        .laid_out(&pairs, EmittedLayout::PaddedKeys)
        .add("kq_soft_max", "SOFT_MAX");
    let context = Op::AttnContext(attention);
    b.stage("attn_context", Role::Attention, context, &[weights, v_cache], &[h * d]).add(emitted, "CONT")
}

/// A linear layer; llama.cpp announces it as `emitted`.
pub(super) fn linear(
    b: &mut Builder, (name, role): (&'static str, Role), x: usize, tensor: &str, [n, m]: [usize; 2], emitted: &str,
) -> usize {
    b.stage(name, role, Op::Linear, &[x], &[m]).weight(tensor, &[n, m]).add(emitted, "MUL_MAT")
}

/// The names of a gated network: of its stages gate, up, activation and down, of their tensors, and by which llama.cpp
/// announces the last.
pub(super) struct Mlp {
    pub(super) stages: [&'static str; 4],
    pub(super) tensors: [&'static str; 3],
    pub(super) emitted: &'static str,
}

pub(super) const DENSE: Mlp = Mlp {
    stages: ["ffn_gate", "ffn_up", "ffn_act", "ffn_down"],
    tensors: ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"],
    emitted: "ffn_out",
};

/// A gated network of width f: `W_down·(silu(W_gate·x) · W_up·x)`.
pub(super) fn mlp(b: &mut Builder, of: &Mlp, x: usize, [e, f]: [usize; 2]) -> usize {
    let ([gate, up, act, down], tensors) = (of.stages, of.tensors);
    let gate = linear(b, (gate, Role::Gate), x, tensors[0], [e, f], "ffn_gate");
    let up = linear(b, (up, Role::Up), x, tensors[1], [e, f], "ffn_up");
    let act = b.stage(act, Role::FfnHidden, Op::SwiGlu, &[gate, up], &[f]).add("ffn_swiglu", "GLU");
    linear(b, (down, Role::FfnOutput), act, tensors[2], [f, e], of.emitted)
}
