//! What the search may take. Work is counted and not timed, so that a search ends at the same place on every machine, with
//! any number of threads, and beside any other programs.
//!
//! The unit is a multiply-add; what else is computed counts as so many of them as it takes time. Whoever computes something
//! counts it. The rest is compared only where the sum is the same in every run: never while others count.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// What the search takes at most, unless told otherwise: about 20 seconds of a core.
pub(super) const USUAL: u64 = 20_000_000_000;

/// The work that one origin may take.
#[derive(Debug)]
pub(super) struct Meter {
    limit: u64,
    done: AtomicU64,
    tried: AtomicUsize,
    short: AtomicBool,
}

impl Meter {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, done: AtomicU64::new(0), tried: AtomicUsize::new(0), short: AtomicBool::new(false) }
    }

    /// Counts so much work.
    pub(super) fn count(&self, work: u64) {
        self.done.fetch_add(work, Ordering::Relaxed);
    }

    /// Counts so many hypotheses that are evaluated.
    pub(super) fn count_tried(&self, hypotheses: usize) {
        self.tried.fetch_add(hypotheses, Ordering::Relaxed);
    }

    /// Hypotheses evaluated so far.
    pub(super) fn tried(&self) -> usize {
        self.tried.load(Ordering::Relaxed)
    }

    /// The work done so far.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// The work that is left.
    pub(super) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.done())
    }

    /// Whether the work is used up; then all later searches are left out.
    pub(super) fn over(&self) -> bool {
        let over = self.done() >= self.limit;
        if over {
            self.short.store(true, Ordering::Relaxed);
        }
        over
    }

    /// The first of these that enough work is left for, each of which takes `work`; and counts it.
    pub(super) fn affordable<'t, T>(&self, all: &'t [T], work: impl Fn(&T) -> u64) -> &'t [T] {
        let mut some = 0;
        while some < all.len() && !self.over() {
            self.count(work(&all[some]));
            some += 1;
        }
        &all[..some]
    }

    /// Whether half of the work is used up: what costs much leaves the rest to what follows.
    pub(super) fn half(&self) -> bool {
        let half = self.done() >= self.limit / 2;
        if half {
            self.short.store(true, Ordering::Relaxed);
        }
        half
    }

    /// Whether something was left out.
    pub(super) fn was_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }
}
