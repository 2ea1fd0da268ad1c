//! The engine's samplers on the reference's logits, and beside them llama.cpp's with each known fault.

use super::{OtherDraw, Plan};
use crate::llama::sampler::LlamaSampler;
use crate::mutations::{CatalogueEntry, Chain, Mutation, catalogue};
use anyhow::Result;
use qdiff_engine::sampler::Sampler;

impl Plan<'_> {
    /// The chain with these faults in it.
    fn chain(&self, faults: &[&'static Mutation], tokens: usize) -> Chain {
        let mut chain = Chain { steps: self.sampling.chain(), tokens, last_of_equals: false };
        for spoil in faults.iter().filter_map(|m| m.chain) {
            spoil(&mut chain);
        }
        chain
    }

    /// The engine's samplers with these faults.
    pub(super) fn sampler(&self, faults: &[&'static Mutation], tokens: usize) -> Sampler {
        self.chain(faults, tokens).sampler()
    }
}

/// The engine's samplers on the reference's logits: they must draw its tokens.
pub(super) struct SamplerReplay {
    pub(super) sampler: Sampler,
    /// llama.cpp's, each with a fault that has drawn what the engine's drew, token after token. What is wrong with the
    /// engine's own is not in them, so that it does not pass for what they have.
    known: Vec<(&'static Mutation, LlamaSampler)>,
    /// Index of the first token that is another than the reference's.
    other: Option<usize>,
}

impl SamplerReplay {
    pub(super) fn new(plan: Plan<'_>, tokens: usize) -> Self {
        let mut sampler = plan.sampler(plan.spoiled, tokens);
        plan.prompt.iter().for_each(|t| sampler.accept(*t));
        let with = |fault: &'static Mutation| {
            let chain = plan.chain(&[fault], tokens);
            let mut sampler = LlamaSampler::new(&chain.steps, chain.tokens);
            if chain.last_of_equals {
                sampler = sampler.last_of_equals();
            }
            plan.prompt.iter().for_each(|t| sampler.accept(*t));
            (fault, sampler)
        };
        Self { sampler, known: catalogue().filter(|m| m.chain.is_some()).map(with).collect(), other: None }
    }

    /// Draws where the reference drew `theirs`.
    pub(super) fn draw(&mut self, index: usize, logits: &[f32], theirs: u32) -> Result<()> {
        let token = self.sampler.sample(logits)?;
        self.hear(index, logits, token, theirs);
        Ok(())
    }

    /// Whether it has drawn what the reference drew.
    pub(super) fn same(&self) -> bool {
        self.other.is_none()
    }

    /// What the engine drew from these logits, and the reference.
    fn hear(&mut self, index: usize, logits: &[f32], ours: u32, theirs: u32) {
        self.known.retain_mut(|(_, sampler)| sampler.sample(logits) == ours);
        if ours != theirs {
            self.other.get_or_insert(index);
        }
    }

    /// Where another token was drawn, if one was, with the faults that account for all tokens.
    pub(super) fn finish(self) -> Option<OtherDraw> {
        let causes = self.known.iter().map(|(m, _)| CatalogueEntry::from(*m)).collect();
        self.other.map(|index| OtherDraw { index, causes })
    }
}

#[cfg(test)]
mod tests {
    use super::{Plan, SamplerReplay};
    use crate::sampling::Sampling;
    use clap::{Args as _, FromArgMatches as _};
    use std::collections::BTreeSet;

    /// The result for an engine that draws `picks` from so many rows of logits, greedily or from a seed.
    fn said(line: &str, rows: &[Vec<f32>], picks: impl Fn(&[f32]) -> u32) -> Option<(usize, String)> {
        let command = Sampling::augment_args(clap::Command::new("generate").no_binary_name(true));
        let sampling = Sampling::from_arg_matches(&command.get_matches_from(line.split_whitespace())).unwrap();
        let plan = Plan { prompt: &[], ubatch: 1, most: 1, sampling: &sampling, spoiled: &[], ends: &BTreeSet::new() };
        let (mut right, mut replay) = (plan.sampler(&[], rows[0].len()), SamplerReplay::new(plan, rows[0].len()));
        for (index, row) in rows.iter().enumerate() {
            replay.hear(index, row, picks(row), right.sample(row).unwrap());
        }
        replay.finish().map(|other| (other.index, other.names()))
    }

    /// Rows of logits without equals, each with its largest elsewhere.
    fn rows(n: u32) -> Vec<Vec<f32>> {
        let row = |seed: u32| (0..64u32).map(|i| ((i * 37 + seed * 101) % 1009) as f32 / 100.0).collect();
        (0..n).map(row).collect()
    }

    fn ranked(row: &[f32]) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..row.len() as u32).collect();
        ids.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
        ids
    }

    /// Whoever takes the second best does not scan half of the ids because the best is once in the other half.
    #[test]
    fn a_fault_of_no_known_kind_has_no_known_cause() {
        let rows = rows(24);
        assert!(rows.iter().any(|row| ranked(row)[0] >= 32 && ranked(row)[1] < 32), "a row that half a scan explains");
        let second = |row: &[f32]| ranked(row)[1];
        assert_eq!(said("", &rows, second), Some((0, String::new())));
        let half = |row: &[f32]| ranked(row).into_iter().find(|id| *id < 32).unwrap();
        assert_eq!(said("", &rows, half).unwrap().1, "sampler-bound");
        assert_eq!(said("", &rows, |row| ranked(row)[0]), None);
    }

    /// Faults that could do nothing here are no explanations, though the engine draws otherwise for a reason of its own.
    #[test]
    fn what_would_draw_as_the_right_one_is_dropped() {
        let rows = rows(24);
        let last = |row: &[f32]| *ranked(row).last().unwrap();
        for line in ["", "--temp 1", "--temp 1 --top-k 0 --top-p 1 --min-p 0"] {
            assert_eq!(said(line, &rows, last).unwrap().1, "", "{line}");
        }
        // Among equals llama.cpp's chain takes the first; the one with the fault takes the last.
        let equal = vec![vec![1.0; 64]; 3];
        assert_eq!(said("", &equal, |_| 63), Some((0, "sampler-ties".to_owned())));
    }
}
