//! Which of all possible cases are run.

use super::Plant;
use qdiff_engine::model::Graph;
use std::collections::HashSet;

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Layers that each fault is planted in: first, middle and last, or one of them in turn.
    pub all_three: bool,
    /// Pairs of faults.
    pub pairs: usize,
    /// One of so many of all these plants is taken.
    pub every: usize,
    /// From this one on.
    pub first: usize,
}

impl Sampling {
    /// Plants of first, middle and last layer, or of one of them in turn.
    pub fn choose(self, plants: &[Plant], graph: &Graph) -> Vec<Plant> {
        let last = graph.config.n_layers.saturating_sub(1) as u16;
        let layers = [0, last.div_ceil(2), last];
        let mut turn = 0;
        let key = |p: &Plant| (p.fault, p.stage.name);
        let (mut seen, mut chosen) = (HashSet::new(), Vec::new());
        for plant in plants.iter().filter(|p| seen.insert(key(p))) {
            let here = |p: &&Plant| key(p) == key(plant) && p.stage.layer.is_none_or(|l| layers.contains(&l));
            let mut of_key: Vec<&Plant> = plants.iter().filter(here).collect();
            of_key.dedup_by_key(|p| p.stage);
            if !self.all_three && !of_key.is_empty() {
                of_key = vec![of_key[turn % of_key.len()]];
                turn += 1;
            }
            chosen.extend(of_key.into_iter().cloned());
        }
        chosen.into_iter().skip(self.first % self.every).step_by(self.every).collect()
    }

    /// Pairs of plants in different stages, drawn by a fixed rule.
    pub fn pairs(self, plants: &[Plant]) -> Vec<[Plant; 2]> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % n.max(1) as u64) as usize
        };
        let tries = if plants.len() < 2 { 0 } else { 20 * self.pairs };
        let drawn = (0..tries).map(|_| (&plants[next(plants.len())], &plants[next(plants.len())]));
        let apart = drawn.filter(|(a, b)| a.stage != b.stage && a.fault != b.fault);
        apart.take(self.pairs).map(|(a, b)| [a.clone(), b.clone()]).collect()
    }
}
