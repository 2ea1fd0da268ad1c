//! The tokens that may be drawn, and the filters that narrow them.
//!
//! Arithmetic and order are those of llama-sampler.cpp: f32 throughout, sums
//! from the front, and the same unstable sorts.

use crate::sort::{partial_sort, sort};
use std::collections::HashMap;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// Its logit, as far as the chain has changed it.
    pub logit: f32,
    /// Its probability, where a filter has computed one.
    pub p: f32,
}

fn before(a: &Candidate, b: &Candidate) -> bool {
    a.logit > b.logit
}

/// The candidates left.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// In the order in which the chain leaves them.
    pub list: Vec<Candidate>,
    /// Whether that is by descending logit.
    pub sorted: bool,
}

/// Up to this many, a heap is used; beyond, buckets.
const HEAP_LIMIT: usize = 128;
/// Number of buckets, which divide the logits from −10 to 10 evenly; logits beyond fall into the outermost.
const BUCKETS: usize = 128;

impl Candidates {
    /// All tokens, by id.
    pub fn new(logits: &[f32]) -> Self {
        let list = (0u32..).zip(logits).map(|(id, &logit)| Candidate { id, logit, p: 0.0 });
        Self { list: list.collect(), sorted: false }
    }

    /// Keeps the `n` of largest logit, sorted.
    fn keep_best(&mut self, n: usize) {
        if n <= HEAP_LIMIT {
            partial_sort(&mut self.list, n, before);
        } else {
            self.list = best(&self.list, n);
        }
        self.list.truncate(n);
        self.sorted = true;
    }

    /// The largest logit.
    pub(super) fn max(&self) -> f32 {
        let first = self.list[0].logit;
        if self.sorted {
            return first;
        }
        self.list.iter().fold(first, |m, c| m.max(c.logit))
    }

    fn softmax(&mut self) {
        let max = self.max();
        let mut sum = 0f32;
        for c in &mut self.list {
            c.p = (c.logit - max).exp();
            sum += c.p;
        }
        for c in &mut self.list {
            c.p /= sum;
        }
    }

    /// Lowers the logits of the `recent` tokens: see [`super::Step::Penalties`].
    pub(super) fn penalise(&mut self, recent: &[u32], repeat: f32, frequency: f32, presence: f32) {
        if (repeat, frequency, presence) == (1.0, 0.0, 0.0) {
            return;
        }
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for token in recent {
            *counts.entry(*token).or_default() += 1;
        }
        for c in &mut self.list {
            let Some(&count) = counts.get(&c.id) else {
                continue;
            };
            if c.logit <= 0.0 {
                c.logit *= repeat;
            } else {
                c.logit /= repeat;
            }
            c.logit -= count as f32 * frequency + presence;
        }
        self.sorted = false;
    }

    /// Keeps the `k` of largest logit.
    pub(super) fn top_k(&mut self, k: usize) {
        let k = k.min(self.list.len());
        if !self.sorted {
            self.keep_best(k);
        }
        self.list.truncate(k);
    }

    /// Keeps the fewest, from the most probable on, whose probabilities sum up to `p`.
    pub(super) fn top_p(&mut self, p: f32) {
        /// Above this many, only the best are sorted at first.
        const MANY: usize = 1024;
        const AT_FIRST: usize = 256;
        self.softmax();
        let all = self.list.len();
        let mut known = all;
        let mut order = None;
        if !self.sorted && all > MANY {
            known = AT_FIRST;
            order = Some(best(&self.list, known));
        } else if !self.sorted {
            self.keep_best(all);
        }
        let mut sum = 0f32;
        let mut keep = all;
        for i in 0..all {
            sum += order.as_ref().unwrap_or(&self.list)[i].p;
            if sum >= p {
                keep = i + 1;
                break;
            }
            if order.is_some() && i + 1 == known && known < all {
                known = all;
                order = Some(best(&self.list, all));
            }
        }
        if let Some(order) = order {
            self.list = order;
            self.sorted = true;
        }
        self.list.truncate(keep);
    }

    /// Keeps those at least `p` times as probable as the most probable.
    pub(super) fn min_p(&mut self, p: f32) {
        let floor =
            if self.sorted { self.list[0].logit } else { self.list.iter().fold(-f32::MAX, |m, c| m.max(c.logit)) }
                + p.ln();
        if self.sorted {
            let fails = self.list.iter().skip(1).position(|c| c.logit < floor);
            self.list.truncate(fails.map_or(self.list.len(), |i| i + 1));
            return;
        }
        if self.list.iter().any(|c| c.logit >= floor) {
            self.list.retain(|c| c.logit >= floor);
            return;
        }
        // Only where p > 1, or no logit is finite.
        self.keep_best(self.list.len());
        self.min_p(p);
    }

    /// Divides the logits; from zero down, leaves only the largest.
    pub(super) fn temperature(&mut self, t: f32) {
        if t > 0.0 {
            for c in &mut self.list {
                c.logit /= t;
            }
            return;
        }
        let best = self.largest(false);
        for (i, c) in self.list.iter_mut().enumerate() {
            if i != best {
                c.logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Place of the largest logit, the first among equals.
    pub(super) fn largest(&self, last_of_equals: bool) -> usize {
        let mut best = 0;
        for (i, c) in self.list.iter().enumerate() {
            let most = self.list[best].logit;
            if c.logit > most || (last_of_equals && c.logit == most) {
                best = i;
            }
        }
        best
    }
}

/// The `n` of largest logit in order, with others after them that fell into the same bucket as the last.
fn best(list: &[Candidate], n: usize) -> Vec<Candidate> {
    let buckets: Vec<usize> = list.iter().map(|c| bucket(c.logit)).collect();
    let mut counts = [0usize; BUCKETS];
    for &b in &buckets {
        counts[b] += 1;
    }
    // From the top down, as many buckets as hold `n`.
    let mut have = 0;
    let mut lowest = BUCKETS;
    while lowest > 0 && (have < n || lowest == BUCKETS) {
        lowest -= 1;
        have += counts[lowest];
    }
    let mut starts = [0usize; BUCKETS];
    for b in (lowest..BUCKETS - 1).rev() {
        starts[b] = starts[b + 1] + counts[b + 1];
    }
    let mut out = vec![Candidate { id: 0, logit: 0.0, p: 0.0 }; have];
    let mut next = starts;
    for (c, &b) in list.iter().zip(&buckets) {
        if b >= lowest {
            out[next[b]] = *c;
            next[b] += 1;
        }
    }
    for b in lowest + 1..BUCKETS {
        sort(&mut out[starts[b]..][..counts[b]], before);
    }
    let last = &mut out[starts[lowest]..];
    partial_sort(last, n - starts[lowest], before);
    out
}

/// The bucket of a logit. What is too large for an integer becomes the smallest one, as on x86.
fn bucket(logit: f32) -> usize {
    let scaled = logit * (BUCKETS as f32 / 20.0) + BUCKETS as f32 / 2.0;
    if scaled.abs() >= 2f32.powi(31) {
        return 0;
    }
    (scaled as i32).clamp(0, BUCKETS as i32 - 1) as usize
}
