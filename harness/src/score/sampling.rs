//! Which of all possible cases are run.

use super::Plant;
use qdiff_engine::model::Graph;

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Layers that each fault is planted in: first, middle and last, or one of
    /// them in turn.
    pub all_three: bool,
    /// Pairs of faults.
    pub pairs: usize,
}

impl Sampling {
    /// Plants of first, middle and last layer, or of one of them in turn.
    pub fn choose(self, plants: &[Plant], graph: &Graph) -> Vec<Plant> {
        let last = graph.config.n_layers.saturating_sub(1) as u16;
        let layers = [0, last.div_ceil(2), last];
        let mut turn = 0;
        let mut seen: Vec<(usize, &'static str)> = Vec::new();
        let mut chosen = Vec::new();
        for plant in plants {
            let key = (plant.fault, plant.stage.name);
            if seen.contains(&key) {
                continue;
            }
            seen.push(key);
            let mut of_key: Vec<&Plant> = plants
                .iter()
                .filter(|p| (p.fault, p.stage.name) == key)
                .filter(|p| p.stage.layer.is_none_or(|l| layers.contains(&l)))
                .collect();
            of_key.dedup_by_key(|p| p.stage);
            if self.all_three {
                chosen.extend(of_key.into_iter().cloned());
            } else if !of_key.is_empty() {
                chosen.push(of_key[turn % of_key.len()].clone());
                turn += 1;
            }
        }
        chosen
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
        let mut pairs = Vec::new();
        let tries = 20 * self.pairs;
        for _ in 0..tries {
            if pairs.len() == self.pairs || plants.len() < 2 {
                break;
            }
            let (a, b) = (&plants[next(plants.len())], &plants[next(plants.len())]);
            if a.stage != b.stage && a.fault != b.fault {
                pairs.push([a.clone(), b.clone()]);
            }
        }
        pairs
    }
}
