//! The decoder that Qwen2 and Qwen3 (dense) share; the architectures differ
//! only in what stands between the projections and the rotation.

use super::builder::Builder;
use super::config::EMBEDDING;
use super::graph::{Axis, EmittedLayout, Graph, Role};
use super::{Config, ConfigError, Metadata};
use crate::ops::{Attention, KvCache, Op, RmsNorm, Rope, Softmax};

/// What an architecture puts between its QKV projections and RoPE.
pub(super) struct Traits {
    /// `q/k/v = W x + b` (Qwen2).
    pub(super) qkv_bias: bool,
    /// RMSNorm over each head of q and k (Qwen3).
    pub(super) qk_norm: bool,
}

/// How the projections to one of q, k and v are called.
struct Projection {
    role: Role,
    /// Stages: projected, biased, normed where heads of it are.
    stages: [&'static str; 2],
    normed: Option<&'static str>,
    /// Tensors, without `.weight`, `.bias` and `_norm.weight`.
    tensor: &'static str,
    /// Name that llama.cpp announces all of them by.
    emitted: &'static str,
}

/// Tensor of the output projection; a file without it uses the embedding table.
const HEAD: &str = "output.weight";

pub(super) fn graph(arch: &str, source: &dyn Metadata, traits: &Traits) -> Result<Graph, ConfigError> {
    let c = Config::read(arch, source)?;
    let (e, h, g, d) = (c.n_embd, c.n_heads, c.n_kv_heads, c.head_dim);
    let f = Config::integer(arch, "feed_forward_length", source)?;
    let v = c.n_vocab;
    let norm = Op::RmsNorm(RmsNorm { eps: c.rms_eps, groups: 1 });
    let rope = Op::Rope(Rope::neox(c.rope_base, d));
    let cache = Op::KvCache(KvCache { n_kv_heads: g, head_dim: d });
    let attention = Attention { n_heads: h, n_kv_heads: g, head_dim: d };
    let (n_layers, rms_eps) = (c.n_layers, c.rms_eps);

    let mut b = Builder::new(c);
    let embed = b
        .stage("embed", Role::Embedding, Op::Embed, &[], &[e])
        .weight(EMBEDDING, &[e, v])
        .emitted("embd", "GET_ROWS")
        .add();

    let mut residual = embed;
    for layer in 0..n_layers {
        b.enter(Some(layer as u16));
        let normed = b
            .stage("attn_norm", Role::AttnInput, norm.clone(), &[residual], &[e])
            .weight("attn_norm.weight", &[e])
            .emitted("attn_norm", "MUL")
            .add();

        // Projection, then bias or per-head norm, as the architecture has it.
        let project = |b: &mut Builder, p: Projection, n: usize| {
            let mut x = b
                .stage(p.stages[0], p.role, Op::Linear, &[normed], &[n])
                .weight(&format!("{}.weight", p.tensor), &[e, n])
                .emitted(p.emitted, "MUL_MAT")
                .add();
            if traits.qkv_bias {
                x = b
                    .stage(p.stages[1], p.role, Op::Bias, &[x], &[n])
                    .weight(&format!("{}.bias", p.tensor), &[n])
                    .emitted(p.emitted, "ADD")
                    .add();
            }
            if let Some(name) = p.normed.filter(|_| traits.qk_norm) {
                let per_head = Op::RmsNorm(RmsNorm { eps: rms_eps, groups: n / d });
                x = b
                    .stage(name, p.role, per_head, &[x], &[n])
                    .weight(&format!("{}_norm.weight", p.tensor), &[d])
                    .emitted(&format!("{}_normed", p.emitted), "MUL")
                    .add();
            }
            x
        };
        let query = Projection {
            role: Role::Query,
            stages: ["q_proj", "q_biased"],
            normed: Some("q_normed"),
            tensor: "attn_q",
            emitted: "Qcur",
        };
        let key = Projection {
            role: Role::Key,
            stages: ["k_proj", "k_biased"],
            normed: Some("k_normed"),
            tensor: "attn_k",
            emitted: "Kcur",
        };
        let value = Projection {
            role: Role::Value,
            stages: ["v_proj", "v_biased"],
            normed: None,
            tensor: "attn_v",
            emitted: "Vcur",
        };
        let q = project(&mut b, query, h * d);
        let k = project(&mut b, key, g * d);
        let v = project(&mut b, value, g * d);

        let q_rope = b.stage("q_rope", Role::Query, rope.clone(), &[q], &[h, d]).emitted("Qcur", "ROPE").add();
        let k_rope = b.stage("k_rope", Role::Key, rope.clone(), &[k], &[g, d]).emitted("Kcur", "ROPE").add();

        let cached = vec![Axis::Keys, Axis::Fixed(g), Axis::Fixed(d)];
        let k_cache = b
            .stage("k_cache", Role::Key, cache.clone(), &[k_rope], &[])
            .shape(cached.clone())
            .emitted_cache("cache_k", EmittedLayout::KeyCache)
            .add();
        let v_cache = b
            .stage("v_cache", Role::Value, cache.clone(), &[v], &[])
            .shape(cached)
            .emitted_cache("cache_v", EmittedLayout::ValueCacheTransposed)
            .add();

        let scores = vec![Axis::Fixed(h), Axis::Tokens, Axis::Keys];
        let attn_scores = b
            .stage("attn_scores", Role::Attention, Op::AttnScores(attention), &[q_rope, k_cache], &[])
            .shape(scores.clone())
            .emitted("kq", "MUL_MAT")
            .layout(EmittedLayout::PaddedKeys)
            .add();
        let softmax = Op::AttnWeights(Softmax { scale: 1.0 / (d as f64).sqrt() });
        let attn_weights = b
            .stage("attn_weights", Role::Attention, softmax, &[attn_scores], &[])
            .shape(scores)
            .emitted("kq_soft_max", "SOFT_MAX")
            .layout(EmittedLayout::PaddedKeys)
            .add();
        let context = b
            .stage("attn_context", Role::Attention, Op::AttnContext(attention), &[attn_weights, v_cache], &[h * d])
            .emitted("kqv_out", "CONT")
            .add();
        let attn_out = b
            .stage("attn_out", Role::AttnOutput, Op::Linear, &[context], &[e])
            .weight("attn_output.weight", &[h * d, e])
            .emitted("", "MUL_MAT")
            .add();
        let attn_residual = b
            .stage("attn_residual", Role::AttnOutput, Op::Residual, &[attn_out, residual], &[e])
            .emitted("ffn_inp", "ADD")
            .add();

        let ffn_norm = b
            .stage("ffn_norm", Role::FfnInput, norm.clone(), &[attn_residual], &[e])
            .weight("ffn_norm.weight", &[e])
            .emitted("ffn_norm", "MUL")
            .add();
        let gate = b
            .stage("ffn_gate", Role::Gate, Op::Linear, &[ffn_norm], &[f])
            .weight("ffn_gate.weight", &[e, f])
            .emitted("ffn_gate", "MUL_MAT")
            .add();
        let up = b
            .stage("ffn_up", Role::Up, Op::Linear, &[ffn_norm], &[f])
            .weight("ffn_up.weight", &[e, f])
            .emitted("ffn_up", "MUL_MAT")
            .add();
        let act = b.stage("ffn_act", Role::FfnHidden, Op::SwiGlu, &[gate, up], &[f]).emitted("ffn_swiglu", "GLU").add();
        let down = b
            .stage("ffn_down", Role::FfnOutput, Op::Linear, &[act], &[e])
            .weight("ffn_down.weight", &[f, e])
            .emitted("ffn_out", "MUL_MAT")
            .add();
        residual = b
            .stage("layer_out", Role::FfnOutput, Op::Residual, &[down, attn_residual], &[e])
            .emitted("l_out", "ADD")
            .add();
    }

    b.enter(None);
    let final_norm = b
        .stage("final_norm", Role::HeadInput, norm, &[residual], &[e])
        .weight("output_norm.weight", &[e])
        .emitted("result_norm", "MUL")
        .add();
    let head = if source.extent(HEAD).is_some() { HEAD } else { EMBEDDING };
    b.stage("logits", Role::Logits, Op::Linear, &[final_norm], &[v])
        .weight(head, &[e, v])
        .emitted("result_output", "MUL_MAT")
        .add();
    Ok(b.finish())
}
