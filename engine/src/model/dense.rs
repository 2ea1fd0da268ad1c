//! The decoder that Qwen2 and Qwen3 (dense) share; the architectures differ
//! only in what stands between the projections and the rotation.

use super::Config;
use super::builder::Builder;
use super::graph::{Axis, EmittedLayout, Graph};
use crate::ops::{Attention, Gate, KvCache, Linear, Op, RmsNorm, Rope, Softmax};

/// What an architecture puts between its QKV projections and RoPE.
pub(super) struct Traits {
    /// `q/k/v = W x + b` (Qwen2).
    pub(super) qkv_bias: bool,
    /// RMSNorm over each head of q and k (Qwen3).
    pub(super) qk_norm: bool,
}

pub(super) fn graph(config: &Config, traits: &Traits) -> Graph {
    let c = config.clone();
    let (e, h, g, d, f) = (c.n_embd, c.n_heads, c.n_kv_heads, c.head_dim, c.n_ff);
    let norm = Op::RmsNorm(RmsNorm::rows(c.rms_eps));
    let linear = Op::Linear(Linear::default());
    let rope = Op::Rope(Rope::neox(c.rope_base, d));
    let attention = Attention { n_heads: h, n_kv_heads: g, head_dim: d, interleaved: false };

    let mut b = Builder::new(c.clone());
    let embed = b
        .stage("embed", Op::Embed { transposed: false }, &[], &[e])
        .weight("token_embd.weight")
        .emitted("embd", "GET_ROWS")
        .add();

    let mut residual = embed;
    for layer in 0..c.n_layers {
        b.enter(Some(layer as u16));
        let normed = b
            .stage("attn_norm", norm.clone(), &[residual], &[e])
            .weight("attn_norm.weight")
            .emitted("attn_norm", "MUL")
            .add();

        // Projection, then bias or per-head norm, as the architecture has it.
        let project = |b: &mut Builder, names: [&'static str; 3], weight: &str, tap: &str, n| {
            let mut x = b
                .stage(names[0], linear.clone(), &[normed], &[n])
                .weight(&format!("{weight}.weight"))
                .emitted(tap, "MUL_MAT")
                .add();
            if traits.qkv_bias {
                x = b.stage(names[1], Op::Bias, &[x], &[n]).weight(&format!("{weight}.bias")).emitted(tap, "ADD").add();
            }
            if traits.qk_norm && !names[2].is_empty() {
                x = b
                    .stage(names[2], Op::RmsNorm(RmsNorm::per_head(c.rms_eps, n / d)), &[x], &[n])
                    .weight(&format!("{weight}_norm.weight"))
                    .emitted(&format!("{tap}_normed"), "MUL")
                    .add();
            }
            x
        };
        let q = project(&mut b, ["q_proj", "q_biased", "q_normed"], "attn_q", "Qcur", h * d);
        let k = project(&mut b, ["k_proj", "k_biased", "k_normed"], "attn_k", "Kcur", g * d);
        let v = project(&mut b, ["v_proj", "v_biased", ""], "attn_v", "Vcur", g * d);

        let q_rope = b.stage("q_rope", rope.clone(), &[q], &[h, d]).emitted("Qcur", "ROPE").add();
        let k_rope = b.stage("k_rope", rope.clone(), &[k], &[g, d]).emitted("Kcur", "ROPE").add();

        let cache = vec![Axis::Keys, Axis::Fixed(g), Axis::Fixed(d)];
        let k_cache = b
            .stage("k_cache", Op::KvCache(KvCache::default()), &[k_rope], &[])
            .shape(cache.clone())
            .emitted_cache("cache_k", EmittedLayout::KeyCache)
            .add();
        let v_cache = b
            .stage("v_cache", Op::KvCache(KvCache::default()), &[v], &[])
            .shape(cache)
            .emitted_cache("cache_v", EmittedLayout::ValueCacheTransposed)
            .add();

        let scores = vec![Axis::Fixed(h), Axis::Tokens, Axis::Keys];
        let attn_scores = b
            .stage("attn_scores", Op::AttnScores(attention), &[q_rope, k_cache], &[])
            .shape(scores.clone())
            .emitted("kq", "MUL_MAT")
            .layout(EmittedLayout::PaddedKeys)
            .add();
        let attn_weights = b
            .stage("attn_weights", Op::AttnWeights(Softmax::causal(1.0 / (d as f64).sqrt())), &[attn_scores], &[])
            .shape(scores)
            .emitted("kq_soft_max", "SOFT_MAX")
            .layout(EmittedLayout::PaddedKeys)
            .add();
        let context = b
            .stage("attn_context", Op::AttnContext(attention), &[attn_weights, v_cache], &[h * d])
            .emitted("kqv_out", "CONT")
            .add();
        let attn_out = b
            .stage("attn_out", linear.clone(), &[context], &[e])
            .weight("attn_output.weight")
            .emitted("", "MUL_MAT")
            .add();
        let attn_residual =
            b.stage("attn_residual", Op::Residual, &[attn_out, residual], &[e]).emitted("ffn_inp", "ADD").add();

        let ffn_norm = b
            .stage("ffn_norm", norm.clone(), &[attn_residual], &[e])
            .weight("ffn_norm.weight")
            .emitted("ffn_norm", "MUL")
            .add();
        let gate = b
            .stage("ffn_gate", linear.clone(), &[ffn_norm], &[f])
            .weight("ffn_gate.weight")
            .emitted("ffn_gate", "MUL_MAT")
            .add();
        let up = b
            .stage("ffn_up", linear.clone(), &[ffn_norm], &[f])
            .weight("ffn_up.weight")
            .emitted("ffn_up", "MUL_MAT")
            .add();
        let act = b.stage("ffn_act", Op::SwiGlu(Gate::Silu), &[gate, up], &[f]).emitted("ffn_swiglu", "GLU").add();
        let down = b
            .stage("ffn_down", linear.clone(), &[act], &[e])
            .weight("ffn_down.weight")
            .emitted("ffn_out", "MUL_MAT")
            .add();
        residual = b.stage("layer_out", Op::Residual, &[down, attn_residual], &[e]).emitted("l_out", "ADD").add();
    }

    b.enter(None);
    let final_norm =
        b.stage("final_norm", norm, &[residual], &[e]).weight("output_norm.weight").emitted("result_norm", "MUL").add();
    let head = if c.tied_head { "token_embd.weight" } else { "output.weight" };
    b.stage("logits", linear, &[final_norm], &[c.n_vocab]).weight(head).emitted("result_output", "MUL_MAT").add();
    b.finish()
}
