//! Penalties for tokens that occurred among the last ones.

use super::candidates::Candidates;
use std::collections::{HashMap, VecDeque};

pub(super) struct Penalties {
    last: usize,
    repeat: f32,
    frequency: f32,
    presence: f32,
    recent: VecDeque<u32>,
    counts: HashMap<u32, usize>,
}

impl Penalties {
    pub(super) fn new(last: usize, repeat: f32, frequency: f32, presence: f32) -> Self {
        Self { last, repeat, frequency, presence, recent: VecDeque::new(), counts: HashMap::new() }
    }

    fn off(&self) -> bool {
        self.last == 0 || (self.repeat == 1.0 && self.frequency == 0.0 && self.presence == 0.0)
    }

    pub(super) fn accept(&mut self, token: u32) {
        if self.off() {
            return;
        }
        *self.counts.entry(token).or_default() += 1;
        self.recent.push_back(token);
        if self.recent.len() > self.last
            && let Some(old) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
    }

    pub(super) fn apply(&self, left: &mut Candidates) {
        if self.off() {
            return;
        }
        for c in &mut left.list {
            let Some(&count) = self.counts.get(&c.id) else {
                continue;
            };
            if c.logit <= 0.0 {
                c.logit *= self.repeat;
            } else {
                c.logit /= self.repeat;
            }
            c.logit -= count as f32 * self.frequency + self.presence;
        }
        left.sorted = false;
    }
}
