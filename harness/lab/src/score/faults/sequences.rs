//! A fault of a mask that sequences share: it compares positions alone, and forgets whose a slot of the cache is.

use qdiff::capture::Fed;
use qdiff_engine::cpu::{Group, Sequences};
use qdiff_engine::ops::Op;
use qdiff_engine::tap::{Intervene, Site};
use std::collections::VecDeque;

/// In one layer the queries of one sequence see the slots of every sequence, as far as their positions are not later.
pub struct SeenByAll {
    layer: u16,
    sequence: u32,
    /// Passes that are still to come.
    passes: VecDeque<Fed>,
    sequences: Sequences,
    /// The position that each slot holds, and whose it is first.
    slots: Vec<(u32, u32)>,
    /// Rows and slots of the sequence in the pass that runs.
    group: Option<Group>,
}

impl SeenByAll {
    /// In `layer`, for the queries of `sequence`, in a run of these passes.
    pub fn new(layer: u16, sequence: u32, passes: Vec<Fed>) -> Self {
        let (sequences, slots) = Default::default();
        Self { layer, sequence, passes: passes.into(), sequences, slots, group: None }
    }

    /// Goes on to the next pass.
    ///
    /// # Panics
    /// If a run has other passes than were named.
    fn begin(&mut self) {
        let Fed { backs, prefixes, rows, shifts } = self.passes.pop_front().expect("a pass that was named");
        for (sequence, to) in backs {
            self.sequences.take_back(sequence, to).expect("tokens that are there");
        }
        for (sequence, shift) in shifts {
            self.sequences.shift(sequence, shift.from, shift.tokens).expect("tokens that are there");
        }
        for (from, to, tokens) in prefixes {
            self.sequences.share(from, to, tokens).expect("a prefix that is there");
        }
        let (after, groups) = self.sequences.after(&rows).expect("rows that follow");
        self.sequences = after;
        self.slots.resize(self.sequences.slots(), (0, 0));
        for group in &groups {
            for &position in &group.positions {
                self.slots[group.slots[position as usize]] = (position, group.sequence);
            }
        }
        self.group = groups.into_iter().find(|group| group.sequence == self.sequence);
    }

    /// The slots that a query of this position sees, its own sequence's and the others'.
    fn seen(&self, group: &Group, position: u32) -> Vec<usize> {
        let later = |slot: &usize| self.slots[*slot].0 <= position;
        let other = |slot: &usize| self.slots[*slot].1 != self.sequence && !group.slots.contains(slot);
        let own = group.slots.iter().copied().filter(later);
        own.chain((0..self.slots.len()).filter(other).filter(later)).collect()
    }
}

impl Intervene for SeenByAll {
    fn change(&mut self, site: Site<'_>) {
        if site.node.id.layer != Some(self.layer) {
            return;
        }
        if let Op::AttnScores(_) = site.node.op {
            self.begin();
        }
        let Some(group) = &self.group else { return };
        let (inputs, out) = (site.inputs, &mut *site.output);
        match &site.node.op {
            Op::AttnScores(of) => {
                let (tokens, slots) = (out.shape[1], out.shape[2]);
                let (d, h, g) = (of.head_dim, of.n_heads, of.n_kv_heads);
                for (&row, &position) in group.rows.iter().zip(&group.positions) {
                    for slot in self.seen(group, position) {
                        for head in 0..h {
                            let q = &inputs[0].data[(row * h + head) * d..][..d];
                            let k = &inputs[1].data[(slot * g + head / (h / g)) * d..][..d];
                            out.data[(head * tokens + row) * slots + slot] = q.iter().zip(k).map(|(q, k)| q * k).sum();
                        }
                    }
                }
            }
            Op::AttnWeights(of) => {
                let (heads, tokens, slots) = (out.shape[0], out.shape[1], out.shape[2]);
                for (&row, &position) in group.rows.iter().zip(&group.positions) {
                    let seen = self.seen(group, position);
                    for head in 0..heads {
                        let at = (head * tokens + row) * slots;
                        let scores: Vec<f32> =
                            seen.iter().map(|slot| inputs[0].data[at + slot] * of.scale as f32).collect();
                        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        let sum: f32 = scores.iter().map(|s| (s - top).exp()).sum();
                        for (slot, score) in seen.iter().zip(scores) {
                            out.data[at + slot] = (score - top).exp() / sum;
                        }
                    }
                }
            }
            Op::AttnContext(of) => {
                let (tokens, slots) = (inputs[0].shape[1], inputs[0].shape[2]);
                let (d, h, g) = (of.head_dim, of.n_heads, of.n_kv_heads);
                for (&row, &position) in group.rows.iter().zip(&group.positions) {
                    let seen = self.seen(group, position);
                    for head in 0..h {
                        let weights = &inputs[0].data[(head * tokens + row) * slots..][..slots];
                        for i in 0..d {
                            let value =
                                |slot: &usize| weights[*slot] * inputs[1].data[(slot * g + head / (h / g)) * d + i];
                            out.data[(row * h + head) * d + i] = seen.iter().map(value).sum();
                        }
                    }
                }
            }
            _ => {}
        }
    }
}
