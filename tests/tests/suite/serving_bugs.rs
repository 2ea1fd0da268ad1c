//! Bugs of an engine that serves: in passes of several sequences, in chunks, after rejected drafts and with shared prefixes.
//! Plain loops over what a stage gave, planted in the CPU engine; none of them looks at values to decide what to do.

use qdiff::capture::Fed;
use qdiff_engine::cpu::{Group, Sequences};
use qdiff_engine::ops::Tensor;
use qdiff_engine::tap::{Intervene, Site};
use std::collections::VecDeque;
use std::sync::Arc;

/// Rows of a block of the cache.
const BLOCK: usize = 4;

/// A bug, as it can be planted.
pub struct ServingFault {
    /// Its name, in kebab case.
    pub name: &'static str,
    /// What the engine does.
    pub what: &'static str,
    /// The stage that it spoils, of layer 1 where stages have layers.
    pub stage: &'static str,
    spoil: fn(&mut Pass<'_>),
}

/// A pass that runs.
struct Pass<'a> {
    /// Its number.
    number: usize,
    groups: &'a [Group],
    /// Slots before and after the pass.
    slots: (usize, usize),
    inputs: &'a [Arc<Tensor<f32>>],
    out: &'a mut Vec<f32>,
    shape: &'a [usize],
    /// What the stage gave a pass before.
    old: &'a [f32],
    rope_base: f64,
    head_dim: usize,
}

impl Pass<'_> {
    /// Elements of a row, or of a slot.
    fn width(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Puts a row, or a slot, in the place of another.
    fn copy(&mut self, from: usize, to: usize) {
        let width = self.width();
        self.out.copy_within(from * width..(from + 1) * width, to * width);
    }

    /// Makes the weights of each row of a group those over the slots that `seen` says, of this head and row.
    fn weigh(&mut self, seen: impl Fn(&Group, usize) -> Vec<usize>) {
        let (heads, tokens, slots) = (self.shape[0], self.shape[1], self.shape[2]);
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        for group in self.groups {
            for (i, &row) in group.rows.iter().enumerate() {
                let seen = seen(group, i);
                for head in 0..heads {
                    let at = (head * tokens + row) * slots;
                    let scores: Vec<f32> = seen.iter().map(|s| self.inputs[0].data[at + s] * scale).collect();
                    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let sum: f32 = scores.iter().map(|s| (s - top).exp()).sum();
                    self.out[at..at + slots].fill(0.0);
                    for (slot, score) in seen.iter().zip(scores) {
                        self.out[at + slot] = (score - top).exp() / sum;
                    }
                }
            }
        }
    }

    /// Rotates the rows as if each had the position that `at` says.
    fn rotate(&mut self, at: impl Fn(&Group, u32) -> u32) {
        let (d, half) = (self.head_dim, self.head_dim / 2);
        let width = self.width();
        for group in self.groups {
            for (&row, &position) in group.rows.iter().zip(&group.positions) {
                let position = f64::from(at(group, position));
                for head in (0..width).step_by(d) {
                    for i in 0..half {
                        let angle = position * self.rope_base.powf(-2.0 * i as f64 / d as f64);
                        let (sin, cos) = angle.sin_cos();
                        let (a, b) = (row * width + head + i, row * width + head + i + half);
                        let (x, y) = (f64::from(self.inputs[0].data[a]), f64::from(self.inputs[0].data[b]));
                        self.out[a] = (x * cos - y * sin) as f32;
                        self.out[b] = (x * sin + y * cos) as f32;
                    }
                }
            }
        }
    }

    /// Rows of the pass that are of its last sequence, if there are several.
    fn last(&self) -> Option<&Group> {
        self.groups.last().filter(|_| self.groups.len() > 1)
    }
}

const fn bug(name: &'static str, what: &'static str, stage: &'static str, spoil: fn(&mut Pass<'_>)) -> ServingFault {
    ServingFault { name, what, stage, spoil }
}

/// Every bug of an engine that serves.
pub const FAULTS: &[ServingFault] = &[
    bug("mask-of-row-0", "all rows of a chunk have the mask of its first row", "attn_weights", |p| {
        p.weigh(|group, _| group.slots[..=group.positions[0] as usize].to_vec());
    }),
    bug("length-of-sequence-0", "every sequence sees as many keys as the first has", "attn_weights", |p| {
        let first = p.groups[0].slots.len();
        p.weigh(|group, i| group.slots[..(group.positions[i] as usize + 1).min(first)].to_vec());
    }),
    bug("newest-block-unseen", "keys of a block that is not full are not seen", "attn_weights", |p| {
        p.weigh(|group, i| {
            let seen = group.positions[i] as usize + 1;
            group.slots[..if seen > BLOCK { seen / BLOCK * BLOCK } else { seen }].to_vec()
        });
    }),
    bug(
        "draft-without-mask",
        "a sequence of 2 to 8 rows is taken for a draft, whose rows all see its end",
        "attn_weights",
        |p| {
            p.weigh(|group, i| {
                let own = group.positions[if group.rows.len() <= 8 { group.rows.len() - 1 } else { i }];
                group.slots[..=own as usize].to_vec()
            });
        },
    ),
    bug("chunk-restarts-positions", "queries of a later chunk are rotated from position 0 on", "q_rope", |p| {
        p.rotate(|group, position| position - group.positions[0]);
    }),
    bug("positions-of-the-batch", "keys are rotated by their place in the pass", "k_rope", |p| {
        p.rotate(|group, position| group.rows[(position - group.positions[0]) as usize] as u32);
    }),
    bug(
        "position-of-the-draft",
        "queries of every pass after the first have the position of a token more",
        "q_rope",
        |p| {
            let more = u32::from(p.number > 1);
            p.rotate(|_, position| position + more);
        },
    ),
    bug("slot-0-overwritten", "the last row of each pass is also written to slot 0", "k_cache", |p| {
        if p.slots.0 > 0 {
            p.copy(p.slots.1 - 1, 0);
        }
    }),
    bug(
        "padding-updates-the-cache",
        "a pass is padded to 8 rows, and the padding writes zeros to slot 1",
        "v_cache",
        |p| {
            if p.slots.0 > 1 {
                let width = p.width();
                p.out[width..2 * width].fill(0.0);
            }
        },
    ),
    bug(
        "block-freed-in-flight",
        "the first block is free while sequences still have it, and new rows go there",
        "v_cache",
        |p| {
            let (before, after) = p.slots;
            if before > BLOCK {
                (0..BLOCK.min(after.saturating_sub(before))).for_each(|i| p.copy(before + i, i));
            }
        },
    ),
    bug("row-not-written", "the first row of each later pass is not written: its slot holds zeros", "k_cache", |p| {
        if p.slots.0 > 0 && p.slots.0 < p.slots.1 {
            let width = p.width();
            p.out[p.slots.0 * width..(p.slots.0 + 1) * width].fill(0.0);
        }
    }),
    bug(
        "rows-of-sequences-exchanged",
        "the first rows of the first and the last sequence are exchanged",
        "ffn_norm",
        |p| {
            if let Some(last) = p.last() {
                let (a, b, width) = (p.groups[0].rows[0], last.rows[0], p.width());
                for i in 0..width {
                    p.out.swap(a * width + i, b * width + i);
                }
            }
        },
    ),
    bug(
        "residual-of-another-row",
        "the last sequence's first row gets the row before it in the pass",
        "layer_out",
        |p| {
            if let Some(row) = p.last().map(|last| last.rows[0]) {
                p.copy(row - 1, row);
            }
        },
    ),
    bug("stale-tail-of-a-graph", "rows from the fifth on keep what the pass before left there", "ffn_down", |p| {
        let from = 4 * p.width();
        for i in from..p.out.len().min(p.old.len()) {
            p.out[i] = p.old[i];
        }
    }),
    bug("batch-tail-not-computed", "of a pass of more than 8 rows the last ones are zeros", "ffn_up", |p| {
        let from = 8 * p.width();
        if p.out.len() > from {
            p.out[from..].fill(0.0);
        }
    }),
    bug(
        "logits-of-the-row-before",
        "the last row of every later sequence gets the logits of the row before",
        "logits",
        |p| {
            let rows: Vec<usize> = p.groups.iter().skip(1).filter_map(|group| group.rows.last().copied()).collect();
            rows.into_iter().for_each(|row| p.copy(row - 1, row));
        },
    ),
    bug("gate-of-one-row", "a pass of single tokens takes the gate of its first row for all", "ffn_gate", |p| {
        if p.groups.iter().all(|group| group.rows.len() == 1) {
            (1..p.groups.len()).for_each(|row| p.copy(0, row));
        }
    }),
    bug(
        "token-of-the-row-before",
        "the first token of the last sequence is the last one of the sequence before",
        "embed",
        |p| {
            if let Some(row) = p.last().map(|last| last.rows[0]) {
                p.copy(row - 1, row);
            }
        },
    ),
    bug(
        "weights-split-over-the-batch",
        "beside other sequences, weights of all rows but the first are divided by two",
        "attn_weights",
        |p| {
            if p.groups.len() > 1 {
                let (heads, tokens, slots) = (p.shape[0], p.shape[1], p.shape[2]);
                for row in 1..tokens {
                    for head in 0..heads {
                        p.out[(head * tokens + row) * slots..][..slots].iter_mut().for_each(|w| *w *= 0.5);
                    }
                }
            }
        },
    ),
    bug("context-of-another-head-dim", "heads of later sequences lie half a head further on", "attn_context", |p| {
        let (half, width) = (p.head_dim / 2, p.width());
        for row in p.groups.iter().skip(1).flat_map(|group| group.rows.clone()) {
            p.out[row * width..(row + 1) * width].rotate_right(half);
        }
    }),
    bug(
        "decoded-key-in-the-first-slot",
        "a decoded key is also written over the first key of its sequence",
        "k_cache",
        |p| {
            let own: Vec<(usize, usize)> = p
                .groups
                .iter()
                .filter(|group| group.rows.len() == 1 && group.slots.len() > 1)
                .map(|group| (group.slots[group.slots.len() - 1], group.slots[0]))
                .collect();
            own.into_iter().for_each(|(from, to)| p.copy(from, to));
        },
    ),
];

/// A bug in an engine that runs these passes.
pub struct FaultyServing {
    fault: &'static ServingFault,
    layer: u16,
    passes: VecDeque<Fed>,
    sequences: Sequences,
    groups: Vec<Group>,
    slots: (usize, usize),
    number: usize,
    old: Vec<f32>,
    rope_base: f64,
    head_dim: usize,
}

impl FaultyServing {
    /// In `layer` of a model with these rotations and heads.
    pub fn new(fault: &'static ServingFault, layer: u16, passes: Vec<Fed>, rope_base: f64, head_dim: usize) -> Self {
        let (sequences, groups, slots, old) = Default::default();
        Self { fault, layer, passes: passes.into(), sequences, groups, slots, number: 0, old, rope_base, head_dim }
    }

    /// Goes on to the next pass.
    ///
    /// # Panics
    /// If a run has other passes than were named.
    fn begin(&mut self) {
        let Fed { backs, prefixes, rows, .. } = self.passes.pop_front().expect("a pass that was named");
        for (sequence, to) in backs {
            self.sequences.take_back(sequence, to).expect("tokens that are there");
        }
        for (from, to, tokens) in prefixes {
            self.sequences.share(from, to, tokens).expect("a prefix that is there");
        }
        let before = self.sequences.slots();
        let (after, groups) = self.sequences.after(&rows).expect("rows that follow");
        self.sequences = after;
        self.slots = (before, self.sequences.slots());
        self.groups = groups;
        self.number += 1;
    }
}

impl Intervene for FaultyServing {
    fn change(&mut self, site: Site<'_>) {
        if site.node.id.name == "embed" {
            self.begin();
        }
        if site.node.id.name != self.fault.stage || site.node.id.layer.is_some_and(|layer| layer != self.layer) {
            return;
        }
        let mut pass = Pass {
            number: self.number,
            groups: &self.groups,
            slots: self.slots,
            inputs: site.inputs,
            shape: &site.output.shape.clone(),
            out: &mut site.output.data,
            old: &self.old,
            rope_base: self.rope_base,
            head_dim: self.head_dim,
        };
        (self.fault.spoil)(&mut pass);
        self.old.clone_from(&site.output.data);
    }
}
