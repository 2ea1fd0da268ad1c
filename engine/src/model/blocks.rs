//! What decoders are put together from: norms, attention, gated networks; and what is checked before they are.

use super::builder::Builder;
use super::config::{invalid, unsupported};
use super::graph::{Axis, EmittedLayout, Role};
use super::{Config, ConfigError, Metadata};
use crate::ops::{Attention, ChosenWeights, Defined, KvCache, Op, RmsNorm, Softmax, VectorFactor};

/// Tensor that every layer begins with.
pub(super) const ATTN_NORM: &str = "attn_norm.weight";

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
    // Without one of the first three ggml ends the process.
    if sum > 0 && (0..3).any(|i| of(i) > 0) && dealt == Sections::Interleaved {
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        return Ok(Some(format!("llama.cpp does not rotate every pair of a head in a text (not {})", left.join(", "))));
    }
    let what = format!("sections that leave some of {pairs} pairs of a text unrotated are");
    Err(unsupported(&key, format_args!("{all:?}"), &what))
}

/// The norm of the residual stream; llama.cpp announces it as `emitted`.
pub(super) fn norm(
    b: &mut Builder, (name, role): (&'static str, Role), x: usize, tensor: &str, emitted: &str, c: &Config,
) -> usize {
    let op = Op::RmsNorm(RmsNorm { eps: c.rms_eps, groups: 1 });
    b.stage(name, role, op, &[x], &[c.n_embd]).weight(tensor, &[c.n_embd]).add(emitted, "MUL")
}

/// Attention over all tokens so far: rotation of queries and keys, caches, softmax of the scores, and values by their weights,
/// which llama.cpp announces as `emitted`. If there is a choice of keys, only those have weights.
pub(super) fn attend(
    b: &mut Builder, [q, k, v]: [usize; 3], chosen: Option<usize>, c: &Config, emitted: &str,
) -> usize {
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
    let scale = 1.0 / (d as f64).sqrt();
    let softmax = match chosen {
        None => Op::AttnWeights(Softmax { scale }),
        Some(_) => Defined::op(ChosenWeights { scale }),
    };
    let operands: Vec<usize> = [scores].into_iter().chain(chosen).collect();
    let weights = b
        .stage("attn_weights", Role::Attention, softmax, &operands, &[])
        .laid_out(&pairs, EmittedLayout::PaddedKeys)
        .add("kq_soft_max", "SOFT_MAX");
    let context = Op::AttnContext(attention);
    b.stage("attn_context", Role::Attention, context, &[weights, v_cache], &[h * d]).add(emitted, "CONT")
}

/// The matrix of queries, keys and values that a layer may have in the place of three.
pub(crate) const QKV: &str = "attn_qkv.weight";

/// Where a layer has the projections of queries, keys and values: in a tensor each, or one below the other in one tensor.
pub(super) struct Projections {
    /// Whether the matrices are in one tensor, and the biases.
    pub(super) fused: [bool; 2],
    /// Rows of queries, keys and values.
    pub(super) rows: [usize; 3],
}

impl Projections {
    /// Those of the layer whose stages are declared.
    pub(super) fn of(b: &Builder, rows: [usize; 3], may_be_fused: bool) -> Self {
        let fused = may_be_fused && b.has(QKV);
        let bias = fused && b.has("attn_qkv.bias");
        Self { fused: [fused, bias], rows }
    }

    /// The matrix, or the bias, of queries (0), keys or values: a tensor, or its rows that are meant.
    pub(super) fn tensor(&self, part: usize, bias: bool) -> String {
        let kind = if bias { "bias" } else { "weight" };
        if !self.fused[usize::from(bias)] {
            return format!("attn_{}.{kind}", ["q", "k", "v"][part]);
        }
        let first: usize = self.rows[..part].iter().sum();
        format!("attn_qkv.{kind}[{first}:{}]", first + self.rows[part])
    }
}

/// A linear layer; llama.cpp announces it as `emitted`.
pub(super) fn linear(
    b: &mut Builder, (name, role): (&'static str, Role), x: usize, tensor: &str, [n, m]: [usize; 2], emitted: &str,
) -> usize {
    let product = b.stage(name, role, Op::Linear, &[x], &[m]).weight(tensor, &[n, m]).add(emitted, "MUL_MAT");
    let Some((scale, name, op)) = b.scale(tensor) else { return product };
    let times = Defined::op(VectorFactor("the product, times the scale of its matrix"));
    b.stage(name, role, times, &[product], &[m]).weight(&scale, &[1]).add("", op)
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
