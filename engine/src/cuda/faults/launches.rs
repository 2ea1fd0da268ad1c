//! The faults, as changes of a launch. Parameter numbers are those of the
//! kernels in `kernels/`.

use super::{Fault, Site};
use crate::cuda::calls::Work;
use crate::cuda::launch::{Args, Call};
use crate::model::{Graph, Node, Role, StageId, row_len};
use crate::ops::{Attention, Op};

/// The cache whose length does not advance.
pub(super) const STUCK: &str = "kv-position-stuck";
/// The logits of which some are not written.
pub(super) const STALE: &str = "logits-stale:stride=96,phase=5";

fn rope(_: &Graph, n: &Node) -> bool {
    matches!(n.op, Op::Rope(_))
}

fn norm(_: &Graph, n: &Node) -> bool {
    matches!(n.op, Op::RmsNorm(_))
}

fn softmax(_: &Graph, n: &Node) -> bool {
    matches!(n.op, Op::AttnWeights(_))
}

fn head(_: &Graph, n: &Node) -> bool {
    matches!((&n.op, n.role), (Op::Linear, Role::Logits))
}

fn swiglu(_: &Graph, n: &Node) -> bool {
    n.op == Op::SwiGlu
}

impl Site<'_> {
    fn call(&mut self) -> &mut Call {
        match self.work {
            Work::Kernel(call) | Work::Two(call, _) | Work::Product(call, _) => call,
        }
    }

    fn input(&self, i: usize) -> u64 {
        self.calls.memory.outputs[self.node().inputs[i]].at
    }

    fn output(&self) -> u64 {
        self.calls.memory.outputs[self.index].at
    }

    fn elements(&self) -> usize {
        row_len(self.node()) * self.span.tokens
    }

    /// The op left out: its first input, copied.
    fn leave_out(&mut self) {
        let args = Args::default().with(self.input(0)).with(self.output());
        let count = self.elements();
        *self.work = Work::Kernel(Call::flat("copy", count, args.with(count as i32)));
    }

    /// Has `attn_context` sum the first `n` keys of every query.
    pub(super) fn sum_keys(&mut self, n: usize) {
        let call = self.call();
        let keys = call.args.get::<i32>(8).min(n as i32);
        // A query sees as many keys as there are before its step, and its own.
        call.args.set(6, keys - 1);
    }

    /// The weight of another node in place of this one's, by whatever kernel
    /// reads its format.
    fn take_weight_of(&mut self, other: usize) {
        let mut node = self.node().clone();
        node.weights = self.calls.graph.nodes[other].weights.clone();
        *self.work = self.calls.linear(&node, self.input(0), self.output(), self.span.tokens);
    }
}

fn transposed(site: &mut Site<'_>) {
    let w = &site.calls.memory.weights[&site.node().weights[0].name];
    let (n, m, groups) = (w.n, w.m, w.n * w.m / 32);
    let flat = site.calls.memory.dequantised;
    let first = Args::default().with(w.planes).with(flat).with(groups as i32);
    let first = Call::flat(format!("dequantise_{}", w.ty), groups, first);
    let args = Args::default().with(flat).with(site.input(0)).with(site.output());
    let grid = ((m as u32).div_ceil(256), site.span.tokens as u32, 1);
    let args = args.with(n as i32).with(m as i32);
    *site.work = Work::Two(first, Call::new("linear_transposed", grid, 256, args));
}

fn other_of_pair(site: &mut Site<'_>) {
    let (graph, index) = (site.calls.graph, site.index);
    let pair = graph.nodes.iter().find(|n| n.op == Op::SwiGlu && n.inputs.contains(&index));
    if let Some(other) = pair.and_then(|p| p.inputs.iter().find(|&&i| i != index)) {
        site.take_weight_of(*other);
    }
}

fn next_layer(site: &mut Site<'_>) {
    let (graph, id) = (site.calls.graph, site.node().id);
    let last = graph.config.n_layers as u16 - 1;
    let layer = id.layer.map(|l| if l == last { l - 1 } else { l + 1 });
    if let Some(other) = graph.index(StageId { layer, ..id }) {
        site.take_weight_of(other);
    }
}

fn stale(site: &mut Site<'_>) {
    let aside = site.calls.memory.dequantised;
    let (y, width, count) = (site.output(), row_len(site.node()), site.elements());
    site.call().args.set(2, aside);
    let args = Args::default().with(aside).with(y).with(width as i32);
    let args = args.with(96i32).with(5i32).with(count as i32);
    *site.work = Work::Two(site.call().clone(), Call::flat("left_out", count, args));
}

fn rotated_twice(site: &mut Site<'_>) {
    let first = site.call().clone();
    let mut second = first.clone();
    second.args.set(0, site.output());
    *site.work = Work::Two(first, second);
}

fn zeroed_head(site: &mut Site<'_>) {
    let d = site.calls.graph.config.head_dim;
    let (y, heads, count) = (site.output(), row_len(site.node()) / d, site.elements());
    let args = Args::default().with(y).with(y).with(heads as i32).with(d as i32);
    let args = args.with(1i32).with(count as i32);
    *site.work = Work::Two(site.call().clone(), Call::flat("zeroed_head", count, args));
}

pub(super) const FAULTS: &[Fault] = &[
    Fault { cause: "qkv-bias-omitted", fits: |_, n| n.op == Op::Bias, spoil: |site| site.leave_out() },
    Fault {
        cause: "qkv-weight-transposed",
        fits: |_, n| matches!((&n.op, n.role), (Op::Linear, Role::Query | Role::Key | Role::Value)),
        spoil: transposed,
    },
    Fault {
        cause: "linear-weight-transposed",
        fits: |_, n| {
            matches!((&n.op, n.role), (Op::Linear, Role::AttnOutput | Role::Gate | Role::Up | Role::FfnOutput))
        },
        spoil: transposed,
    },
    Fault { cause: "lm-head-transposed", fits: head, spoil: transposed },
    Fault {
        cause: "gate-up-weights-swapped",
        fits: |_, n| matches!((&n.op, n.role), (Op::Linear, Role::Gate | Role::Up)),
        spoil: other_of_pair,
    },
    Fault {
        cause: "tensor-mapped-wrong",
        fits: |g, n| n.op == Op::Linear && n.id.layer.is_some() && g.config.n_layers > 1,
        spoil: next_layer,
    },
    Fault { cause: STALE, fits: head, spoil: stale },
    Fault {
        cause: STUCK,
        fits: |_, n| matches!(n.op, Op::KvCache(_)),
        // In the span alone: see `Planted::span`.
        spoil: |_| {},
    },
    Fault {
        cause: "rope-base:base=10000",
        fits: rope,
        spoil: |site| {
            let table = site.extra.frequencies();
            site.call().args.set(1, table);
        },
    },
    Fault { cause: "rope-pairing", fits: rope, spoil: |site| site.call().args.set(5, 1i32) },
    Fault {
        cause: "rope-position-off-by-one:by=1",
        fits: rope,
        spoil: |site| {
            let first = site.call().args.get::<i32>(6);
            site.call().args.set(6, first + 1);
        },
    },
    Fault {
        cause: "decode-offset:by=11",
        fits: rope,
        spoil: |site| {
            let first = site.call().args.get::<i32>(6);
            let by = if first > 0 { 11 } else { 0 };
            site.call().args.set(6, first + by);
        },
    },
    Fault { cause: "rope-not-on-q", fits: |g, n| rope(g, n) && n.role == Role::Query, spoil: |site| site.leave_out() },
    Fault { cause: "rope-not-on-k", fits: |g, n| rope(g, n) && n.role == Role::Key, spoil: |site| site.leave_out() },
    Fault { cause: "rope-twice", fits: rope, spoil: rotated_twice },
    Fault { cause: "zeroed", fits: rope, spoil: zeroed_head },
    Fault { cause: "attn-scale-missing", fits: softmax, spoil: |site| site.call().args.set(2, 1f32) },
    Fault {
        cause: "mask-off-by-one:by=1",
        fits: softmax,
        spoil: |site| {
            let first = site.call().args.get::<i32>(3);
            site.call().args.set(3, first + 1);
        },
    },
    Fault {
        cause: "mask-missing",
        fits: softmax,
        spoil: |site| {
            let keys = site.call().args.get::<i32>(5);
            site.call().args.set(3, keys);
        },
    },
    Fault {
        cause: "gqa-head-map",
        // With as many KV heads as heads, or with one, the two maps are one.
        fits: |_, n| matches!(n.op, Op::AttnScores(Attention { n_heads, n_kv_heads, .. }) if (2..n_heads).contains(&n_kv_heads)),
        spoil: |site| {
            let keys = site.span.keys() as u32;
            let call = site.call();
            call.kernel = "scores_interleaved".to_owned();
            (call.grid.0, call.block) = (keys, (32, 1, 1));
        },
    },
    Fault { cause: "rms-eps-wrong:eps=0.01", fits: norm, spoil: |site| site.call().args.set(4, 0.01f32) },
    Fault {
        cause: "rms-weight-missing",
        fits: norm,
        spoil: |site| {
            let ones = site.extra.ones();
            site.call().args.set(1, ones);
        },
    },
    Fault {
        cause: "gate-up-operands-swapped",
        fits: swiglu,
        spoil: |site| {
            let (gate, up) = (site.input(0), site.input(1));
            site.call().args.set(0, up);
            site.call().args.set(1, gate);
        },
    },
    Fault { cause: "gelu-for-silu:kind=0", fits: swiglu, spoil: |site| site.call().kernel = "gelu".to_owned() },
    Fault { cause: "residual-missing", fits: |_, n| n.op == Op::Residual, spoil: |site| site.leave_out() },
];
