//! Qwen3.8-Flash-Next: several residual streams, gated attention to chosen blocks of keys, gated delta nets, experts, and in one
//! layer an embedding of n-grams.

use super::blocks::{self, HEAD, Sections, linear};
use super::builder::Builder;
use super::config::{EMBEDDING, invalid, unsupported};
use super::experts::{Experts, Mixture, SHARED_OF_HYBRIDS};
use super::graph::{Axis, EmittedLayout, Graph, Role};
use super::hybrid::{self, Delta, Traits};
use super::streams::{Reader, Streams, Writer};
use super::{Config, ConfigError, Metadata};
use crate::ops::anatomy::Columns;
use crate::ops::{
    BlockScores, Convolution, Curve, Defined, Function, KvCache, Ngrams, Op, Plain, RmsNorm, Rope, Silu, StreamDots,
    StreamFactors, Window,
};

/// Name in `general.architecture`.
pub const ARCH: &str = "qwen4exp";

const TRAITS: Traits = Traits {
    experts: Some(Mixture { normalised: true, may_be_fused: true, shared: Some(SHARED_OF_HYBRIDS) }),
    sigmoid_gate: true,
    window: "",
    ..Traits::QWEN35
};

const BEFORE_ATTENTION: Reader = Reader {
    stages: ["attn_streams_norm", "attn_streams_down", "attn_streams_act", "attn_streams_gate", "attn_norm"],
    role: Role::AttnInput,
    tensors: "hc_attn",
    emitted: ("hc_mixed", "DSV4_HC_PRE"),
};
const AFTER_ATTENTION: Writer = Writer {
    stages: ["attn_inject", "attn_stream_weights", "attn_residual"],
    weights: "how much of attention or delta net is added to each stream: twice the sigmoid of score / number of streams",
    role: Role::AttnOutput,
    tensor: "hc_attn_inject.weight",
    emitted: "hc_combine",
};
const BEFORE_FFN: Reader = Reader {
    stages: ["ffn_streams_norm", "ffn_streams_down", "ffn_streams_act", "ffn_streams_gate", "ffn_norm"],
    role: Role::FfnInput,
    tensors: "hc_ffn",
    emitted: ("hc_mixed", "DSV4_HC_PRE"),
};
const AFTER_FFN: Writer = Writer {
    stages: ["ffn_inject", "ffn_stream_weights", "layer_out"],
    weights: "how much of the experts' result is added to each stream: twice the sigmoid of score / number of streams",
    role: Role::FfnOutput,
    tensor: "hc_ffn_inject.weight",
    emitted: "l_last",
};
const BEFORE_HEAD: Reader = Reader {
    stages: ["final_streams_norm", "final_streams_down", "final_streams_act", "final_streams_gate", "final_norm"],
    role: Role::HeadInput,
    tensors: "output_hc",
    emitted: ("result_norm", "SCALE"),
};

/// The table of n-grams, which every row has a vector of.
const NGRAMS: &str = "per_layer_token_embd.weight";

/// The graph of the model that `source` describes.
///
/// # Errors
/// A missing key, or a value that no such model can have.
pub fn graph(source: &dyn Metadata) -> Result<Graph, ConfigError> {
    let mut c = Config::read(ARCH, source)?.without_mtp(source)?;
    last_layer(source, c.n_layers)?;
    let (e, v) = (c.n_embd, c.n_vocab);
    let streams = Streams::read(ARCH, source, &c)?;
    let delta = Delta::read(ARCH, source)?;
    let kinds = hybrid::recurrent(ARCH, source, &c)?;
    let of_positions = blocks::sections(ARCH, source, c.rotated, Sections::Interleaved)?;
    let mixture = TRAITS.experts.map(|mixture| Experts::read(ARCH, source, mixture)).transpose()?;
    let experts = mixture.ok_or_else(|| ConfigError::Missing(format!("{ARCH}.expert_count")))?;
    c.llama_departs = experts.llama_departs.clone().or(of_positions).or(c.llama_departs.take());
    let indexer = Indexer::read(source, &kinds, &c)?;
    let ngrams = Embedding::read(source, &kinds, e)?;
    let shape = c.clone();
    let mut b = Builder::reading(c, source);
    let embed = b.stage("embed", Role::Embedding, Op::Embed, &[], &[e]).weight(EMBEDDING, &[e, v]);
    let embed = embed.add(TRAITS.embedding, "GET_ROWS");
    let grams = ngrams.as_ref().map(|ngrams| {
        let table = source.extent(NGRAMS).and_then(|extent| extent.get(1).copied()).unwrap_or(0) as usize;
        let rows = b.stage("ngram_embed", Role::Embedding, Defined::op(ngrams.op.clone()), &[], &[e]);
        rows.weight(NGRAMS, &[ngrams.width, table.max(ngrams.rows())]).add("ple_embd", "RESHAPE")
    });
    let copies = Columns { first: 0, run: e, stride: 0, runs: streams.count };
    let copies = Defined::op(Plain::columns(copies, "the embedding, once for each residual stream"));
    let mut all = b.stage("streams", Role::Streams, copies, &[embed], &[streams.all()]).add("hc_init", "REPEAT");
    for (layer, is_delta) in kinds.into_iter().enumerate() {
        b.enter(Some(layer as u16));
        if let (Some(ngrams), Some(grams)) = (ngrams.as_ref().filter(|ngrams| ngrams.layer == layer), grams) {
            all = ngrams.declare(&mut b, source, &streams, [grams, all], e);
        }
        let (normed, own) = streams.mixed(&mut b, source, Some(layer), &BEFORE_ATTENTION, all);
        let out = match is_delta {
            true => hybrid::delta_net(&mut b, &delta, &TRAITS, normed, &shape),
            false => {
                let chosen = indexer.declare(&mut b, normed, &shape);
                hybrid::attention(&mut b, &TRAITS, normed, Some(chosen), &shape)
            }
        };
        let between = streams.written(&mut b, &AFTER_ATTENTION, [all, out, own]);
        let (normed, own) = streams.mixed(&mut b, source, Some(layer), &BEFORE_FFN, between);
        let out = experts.declare(&mut b, normed, e);
        all = streams.written(&mut b, &AFTER_FFN, [between, out, own]);
    }
    b.enter(None);
    let (last, _) = streams.mixed(&mut b, source, None, &BEFORE_HEAD, all);
    let head = if source.extent(HEAD).is_some() { HEAD } else { EMBEDDING };
    linear(&mut b, ("logits", Role::Logits), last, head, [e, v], "result_output");
    Ok(b.finish())
}

/// Refuses a file that lacks the last layer: see [`blocks::last_layer`].
fn last_layer(source: &dyn Metadata, layers: usize) -> Result<(), ConfigError> {
    let last = format!("blk.{}.{}_norm.weight", layers - 1, BEFORE_ATTENTION.tensors);
    match source.extent(&last) {
        Some(_) => Ok(()),
        None => Err(invalid(&format!("{ARCH}.block_count"), layers, &format!("there is no tensor `{last}`"))),
    }
}

/// What chooses blocks of keys for attention: scores of a query with the pooled keys of each block.
struct Indexer {
    heads: usize,
    dim: usize,
    /// Keys of a block, and keys that a query attends to besides those of its last block.
    block: usize,
    budget: usize,
}

impl Indexer {
    fn read(source: &dyn Metadata, recurrent: &[bool], c: &Config) -> Result<Self, ConfigError> {
        const RATIOS: &str = "attention.compress_ratios";
        let integer = |suffix: &str| Config::integer(ARCH, suffix, source);
        let (heads, dim) = (integer("attention.indexer.head_count")?, integer("attention.indexer.key_length")?);
        let budget = integer("attention.indexer.top_k")?;
        let key = format!("{ARCH}.{RATIOS}");
        let ratios = source.integers(&key).unwrap_or_default();
        let of_attention = recurrent.iter().enumerate().filter(|(_, is)| !**is);
        let mut blocks = of_attention.map(|(layer, _)| ratios.get(layer).copied().unwrap_or(0));
        let block = blocks.next().unwrap_or(2);
        if block == 0 || blocks.any(|other| other != block) {
            let what = "a layer whose attention is to all keys, or to blocks of another length, is";
            return Err(unsupported(&key, format_args!("{ratios:?}"), what));
        }
        let block = usize::try_from(block).unwrap_or(0);
        if block < 2 || !budget.is_multiple_of(block) {
            let why = format!("expected blocks of 2 keys or more that divide `attention.indexer.top_k`, {budget}");
            return Err(invalid(&key, format_args!("{ratios:?}"), &why));
        }
        if dim < c.rotated {
            let why = format!("expected {} or more, the part of a head that is rotated", c.rotated);
            return Err(invalid(&format!("{ARCH}.attention.indexer.key_length"), dim, &why));
        }
        Ok(Self { heads, dim, block, budget })
    }

    /// Declares the choice of keys; gives it.
    fn declare(&self, b: &mut Builder, x: usize, c: &Config) -> usize {
        let (e, &Self { heads, dim, block, budget }) = (c.n_embd, self);
        let k = linear(b, ("index_k", Role::Index), x, "indexer.k_proj.weight", [e, dim], "indexer_k_raw");
        let cache = Op::KvCache(KvCache { n_kv_heads: 1, head_dim: dim });
        let cache = b.stage("index_cache", Role::Index, cache, &[k], &[]);
        let cache = cache.laid_out(&[Axis::Keys, Axis::Fixed(1), Axis::Fixed(dim)], EmittedLayout::FirstHalves);
        let cache = cache.add("cache_idx_k", "SET_ROWS");
        let q = linear(b, ("index_q_proj", Role::Index), x, "indexer.q_proj.weight", [e, heads * dim], "");
        let norm = Op::RmsNorm(RmsNorm { eps: c.rms_eps, groups: heads });
        let q = b.stage("index_q_normed", Role::Index, norm, &[q], &[heads * dim]);
        let q = q.weight("indexer.q_norm.weight", &[dim]).add("", "MUL");
        let rope = Rope { head_dim: dim, ..c.rope() };
        let q = b.stage("index_q", Role::Index, Op::Rope(rope.clone()), &[q], &[heads, dim]).add("indexer_q", "ROPE");
        let scores = Defined::op(BlockScores { heads, block, eps: c.rms_eps, rope });
        let scores = b.stage("index_scores", Role::Index, scores, &[q, cache], &[]);
        let scores = scores.weight("indexer.k_norm.weight", &[dim]);
        let keys = [Axis::Tokens, Axis::Keys];
        let scores =
            scores.laid_out(&keys, EmittedLayout::LastOfBlocks(block)).add("indexer_score", "LIGHTNING_INDEXER");
        let chosen = Defined::op(Plain::top_blocks(budget / block, block));
        let chosen = b.stage("index_keys", Role::Index, chosen, &[scores], &[]);
        chosen.laid_out(&keys, EmittedLayout::Mask).add("indexer_sel", "ADD")
    }
}

/// The embedding of n-grams that one layer adds to the streams.
struct Embedding {
    layer: usize,
    op: Ngrams,
    /// Width of a row of the table, and taps of the convolution.
    width: usize,
    taps: usize,
}

impl Embedding {
    fn read(source: &dyn Metadata, recurrent: &[bool], e: usize) -> Result<Option<Self>, ConfigError> {
        let integer = |suffix: &str| Config::integer(ARCH, suffix, source);
        let key = |suffix: &str| format!("{ARCH}.{suffix}");
        let list = |suffix: &str| source.integers(&key(suffix)).ok_or_else(|| ConfigError::Missing(key(suffix)));
        const LAYERS: &str = "ple.layers";
        let layers = source.integers(&key(LAYERS)).unwrap_or_default();
        let layer = match layers.as_slice() {
            [] => return Ok(None),
            [one] => usize::try_from(*one).unwrap_or(usize::MAX),
            _ => return Err(unsupported(&key(LAYERS), format_args!("{layers:?}"), "more than one layer is")),
        };
        if recurrent.get(layer) != Some(&true) {
            return Err(invalid(&key(LAYERS), format_args!("{layers:?}"), "expected a layer that is a delta net"));
        }
        let (longest, each) = (integer("ple.ngram_size")?, integer("ple.heads_per_ngram")?);
        let (width, taps) = (integer("embedding_length_per_layer_input")?, integer("ple.conv_kernel")?);
        let end =
            source.integer(&key("ple.eos_token_id")).ok_or_else(|| ConfigError::Missing(key("ple.eos_token_id")))?;
        let heads = longest.saturating_sub(1) * each;
        if longest < 2 || heads * width != e {
            let why = format!("{heads} heads of n-grams of width {width} are not the width of the stream, {e}");
            return Err(invalid(&key("ple.ngram_size"), longest, &why));
        }
        let (multipliers, firsts, counts) =
            (list("ple.layer_multipliers")?, list("ple.head_offsets")?, list("ple.head_vocab_sizes")?);
        let few = |suffix: &str, all: &[i64], n: usize| match all.len() < n || all[..n].iter().any(|v| *v < 0) {
            true => Err(invalid(&key(suffix), format_args!("{all:?}"), &format!("expected {n} numbers"))),
            false => Ok(()),
        };
        // Multipliers are 64 bits of any value.
        if multipliers.len() < longest {
            few("ple.layer_multipliers", &multipliers, longest)?;
        }
        few("ple.head_offsets", &firsts, heads)?;
        few("ple.head_vocab_sizes", &counts, heads)?;
        if counts[..heads].contains(&0) {
            return Err(invalid(&key("ple.head_vocab_sizes"), format_args!("{counts:?}"), "a head has no row"));
        }
        let unsigned = |n: &i64| n.cast_unsigned();
        let heads = firsts.iter().map(unsigned).zip(counts.iter().map(unsigned)).take(heads).collect();
        let multipliers = multipliers.iter().map(unsigned).take(longest).collect();
        Ok(Some(Self { layer, op: Ngrams { multipliers, heads, end: end as u32 }, width, taps }))
    }

    /// Rows that the table has at least.
    fn rows(&self) -> usize {
        self.op.heads.iter().map(|(first, count)| first.saturating_add(*count)).max().unwrap_or(0) as usize
    }

    /// Declares what the layer adds to the streams; gives the sum.
    fn declare(
        &self, b: &mut Builder, source: &dyn Metadata, streams: &Streams, [grams, all]: [usize; 2], e: usize,
    ) -> usize {
        let (role, count, width) = (Role::Streams, streams.count, streams.all());
        let layer = Some(self.layer);
        let key = linear(b, ("ngram_key", role), grams, "ple_key.weight", [e, width], "");
        let value = linear(b, ("ngram_value", role), grams, "ple_value.weight", [e, e], "");
        let names = ("ngram_key_normed", "the n-grams' key for each stream, normed and times the norm's weight");
        let key = streams.norm(b, source, names, key, (layer, "ple_norm_key.weight"));
        let names = ("ngram_query_normed", "each residual stream, normed and times the weight of the query's norm");
        let query = streams.norm(b, source, names, all, (layer, "ple_norm_query.weight"));
        let about =
            "how much each stream asks for the n-grams: the product of query and key, divided by the root of the width";
        let dots = Defined::op(StreamDots { streams: count, about });
        let score = b.stage("ngram_score", role, dots, &[key, query], &[count]).add("", "");
        let about = "the gate of each stream: for a score s the sigmoid of √s, or of −√(−s) if s is negative";
        let gate = Defined::op(Curve { of: Function::SigmoidOfRoot, about });
        let gate = b.stage("ngram_gate", role, gate, &[score], &[count]).add("ple_gate", "UNARY");
        let about = "for each stream, the n-grams' value times the stream's gate";
        let gated = Defined::op(StreamFactors { streams: count, about });
        let gated = b.stage("ngram_gated", role, gated, &[value, gate], &[width]).add("ple_gated_value", "MUL");
        let names =
            ("ngram_normed", "for each stream, its gated value of the n-grams, normed and times the norm's weight");
        let normed = streams.norm(b, source, names, gated, (layer, "ple_norm_conv.weight"));
        let apart = self.op.multipliers.len();
        let rows = (self.taps - 1) * apart;
        let kept = [Axis::Last, Axis::Fixed(rows), Axis::Fixed(width)];
        let window = b.stage("ngram_state", role, Defined::op(Window { rows }), &[normed], &[]);
        let window = window.laid_out(&kept, EmittedLayout::Columns).add("", "");
        let conv = Defined::op(Convolution { taps: self.taps, apart });
        let conv = b.stage("ngram_conv", role, conv, &[normed, window], &[width]);
        let conv = conv.weight("ple_conv1d.weight", &[self.taps, width]).add("", "");
        let act = b.stage("ngram_act", role, Defined::op(Silu), &[conv], &[width]).add("ple_conv_out", "RESHAPE");
        let sum = Defined::op(Plain::total("the residual streams, plus the n-grams' value and its convolution"));
        b.stage("ngram_out", role, sum, &[all, gated, act], &[width]).add("", "")
    }
}
