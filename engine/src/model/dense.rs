//! The decoder that Qwen2 and Qwen3 share, dense and with experts; the architectures differ in what stands between the
//! projections and the rotation, and in the feed-forward network.

use super::blocks::{ATTN_NORM, DENSE, HEAD, Projections, Sections, attend, last_layer, linear, mlp, norm, sections};
use super::builder::Builder;
use super::config::{EMBEDDING, ROTATED, unsupported};
use super::experts::{Experts, Mixture};
use super::graph::{Graph, Role};
use super::{Config, ConfigError, Metadata};
use crate::ops::{Op, RmsNorm};

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

pub(super) fn graph(arch: &str, source: &dyn Metadata, traits: &Traits) -> Result<Graph, ConfigError> {
    let mut c = Config::read(arch, source)?;
    if c.rotated != c.head_dim {
        let what = format!("a head has {} elements; RoPE that rotates a part of each head is", c.head_dim);
        return Err(unsupported(&format!("{arch}.{ROTATED}"), c.rotated, &what));
    }
    let of_positions = traits.sections.map(|dealt| sections(arch, source, c.rotated, dealt)).transpose()?.flatten();
    // What so many of the first layers add is of images, and 0 for a text: llama.cpp pads the embedding for it.
    let padded = traits.sections == Some(Sections::Interleaved)
        && source.integer(&format!("{arch}.n_deepstack_layers")).is_some_and(|layers| layers > 0);
    let (e, h, g, d) = (c.n_embd, c.n_heads, c.n_kv_heads, c.head_dim);
    let experts = traits.experts.as_ref().map(|mixture| Experts::read(arch, source, *mixture)).transpose()?;
    let departs = experts.as_ref().and_then(|experts| experts.llama_departs.clone()).or(of_positions);
    c.llama_departs = departs.or(c.llama_departs.take());
    let f = if experts.is_none() { Config::integer(arch, "feed_forward_length", source)? } else { 0 };
    last_layer(arch, source, c.n_layers)?;
    let v = c.n_vocab;
    let (n_layers, rms_eps, shape) = (c.n_layers, c.rms_eps, c.clone());

    let mut b = Builder::reading(c, source);
    let embed = b.stage("embed", Role::Embedding, Op::Embed, &[], &[e]).weight(EMBEDDING, &[e, v]);
    let embed = embed.add(if padded { "" } else { "embd" }, "GET_ROWS");

    let mut residual = embed;
    for layer in 0..n_layers {
        b.enter(Some(layer as u16));
        let normed = norm(&mut b, ("attn_norm", Role::AttnInput), residual, ATTN_NORM, "attn_norm", &shape);

        // Projection, then bias or per-head norm, as the architecture has it.
        let projections = Projections::of(&b, [h * d, g * d, g * d], true);
        let fused = projections.fused[0];
        let project = |b: &mut Builder, role, stages: &[&'static str], part: usize| {
            let tensor = ["attn_q", "attn_k", "attn_v"][part];
            let (emitted, n) = (["Qcur", "Kcur", "Vcur"][part], projections.rows[part]);
            let mut x = linear(b, (stages[0], role), normed, &projections.tensor(part, false), [e, n], emitted);
            // llama.cpp then announces parts of the sum of one product and one bias.
            if fused {
                b.announced(if traits.qkv_bias { "" } else { "VIEW" });
            }
            if traits.qkv_bias {
                let bias = projections.tensor(part, true);
                let biased = b.stage(stages[1], role, Op::Bias, &[x], &[n]).weight(&bias, &[n]);
                x = biased.add(emitted, if fused { "VIEW" } else { "ADD" });
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
        let q = project(&mut b, Role::Query, &["q_proj", "q_biased", "q_normed"], 0);
        let k = project(&mut b, Role::Key, &["k_proj", "k_biased", "k_normed"], 1);
        let v = project(&mut b, Role::Value, &["v_proj", "v_biased"], 2);

        let context = attend(&mut b, [q, k, v], None, &shape, "kqv_out");
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
