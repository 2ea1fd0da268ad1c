//! The faults, as changes of a launch.

use super::{Fault, Site, places};
use crate::cuda::calls::Job;
use crate::cuda::kernels::*;
use crate::cuda::launch::{Call, Ptr};
use crate::cuda::memory::Weight;
use crate::model::{Node, row_len};
use crate::ops::Op;

/// The cache whose length does not advance.
pub(super) const STUCK: &str = "kv-position-stuck";

/// Threads of a block of `linear_transposed`.
const TRANSPOSED_THREADS: u32 = 256;

impl Site<'_> {
    fn node(&self) -> &Node {
        &self.calls.graph.nodes[self.index]
    }

    fn call(&mut self) -> &mut Call {
        self.launch.first_call()
    }

    /// Parameters of the node's kernel.
    pub(super) fn params(&mut self) -> &mut Params {
        &mut self.call().params
    }

    fn rope(&mut self) -> &mut RopeParams {
        match self.params() {
            Params::Rope(params) => params,
            other => unreachable!("{other:?} of a rotation"),
        }
    }

    fn softmax(&mut self) -> &mut AttnWeightsParams {
        match self.params() {
            Params::AttnWeights(params) => params,
            other => unreachable!("{other:?} of a softmax"),
        }
    }

    fn norm(&mut self) -> &mut RmsNormParams {
        match self.params() {
            Params::RmsNorm(params) => params,
            other => unreachable!("{other:?} of a norm"),
        }
    }

    fn swiglu(&mut self) -> &mut SwiGluParams {
        match self.params() {
            Params::SwiGlu(params) => params,
            other => unreachable!("{other:?} of an activation"),
        }
    }

    fn input(&self, i: usize) -> Ptr {
        self.calls.input(self.node(), i)
    }

    fn output(&self) -> Ptr {
        self.calls.memory.outputs[self.index].at
    }

    fn elements(&self) -> usize {
        row_len(self.node()) * self.launch.span.tokens
    }

    fn weight(&self) -> &Weight {
        self.calls.memory.weight(self.node())
    }

    /// The op left out: its first input, copied.
    fn leave_out(&mut self) {
        let count = self.elements();
        let params = CopyParams { x: self.input(0), y: self.output(), count: count as i32 };
        self.launch.jobs = vec![Job::Kernel(Call::flat(params, count))];
    }

    /// Another launch after the node's.
    fn then(&mut self, call: Call) {
        self.launch.jobs.push(Job::Kernel(call));
    }

    /// The weight of another node in place of this one's, by whatever kernel reads its format.
    fn take_weight_of(&mut self, other: &Node) {
        let weight = self.calls.memory.weight(other);
        self.launch.jobs = self.calls.linear(weight, self.input(0), self.output(), self.launch.span.tokens);
    }
}

fn transposed(site: &mut Site<'_>) {
    let weight = site.weight();
    let (n, m) = (weight.n as i32, weight.m as i32);
    let plain = site.calls.dequantise(weight);
    let params = LinearTransposedParams { w: site.calls.memory.dequantised, x: site.input(0), y: site.output(), n, m };
    let grid = (site.launch.span.tokens as u32, (m as u32).div_ceil(TRANSPOSED_THREADS), 1);
    site.launch.jobs = vec![plain, Job::Kernel(Call::new(params, grid, TRANSPOSED_THREADS))];
}

/// Gate for up, and up for gate.
fn other_of_pair(site: &mut Site<'_>) {
    let nodes = &site.calls.graph.nodes;
    let pairs = nodes.iter().filter(|n| n.op == Op::SwiGlu && n.inputs.contains(&site.index));
    if let Some(&other) = pairs.flat_map(|pair| &pair.inputs).find(|&&i| i != site.index) {
        site.take_weight_of(&nodes[other]);
    }
}

fn next_layer(site: &mut Site<'_>) {
    let (id, nodes) = (site.node().id, &site.calls.graph.nodes);
    let last = site.calls.graph.config.n_layers as u16 - 1;
    let layer = id.layer.map(|l| if l == last { l.saturating_sub(1) } else { l + 1 });
    if let Some(other) = nodes.iter().find(|n| n.id.name == id.name && n.id.layer == layer) {
        site.take_weight_of(other);
    }
}

fn stale(site: &mut Site<'_>) {
    let aside = site.calls.memory.dequantised;
    let (y, width, count) = (site.output(), row_len(site.node()) as i32, site.elements());
    match site.params() {
        Params::Linear(params) => params.y = aside,
        other => unreachable!("{other:?} of a linear layer"),
    }
    let params = LeftOutParams { x: aside, y, width, stride: 96, phase: 5, count: count as i32 };
    site.then(Call::flat(params, count));
    site.launch.keeps = true;
}

fn rotated_twice(site: &mut Site<'_>) {
    let y = site.output();
    let mut again = site.call().clone();
    if let Params::Rope(params) = &mut again.params {
        params.x = y;
    }
    site.then(again);
}

fn zeroed_head(site: &mut Site<'_>) {
    let d = site.calls.graph.config.head_dim;
    let (heads, count) = (row_len(site.node()) / d, site.elements());
    let params = ZeroedHeadParams { y: site.output(), heads: heads as i32, d: d as i32, head: 1, count: count as i32 };
    site.then(Call::flat(params, count));
}

fn interleaved(site: &mut Site<'_>) {
    let span = site.launch.span;
    let call = site.call();
    let Params::AttnScores(AttnScoresParams { q, k, s, heads, kv_heads, d, first, tokens, keys }) = call.params else {
        unreachable!("{:?} of scores", call.params)
    };
    let params = ScoresInterleavedParams { q, k, s, heads, kv_heads, d, first, tokens, keys };
    *call = Call::new(params, ((span.tokens * span.keys()) as u32, heads as u32, 1), 32);
}

fn gelu(site: &mut Site<'_>) {
    let SwiGluParams { gate, up, y, count } = *site.swiglu();
    *site.params() = GeluParams { gate, up, y, count }.into();
}

/// A list of `cause, place, change`.
macro_rules! faults {
    ($($cause:expr, $place:ident, $spoil:expr;)*) => {
        &[$(Fault { cause: $cause, fits: places::$place, spoil: $spoil },)*]
    };
}

pub(super) const FAULTS: &[Fault] = faults! {
    "qkv-bias-omitted", bias, |site| site.leave_out();
    "qkv-weight-transposed", qkv, transposed;
    "linear-weight-transposed", other_linear, transposed;
    "lm-head-transposed", lm_head, transposed;
    "gate-up-weights-swapped", gate_or_up, other_of_pair;
    "tensor-mapped-wrong", linear_of_several_layers, next_layer;
    "logits-stale:stride=96,phase=5", lm_head, stale;
    // In what reads and writes it: see `Planted::takes_step_for_first`.
    STUCK, cache, |_| {};
    "rope-base:base=10000", rope, |site| site.rope().frequency = site.extra.frequencies;
    "rope-pairing", rope, |site| site.rope().adjacent = 1;
    "rope-position-off-by-one:by=1", rope, |site| site.rope().first += 1;
    "decode-offset:by=11", rope, |site| site.rope().first += if site.launch.span.first > 0 { 11 } else { 0 };
    "rope-not-on-q", rope_of_queries, |site| site.leave_out();
    "rope-not-on-k", rope_of_keys, |site| site.leave_out();
    "rope-twice", rope, rotated_twice;
    "zeroed", rope, zeroed_head;
    "attn-scale-missing", softmax, |site| site.softmax().scale = 1.0;
    "mask-off-by-one:by=1", softmax, |site| site.softmax().first += 1;
    "mask-missing", softmax, |site| site.softmax().first = site.softmax().keys;
    "gqa-head-map", grouped_scores, interleaved;
    "rms-eps-wrong:eps=0.01", norm, |site| site.norm().eps = 0.01;
    "rms-weight-missing", norm, |site| site.norm().w = site.extra.ones;
    "gate-up-operands-swapped", swiglu, |site| {
        let params = site.swiglu();
        (params.gate, params.up) = (params.up, params.gate);
    };
    "gelu-for-silu:kind=0", swiglu, gelu;
    "residual-missing", residual, |site| site.leave_out();
};
