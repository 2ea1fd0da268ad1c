//! llama.cpp's own samplers, as the truth that the engine's are held against.

use super::library::{Samples, library};
use qdiff_engine::sampler::Step;

/// A chain of llama.cpp's samplers.
pub struct LlamaSampler(Box<dyn Samples>);

impl LlamaSampler {
    /// The same chain as the engine's [`Sampler`](qdiff_engine::sampler::Sampler)
    /// makes of `chain`, for a vocabulary of `tokens`.
    ///
    /// # Panics
    /// Without llama.cpp: free-running text needs its model first, which is refused.
    pub fn new(chain: &[Step], tokens: usize) -> Self {
        Self(library().expect("llama.cpp's model is loaded before its samplers are made").sampler(chain, tokens))
    }

    /// The same chain on candidates from the last id down: the largest that it takes is the last among equals. One that
    /// draws is as it was.
    #[must_use]
    pub fn last_of_equals(mut self) -> Self {
        self.0.last_of_equals();
        self
    }

    /// Remembers a token for the penalties.
    pub fn accept(&mut self, token: u32) {
        self.0.accept(token);
    }

    /// Draws a token from the logits `[V]` and remembers it. Logits beyond the
    /// vocabulary are left out, as `llama_sampler_sample` leaves them.
    ///
    /// # Panics
    /// If there are fewer logits than tokens, or the chain chooses none.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        self.0.sample(logits)
    }
}
