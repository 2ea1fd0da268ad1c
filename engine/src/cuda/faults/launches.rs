//! The faults, as changes of a launch. Parameter numbers are those of the
//! kernels in `kernels/`.

use super::{Fault, Site};
use crate::cuda::calls::Work;
use crate::cuda::launch::{Args, Call};
use crate::model::{Node, row_len};
use crate::ops::Op;

/// The cache whose length does not advance.
pub(super) const STUCK: &str = "kv-position-stuck";
/// The logits of which some are not written.
pub(super) const STALE: &str = "logits-stale:stride=96,phase=5";

fn linear(op: &Op) -> bool {
    matches!(op, Op::Linear(_))
}

fn rope(op: &Op) -> bool {
    matches!(op, Op::Rope(_))
}

fn norm(op: &Op) -> bool {
    matches!(op, Op::RmsNorm(_))
}

fn softmax(op: &Op) -> bool {
    matches!(op, Op::AttnWeights(_))
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

    /// The weight of another node in place of this one's.
    fn take_weight_of(&mut self, pick: impl Fn(&Node) -> bool) {
        let mut nodes = self.calls.graph.nodes.iter();
        let Some(name) = nodes.find(|n| pick(n)).and_then(|n| n.weight.clone()) else {
            return;
        };
        // By whatever kernel reads the other's format.
        let mut node = self.node().clone();
        node.weight = Some(name);
        *self.work = self.calls.linear(&node, self.input(0), self.output(), self.span.tokens);
    }
}

fn transposed(site: &mut Site<'_>) {
    let name = site.node().weight.clone().unwrap_or_default();
    let w = &site.calls.memory.weights[&name];
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
    let graph = site.calls.graph;
    let index = site.index;
    let pair = graph.nodes.iter().find(|n| matches!(n.op, Op::SwiGlu(_)) && n.inputs.contains(&index));
    let Some(other) = pair.and_then(|p| p.inputs.iter().find(|&&i| i != index)) else {
        return;
    };
    let id = graph.nodes[*other].id;
    site.take_weight_of(|n| n.id == id);
}

fn next_layer(site: &mut Site<'_>) {
    let id = site.node().id;
    let last = site.calls.graph.config.n_layers as u16 - 1;
    let layer = id.layer.map(|l| if l == last { l - 1 } else { l + 1 });
    site.take_weight_of(|n| n.id.name == id.name && n.id.layer == layer);
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
    Fault { cause: "qkv-bias-omitted", fits: |op| matches!(op, Op::Bias), spoil: |site| site.leave_out() },
    Fault { cause: "qkv-weight-transposed", fits: linear, spoil: transposed },
    Fault { cause: "linear-weight-transposed", fits: linear, spoil: transposed },
    Fault { cause: "lm-head-transposed", fits: linear, spoil: transposed },
    Fault { cause: "gate-up-weights-swapped", fits: linear, spoil: other_of_pair },
    Fault { cause: "tensor-mapped-wrong", fits: linear, spoil: next_layer },
    Fault { cause: STALE, fits: linear, spoil: stale },
    Fault {
        cause: STUCK,
        fits: |op| matches!(op, Op::KvCache(_)),
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
    Fault { cause: "rope-not-on-q", fits: rope, spoil: |site| site.leave_out() },
    Fault { cause: "rope-not-on-k", fits: rope, spoil: |site| site.leave_out() },
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
        fits: |op| matches!(op, Op::AttnScores(_)),
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
        fits: |op| matches!(op, Op::SwiGlu(_)),
        spoil: |site| {
            let (gate, up) = (site.input(0), site.input(1));
            site.call().args.set(0, up);
            site.call().args.set(1, gate);
        },
    },
    Fault {
        cause: "gelu-for-silu:kind=0",
        fits: |op| matches!(op, Op::SwiGlu(_)),
        spoil: |site| site.call().kernel = "gelu".to_owned(),
    },
    Fault { cause: "residual-missing", fits: |op| matches!(op, Op::Residual), spoil: |site| site.leave_out() },
];
