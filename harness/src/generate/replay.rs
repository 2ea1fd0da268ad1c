//! The engine's samplers on the reference's logits, with and without known faults.

use super::{OtherDraw, Plan};
use crate::mutations::{CatalogueEntry, Chain, Mutation, catalogue};
use anyhow::Result;
use qdiff_engine::sampler::Sampler;

impl Plan<'_> {
    /// The engine's samplers with these faults.
    pub(super) fn sampler(&self, faults: &[&'static Mutation], tokens: usize) -> Sampler {
        let mut chain = Chain { steps: self.sampling.chain(), tokens, last_of_equals: false };
        for spoil in faults.iter().filter_map(|m| m.chain) {
            spoil(&mut chain);
        }
        chain.sampler()
    }
}

/// The engine's samplers on the reference's logits: they must draw its tokens.
/// Beside them those with a known fault, to tell which one explains another.
pub(super) struct SamplerReplay {
    pub(super) sampler: Sampler,
    known: Vec<(&'static Mutation, Sampler)>,
}

impl SamplerReplay {
    pub(super) fn new(plan: Plan<'_>, tokens: usize) -> Self {
        let ready = |faults: &[&'static Mutation]| {
            let mut sampler = plan.sampler(faults, tokens);
            plan.prompt.iter().for_each(|t| sampler.accept(*t));
            sampler
        };
        let known = catalogue().filter(|m| m.chain.is_some());
        Self { sampler: ready(plan.spoiled), known: known.map(|m| (m, ready(&[m]))).collect() }
    }

    /// What it draws where the reference drew `theirs`, if that is another token.
    pub(super) fn draw(&mut self, index: usize, logits: &[f32], theirs: u32) -> Result<Option<OtherDraw>> {
        let token = self.sampler.sample(logits)?;
        self.known.retain_mut(|(_, sampler)| sampler.sample(logits).is_ok_and(|t| t == token));
        Ok((token != theirs)
            .then(|| OtherDraw { index, causes: self.known.iter().map(|(m, _)| CatalogueEntry::from(*m)).collect() }))
    }
}
