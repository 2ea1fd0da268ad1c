//! What ranks give each other, in one process: each in a thread of its own, through memory that all share.

use crate::ops::Tensor;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Where the parts of a collective meet.
pub trait Exchange: Send + Sync {
    /// Gives the other ranks what this `rank` has, waits for theirs, and gives all parts in the order of the ranks.
    ///
    /// # Panics
    /// If another rank has ended: it will give nothing any more.
    fn exchange(&self, rank: usize, own: Arc<Tensor<f32>>) -> Vec<Arc<Tensor<f32>>>;
}

/// The parts of one collective after the other.
#[derive(Debug)]
pub struct SharedMemory {
    round: Mutex<Round>,
    changed: Condvar,
}

#[derive(Debug)]
struct Round {
    parts: Vec<Option<Arc<Tensor<f32>>>>,
    /// Ranks that have what all gave.
    taken: usize,
    /// Whether a rank will give nothing any more.
    ended: bool,
}

impl SharedMemory {
    /// For so many ranks.
    pub fn new(ranks: usize) -> Self {
        let round = Round { parts: vec![None; ranks], taken: 0, ended: false };
        Self { round: Mutex::new(round), changed: Condvar::new() }
    }

    /// Tells ranks that wait that one of them has ended.
    pub fn end(&self) {
        self.round().ended = true;
        self.changed.notify_all();
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, waits: impl Fn(&Round) -> bool) -> MutexGuard<'_, Round> {
        let waits = |round: &mut Round| waits(round) && !round.ended;
        let waited = self.changed.wait_while(self.round(), waits);
        let round = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!round.ended, "another rank has ended");
        round
    }
}

impl Exchange for SharedMemory {
    fn exchange(&self, rank: usize, own: Arc<Tensor<f32>>) -> Vec<Arc<Tensor<f32>>> {
        // A rank that is ahead waits until all have taken what it gave before.
        self.wait_while(|round| round.parts[rank].is_some()).parts[rank] = Some(own);
        self.changed.notify_all();
        let mut round = self.wait_while(|round| round.parts.iter().any(Option::is_none));
        let all = round.parts.iter().flatten().cloned().collect();
        round.taken += 1;
        if round.taken == round.parts.len() {
            round.parts.fill(None);
            round.taken = 0;
            self.changed.notify_all();
        }
        all
    }
}

/// A rank among others.
#[derive(Clone)]
pub struct Peers {
    /// Which it is.
    pub rank: usize,
    /// Where it meets the others.
    pub exchange: Arc<dyn Exchange>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Whichever rank is ahead, each collective has the parts of one round.
    #[test]
    fn rounds_do_not_mix() {
        let meet = SharedMemory::new(3);
        thread::scope(|scope| {
            for rank in 0..3 {
                let meet = &meet;
                scope.spawn(move || {
                    for round in 0..200 {
                        if (round + rank) % 7 == 0 {
                            thread::yield_now();
                        }
                        let own = Tensor { shape: vec![1], data: vec![(10 * round + rank) as f32] };
                        let all = meet.exchange(rank, Arc::new(own));
                        let all: Vec<f32> = all.iter().map(|part| part.data[0]).collect();
                        assert_eq!(all, [0, 1, 2].map(|rank| (10 * round + rank) as f32));
                    }
                });
            }
        });
    }

    /// Nobody waits for a rank that is gone.
    #[test]
    fn a_rank_that_ends_leaves_nobody_waiting() {
        let meet = SharedMemory::new(2);
        let waits = thread::scope(|scope| {
            let waiting = scope.spawn(|| meet.exchange(0, Arc::new(Tensor::zeros(vec![1]))));
            meet.end();
            waiting.join()
        });
        assert!(waits.is_err());
    }
}
