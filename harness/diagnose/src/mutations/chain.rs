//! The engine's samplers, as faults change them.

use qdiff_engine::sampler::{Sampler, Step};

/// The engine's samplers before they are at work.
#[derive(Clone, Debug)]
pub struct Chain {
    /// In this order.
    pub steps: Vec<Step>,
    /// Ids that they scan, from the first on.
    pub tokens: usize,
    /// Whether the last among equals is taken, not the first.
    pub last_of_equals: bool,
}

impl Chain {
    /// Puts them to work.
    pub fn sampler(&self) -> Sampler {
        let sampler = Sampler::new(&self.steps, self.tokens);
        match self.last_of_equals {
            true => sampler.last_of_equals(),
            false => sampler,
        }
    }
}
