//! The faults, as changes of a launch: the cause of each, where it can be planted, and what it does.

use super::{Fault, Site};
use crate::cuda::calls::Job;
use crate::cuda::kernels::*;
use crate::cuda::launch::Call;
use crate::cuda::layouts::Ptr;
use crate::cuda::weights::Weight;
use crate::model::{Node, Role, row_len};
use crate::ops::Op;

/// The cache whose length does not advance.
pub(super) const STUCK: &str = "kv-position-stuck";

/// Threads of a block of `linear_transposed`.
const TRANSPOSED_THREADS: u32 = 256;

impl Site<'_> {
    pub(super) fn node(&self) -> &Node {
        &self.calls.graph.nodes[self.index]
    }

    pub(super) fn call(&mut self) -> &mut Call {
        self.launch.first_call()
    }

    /// Parameters of the node's kernel.
    pub(super) fn params<P: 'static>(&mut self) -> &mut P {
        let call = self.call();
        let kernel = call.kernel();
        call.params.get_mut().downcast_mut().unwrap_or_else(|| unreachable!("{kernel} takes other parameters"))
    }

    pub(super) fn input(&self, i: usize) -> Ptr {
        self.calls.input(self.node(), i)
    }

    pub(super) fn output(&self) -> Ptr {
        self.calls.memory.outputs[self.index].at
    }

    fn elements(&self) -> usize {
        row_len(self.node()) * self.launch.span.tokens
    }

    pub(super) fn weight(&self) -> &Weight {
        self.calls.memory.weight(self.node())
    }

    /// The op left out: its first input, copied.
    fn leave_out(&mut self) {
        let count = self.elements();
        let params = CopyParams { x: self.input(0), y: self.output(), count: count as i32 };
        self.launch.jobs = vec![Job::Kernel(Call::flat(params, count))];
    }

    /// Another launch after the node's.
    pub(super) fn then(&mut self, call: Call) {
        self.launch.jobs.push(Job::Kernel(call));
    }

    /// The weight of another node in place of this one's, by the kernel that reads its format.
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
    site.params::<LinearParams>().y = aside;
    let params = LeftOutParams { x: aside, y, width, stride: 96, phase: 5, count: count as i32 };
    site.then(Call::flat(params, count));
    site.launch.keeps = true;
}

fn rotated_twice(site: &mut Site<'_>) {
    let y = site.output();
    let mut again = site.call().clone();
    again.params = RopeParams { x: y, ..*site.params() }.into();
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
    let AttnScoresParams { q, k, s, heads, kv_heads, d, first, tokens, keys, .. } = *site.params();
    let params = ScoresInterleavedParams { q, k, s, heads, kv_heads, d, first, tokens, keys };
    *site.call() = Call::new(params, ((span.tokens * span.keys()) as u32, heads as u32, 1), 32);
}

fn gelu(site: &mut Site<'_>) {
    let SwiGluParams { gate, up, y, count } = *site.params();
    site.call().params = GeluParams { gate, up, y, count }.into();
}

/// A list of `cause, place => change;`. A place is a pattern of a node's op and role, and the number of layers.
macro_rules! faults {
    ($($cause:expr, $place:pat $(if $also:expr)? => $spoil:expr;)*) => {
        &[$(Fault {
            cause: $cause,
            fits: |graph, node| matches!((&node.op, node.role, graph.config.n_layers), $place $(if $also)?),
            spoil: $spoil,
        },)*]
    };
}
pub(super) use faults;

pub(super) const FAULTS: &[Fault] = faults! {
    "qkv-bias-omitted", (Op::Bias, ..) => |site| site.leave_out();
    "qkv-weight-transposed", (Op::Linear, Role::Query | Role::Key | Role::Value, _) => transposed;
    "linear-weight-transposed", (Op::Linear, Role::AttnOutput | Role::Gate | Role::Up | Role::FfnOutput, _) => transposed;
    "lm-head-transposed", (Op::Linear, Role::Logits, _) => transposed;
    "gate-up-weights-swapped", (Op::Linear, Role::Gate | Role::Up, _) => other_of_pair;
    "tensor-mapped-wrong", (Op::Linear, role, 2..) if role != Role::Logits => next_layer;
    "logits-stale:stride=96,phase=5", (Op::Linear, Role::Logits, _) => stale;
    // In what reads and writes it: see `Planted::takes_step_for_first`.
    STUCK, (Op::KvCache(_), ..) => |_| {};
    "rope-base:base=10000", (Op::Rope(_), ..) => |site| {
        site.params::<RopeParams>().frequency = site.extra.frequencies;
    };
    "rope-pairing", (Op::Rope(_), ..) => |site| site.params::<RopeParams>().adjacent = 1;
    "rope-position-off-by-one:by=1", (Op::Rope(_), ..) => |site| site.params::<RopeParams>().first += 1;
    "decode-offset:by=11", (Op::Rope(_), ..) => |site| {
        site.params::<RopeParams>().first += if site.launch.span.first > 0 { 11 } else { 0 };
    };
    "rope-not-on-q", (Op::Rope(_), Role::Query, _) => |site| site.leave_out();
    "rope-not-on-k", (Op::Rope(_), Role::Key, _) => |site| site.leave_out();
    "rope-twice", (Op::Rope(_), ..) => rotated_twice;
    "zeroed", (Op::Rope(_), ..) => zeroed_head;
    "attn-scale-missing", (Op::AttnWeights(_), ..) => |site| site.params::<AttnWeightsParams>().scale = 1.0;
    "mask-off-by-one:by=1", (Op::AttnWeights(_), ..) => |site| site.params::<AttnWeightsParams>().first += 1;
    "mask-missing", (Op::AttnWeights(_), ..) => |site| {
        let params: &mut AttnWeightsParams = site.params();
        params.first = params.keys;
    };
    // With one head to a group, or one group, the two maps are one.
    "gqa-head-map", (Op::AttnScores(a), ..) if (2..a.n_heads).contains(&a.n_kv_heads) => interleaved;
    "rms-eps-wrong:eps=0.01", (Op::RmsNorm(_), ..) => |site| site.params::<RmsNormParams>().eps = 0.01;
    "rms-weight-missing", (Op::RmsNorm(_), ..) => |site| site.params::<RmsNormParams>().w = site.extra.ones;
    "gate-up-operands-swapped", (Op::SwiGlu, ..) => |site| {
        let params: &mut SwiGluParams = site.params();
        (params.gate, params.up) = (params.up, params.gate);
    };
    "gelu-for-silu:kind=0", (Op::SwiGlu, ..) => gelu;
    "residual-missing", (Op::Residual, ..) => |site| site.leave_out();
};
