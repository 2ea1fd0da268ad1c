//! The fused forward pass: five kernels a layer for a decode step, replayed as
//! one CUDA graph; the fused attention for longer steps.
//!
//! This is the one place that schedules a decode step. Position and token stand
//! in device memory, so that the captured graph serves every step.

use super::CudaError;
use super::calls::{Calls, Span};
use super::decoder::{Decoder, Layer};
use super::kernels::entry;
use super::launch::{Args, Call};
use super::memory::{SPLITS, Weight};
use crate::model::Node;
use crate::ops::{Op, Pairing};

/// Threads of the fused kernels.
const THREADS: u32 = 256;
/// Rows of a block where a warp makes one.
const ROWS: u32 = 8;
/// Warps of a block of `linear_residual` at most.
const TEAM_WARPS: usize = 16;
/// Weights of a row that a warp takes: longer rows get more warps.
const ROW_PER_WARP: usize = 1024;
/// Blocks of the feed-forward's first half per multiprocessor.
const FFN_BLOCKS: u32 = 5;
/// Blocks of the output projection and of argmax per multiprocessor.
const HEAD_BLOCKS: u32 = 6;

/// A fused launch, and the nodes whose outputs it makes.
#[derive(Clone, Debug)]
pub struct Fused {
    /// The launch.
    pub call: Call,
    /// Nodes by index.
    pub nodes: Vec<usize>,
}

/// Shared memory of a vector of `n` floats, padded as `decode.cuh` does.
fn padded_bytes(n: usize) -> u32 {
    (n / 32 * 36 * 4) as u32
}

/// What of the model the fused kernels are not made for.
///
/// # Errors
/// The model's trait that stands against it, and what to use instead.
pub fn check(calls: &Calls<'_>, decoder: &Decoder) -> Result<(), CudaError> {
    let refuse = |what: String| {
        Err(CudaError::Unsupported(format!("the fused kernels are not made for {what}; use --subject cuda")))
    };
    let config = &calls.graph.config;
    if ![32, 64, 128].contains(&config.head_dim) {
        return refuse(format!("heads of {} elements", config.head_dim));
    }
    if config.n_heads / config.n_kv_heads > 16 {
        return refuse(format!("{} query heads to one of the cache", config.n_heads / config.n_kv_heads));
    }
    for layer in &decoder.layers {
        for node in layer.rope {
            if let Op::Rope(rope) = &calls.graph.nodes[node].op
                && rope.pairing != Pairing::Neox
            {
                return refuse("RoPE of adjacent pairs".to_owned());
            }
        }
    }
    Ok(())
}

/// The schedule of a forward pass over a model.
pub struct Schedule<'a> {
    /// Single nodes, the memory, the options.
    pub calls: Calls<'a>,
    /// Which node is which.
    pub decoder: &'a Decoder,
    /// Where the next token goes, in pinned host memory.
    pub next_token: u64,
    /// Multiprocessors of the device.
    pub processors: u32,
}

impl Schedule<'_> {
    fn node(&self, i: usize) -> &Node {
        &self.calls.graph.nodes[i]
    }

    fn at(&self, i: usize) -> u64 {
        self.calls.memory.outputs[i].at
    }

    fn weight(&self, i: usize) -> &Weight {
        &self.calls.memory.weights[&self.node(i).weights[0].name]
    }

    fn vector(&self, i: Option<usize>) -> u64 {
        i.map_or(0, |i| self.weight(i).planes[0])
    }

    fn eps(&self, i: usize) -> f32 {
        match &self.node(i).op {
            Op::RmsNorm(norm) => norm.eps as f32,
            _ => 0.0,
        }
    }

    fn kv(&self) -> &'static str {
        self.calls.options.kv.kernel()
    }

    /// Every launch of a decode step. `wants` says which nodes' outputs are to
    /// be written besides those that later kernels read.
    pub fn decode(&self, token: u32, position: usize, wants: &dyn Fn(usize) -> bool) -> Vec<Fused> {
        let d = self.decoder;
        let tap = |i: usize| if wants(i) { self.at(i) } else { 0 };
        let mut x = d.embed;
        let mut all = vec![self.first(token, position)];
        for layer in &d.layers {
            all.push(self.attn_qkv(layer, x, &tap));
            all.push(self.attention(layer, &tap));
            all.push(self.linear_residual(layer.attn_out, layer.context, x, layer.attn_residual, &tap));
            all.push(self.ffn_act(layer, &tap));
            all.push(self.linear_residual(layer.down, layer.act, layer.attn_residual, layer.out, &tap));
            x = layer.out;
        }
        all.push(self.head(x, &tap));
        all.push(self.argmax());
        all
    }

    /// The token's embedding, and the position for the kernels after it.
    pub fn first(&self, token: u32, position: usize) -> Fused {
        let embed = self.decoder.embed;
        let w = self.weight(embed);
        let args = Args::default().with(token).with(position as i32).with(self.calls.memory.scratch.position);
        let args = args.with(w.planes).with(self.at(embed)).with(w.n as i32);
        Fused { call: Call::new(entry("first", &[&w.ty.to_string()]), (1, 1, 1), THREADS, args), nodes: vec![embed] }
    }

    /// Norm, the three projections, biases or norms of heads, RoPE, both caches.
    fn attn_qkv(&self, layer: &Layer, x: usize, tap: &dyn Fn(usize) -> u64) -> Fused {
        let config = &self.calls.graph.config;
        let w = layer.proj.map(|i| self.weight(i));
        let head_norm = layer.normed[0].is_some();
        let tap_some = |i: Option<usize>| i.map_or(0, tap);
        // struct QkvWeights, struct QkvTaps.
        let mut weights = [0u64; 7 + 12];
        weights[0] = self.weight(layer.attn_norm).planes[0];
        weights[1..4].copy_from_slice(&layer.biased.map(|i| self.vector(i)));
        weights[4..6].copy_from_slice(&layer.normed.map(|i| self.vector(i)));
        weights[6] = self.calls.memory.frequencies[&layer.rope[0]];
        for (to, w) in weights[7..].chunks_mut(4).zip(&w) {
            to.copy_from_slice(&w.planes);
        }
        let mut taps = [0u64; 10];
        taps[0] = tap(layer.attn_norm);
        taps[1..4].copy_from_slice(&layer.proj.map(tap));
        taps[4..7].copy_from_slice(&layer.biased.map(tap_some));
        taps[7..9].copy_from_slice(&layer.normed.map(tap_some));
        taps[9] = tap(layer.rope[1]);
        let scratch = &self.calls.memory.scratch;
        let args = Args::default().with(self.at(x)).with(weights).with(self.eps(layer.attn_norm));
        let args = args.with(scratch.position).with(self.at(layer.rope[0]));
        let args = args.with(self.at(layer.cache[0])).with(self.at(layer.cache[1]));
        let args = args.with(w[0].n as i32).with(config.n_heads as i32);
        let args = args.with(config.n_kv_heads as i32).with(taps);
        let name = attn_qkv_entry(w, self.kv(), config.head_dim, head_norm);
        let half = config.head_dim / 2;
        let pairs = (config.n_heads + 2 * config.n_kv_heads) * half;
        let of_block = if head_norm { half } else { ROWS as usize };
        let nodes = [layer.attn_norm].into_iter().chain(layer.proj);
        let nodes = nodes.chain(layer.biased.into_iter().flatten());
        let nodes = nodes.chain(layer.normed.into_iter().flatten());
        Fused {
            call: Call::new(name, ((pairs / of_block) as u32, 1, 1), THREADS, args).shared(padded_bytes(w[0].n)),
            nodes: nodes.chain(layer.rope).chain(layer.cache).collect(),
        }
    }

    /// Scores, softmax and context of one token.
    fn attention(&self, layer: &Layer, tap: &dyn Fn(usize) -> u64) -> Fused {
        let config = &self.calls.graph.config;
        let scratch = &self.calls.memory.scratch;
        let weights = tap(layer.weights);
        // The weights are made of the scores.
        let scores = if weights != 0 { self.at(layer.scores) } else { tap(layer.scores) };
        let args = Args::default().with(self.at(layer.rope[0]));
        let args = args.with(self.at(layer.cache[0])).with(self.at(layer.cache[1]));
        let args = args.with(scratch.partial).with(scratch.arrived).with(self.at(layer.context));
        let args = args.with(scratch.position).with(self.scale(layer)).with([scores, weights]);
        let group = config.n_heads / config.n_kv_heads;
        let name = attention_entry(self.kv(), config.head_dim, group);
        Fused {
            call: Call::new(name, (config.n_kv_heads as u32, SPLITS as u32, 1), THREADS, args),
            nodes: vec![layer.scores, layer.weights, layer.context],
        }
    }

    fn scale(&self, layer: &Layer) -> f32 {
        match &self.node(layer.weights).op {
            Op::AttnWeights(softmax) => softmax.scale as f32,
            _ => 1.0,
        }
    }

    /// `out = a + W x`, the product itself tapped.
    fn linear_residual(&self, linear: usize, x: usize, a: usize, out: usize, tap: &dyn Fn(usize) -> u64) -> Fused {
        let w = self.weight(linear);
        let args = Args::default().with(self.at(x)).with(w.planes).with(self.at(a));
        let args = args.with(self.at(out)).with(w.n as i32).with(w.m as i32).with(tap(linear));
        let team = w.n.div_ceil(ROW_PER_WARP).clamp(1, TEAM_WARPS) as u32;
        // Rows share a copy of x; two blocks to a multiprocessor keep it busy.
        let rows = (w.m as u32).div_ceil(2 * self.processors).clamp(1, TEAM_WARPS as u32 / team);
        let grid = ((w.m as u32).div_ceil(rows), 1, 1);
        let mut call =
            Call::new(entry("linear_residual", &[&w.ty.to_string()]), grid, 0, args).shared(padded_bytes(w.n));
        call.block = (32 * team, rows, 1);
        Fused { call, nodes: vec![linear, out] }
    }

    /// Norm, gate, up and their product.
    fn ffn_act(&self, layer: &Layer, tap: &dyn Fn(usize) -> u64) -> Fused {
        let (gate, up) = (self.weight(layer.gate), self.weight(layer.up));
        let args = Args::default().with(self.at(layer.attn_residual));
        let args = args.with(self.weight(layer.ffn_norm).planes[0]).with(self.eps(layer.ffn_norm));
        let args = args.with(gate.planes).with(up.planes).with(self.at(layer.act));
        let args = args.with(gate.n as i32).with(gate.m as i32);
        let args = args.with([layer.ffn_norm, layer.gate, layer.up].map(tap));
        // As many blocks as are resident at once, and as many rows for each.
        let blocks = (gate.m as u32).div_ceil(ROWS);
        let rounds = blocks.div_ceil(FFN_BLOCKS * self.processors);
        let grid = (blocks.div_ceil(rounds), 1, 1);
        Fused {
            call: Call::new(ffn_act_entry([gate, up]), grid, THREADS, args).shared(padded_bytes(gate.n)),
            nodes: vec![layer.ffn_norm, layer.gate, layer.up, layer.act],
        }
    }

    /// The last norm and the output projection.
    fn head(&self, x: usize, tap: &dyn Fn(usize) -> u64) -> Fused {
        let (norm, logits) = (self.decoder.final_norm, self.decoder.logits);
        let w = self.weight(logits);
        let args = Args::default().with(self.at(x)).with(self.weight(norm).planes[0]);
        let args = args.with(self.eps(norm)).with(w.planes).with(self.at(logits));
        let args = args.with(w.n as i32).with(w.m as i32).with(tap(norm));
        let blocks = (w.m as u32).div_ceil(ROWS).min(HEAD_BLOCKS * self.processors);
        let name = entry("head", &[&w.ty.to_string()]);
        Fused {
            call: Call::new(name, (blocks, 1, 1), THREADS, args).shared(padded_bytes(w.n)),
            nodes: vec![norm, logits],
        }
    }

    /// The next token, into host memory.
    fn argmax(&self) -> Fused {
        let scratch = &self.calls.memory.scratch;
        let counter = scratch.arrived + 4 * self.calls.graph.config.n_kv_heads as u64;
        let m = self.weight(self.decoder.logits).m as i32;
        let args = Args::default().with(self.at(self.decoder.logits)).with(m);
        let args = args.with(scratch.best).with(counter).with(self.next_token);
        Fused { call: Call::new("argmax", (self.processors.min(64), 1, 1), THREADS, args), nodes: Vec::new() }
    }

    /// The fused attention of many tokens, for the three nodes that end in
    /// `layer.context`.
    pub fn prefill_attention(&self, layer: &Layer, span: Span, wants: &dyn Fn(usize) -> bool) -> Fused {
        let config = &self.calls.graph.config;
        let tap = |i: usize| if wants(i) { self.at(i) } else { 0 };
        let weights = tap(layer.weights);
        let scores = if weights != 0 { self.at(layer.scores) } else { tap(layer.scores) };
        let args = Args::default().with(self.at(layer.rope[0]));
        let args = args.with(self.at(layer.cache[0])).with(self.at(layer.cache[1]));
        let args = args.with(self.at(layer.context)).with(self.scale(layer));
        let args = args.with(config.n_heads as i32).with(config.n_kv_heads as i32);
        let args = args.with(span.first as i32).with(span.tokens as i32).with(scores).with(weights);
        let queries = if config.head_dim <= 64 { 32 } else { 16 };
        let grid = (span.tokens.div_ceil(queries) as u32, config.n_heads as u32, 1);
        Fused {
            call: Call::new(prefill_entry(self.kv(), config.head_dim), grid, 128, args),
            nodes: vec![layer.scores, layer.weights, layer.context],
        }
    }

    /// Files and arguments of every kernel that this model needs on this path.
    pub fn kernels(&self) -> Vec<(&'static str, Vec<String>)> {
        let config = &self.calls.graph.config;
        let (kv, d) = (self.kv(), config.head_dim.to_string());
        let group = (config.n_heads / config.n_kv_heads).to_string();
        let ty = |i: usize| self.weight(i).ty.to_string();
        let mut all = vec![
            ("first", vec![ty(self.decoder.embed)]),
            ("head", vec![ty(self.decoder.logits)]),
            ("argmax", Vec::new()),
            ("attention", vec![kv.to_owned(), d.clone(), group]),
            ("attn_prefill", vec![kv.to_owned(), d.clone()]),
        ];
        for layer in &self.decoder.layers {
            let mut qkv: Vec<String> = layer.proj.iter().map(|&i| ty(i)).collect();
            qkv.extend([kv.to_owned(), d.clone(), layer.normed[0].is_some().to_string()]);
            all.push(("attn_qkv", qkv));
            all.push(("ffn_act", vec![ty(layer.gate), ty(layer.up)]));
            all.push(("linear_residual", vec![ty(layer.attn_out)]));
            all.push(("linear_residual", vec![ty(layer.down)]));
        }
        all
    }
}

fn attn_qkv_entry(w: [&Weight; 3], kv: &str, d: usize, head_norm: bool) -> String {
    let [q, k, v] = w.map(|w| w.ty.to_string());
    entry("attn_qkv", &[&q, &k, &v, kv, &d.to_string(), &head_norm.to_string()])
}

fn attention_entry(kv: &str, d: usize, group: usize) -> String {
    entry("attention", &[kv, &d.to_string(), &group.to_string()])
}

fn prefill_entry(kv: &str, d: usize) -> String {
    entry("attn_prefill", &[kv, &d.to_string()])
}

fn ffn_act_entry(w: [&Weight; 2]) -> String {
    let [gate, up] = w.map(|w| w.ty.to_string());
    entry("ffn_act", &[&gate, &up])
}
