//! A part of some work that several machines share: of many prompts, or of the stages of one run.

use anyhow::{Result, ensure};
use qdiff_engine::model::{Graph, StageId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Part `index` of `of`, counted from 1, as CI matrices do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Shard {
    /// Which, from 1 on.
    pub index: usize,
    /// Of how many.
    pub of: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').map(|(i, n)| (i.parse(), n.parse()));
        match parts {
            Some((Ok(index), Ok(of))) if (1..=of).contains(&index) => Ok(Self { index, of }),
            _ => Err("expected PART/PARTS, such as 1/4 to 4/4".to_owned()),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl Shard {
    /// All parts, in order.
    pub fn all(of: usize) -> impl Iterator<Item = Self> {
        (1..=of).map(move |index| Self { index, of })
    }

    /// Whether the item at this index, from 0 on, of a list that is dealt out like cards is of this part.
    pub fn has(self, index: usize) -> bool {
        index % self.of == self.index - 1
    }

    /// The stages of this part: whole layers, one after the other, so cut that the part with the most products has as few
    /// as can be. Stages before the layers go with the first layer, stages after them count as a layer.
    ///
    /// # Errors
    /// More parts than layers.
    pub fn stages(self, graph: &Graph) -> Result<HashSet<StageId>> {
        let layers = layers(graph);
        ensure!(
            self.of <= layers.len(),
            "the model has at most {} parts: its layers, and one for the stages after them; {} were requested",
            layers.len(),
            self.of
        );
        let costs: Vec<u64> = layers.iter().map(|layer| layer.clone().map(|i| products(graph, i)).sum()).collect();
        let own = &layers[cut(&costs, self.of)[self.index - 1].clone()];
        Ok(own.iter().flat_map(|layer| &graph.nodes[layer.clone()]).map(|node| node.id).collect())
    }
}

/// The nodes of each layer.
fn layers(graph: &Graph) -> Vec<Range<usize>> {
    let mut begins: Vec<usize> = (1..graph.nodes.len())
        .filter(|&i| graph.nodes[i].id.layer != graph.nodes[i - 1].id.layer && graph.nodes[i - 1].id.layer.is_some())
        .collect();
    begins.insert(0, 0);
    let ends = begins.iter().skip(1).copied().chain([graph.nodes.len()]);
    begins.iter().zip(ends).map(|(&begin, end)| begin..end).collect()
}

/// Products for a token of a node, as far as they grow with the model.
fn products(graph: &Graph, index: usize) -> u64 {
    let width = |i: usize| Graph::extent(&graph.nodes[i], 1, 1).iter().product::<usize>() as u64;
    let node = &graph.nodes[index];
    if node.op.anatomy().is_layer() { width(index) * width(node.inputs[0]) } else { width(index) }
}

/// `costs` in `of` runs, none of them empty, of which the dearest is as cheap as can be.
fn cut(costs: &[u64], of: usize) -> Vec<Range<usize>> {
    let sum = |range: Range<usize>| costs[range].iter().sum::<u64>();
    // The dearest of `parts` runs of the first `n`, and where the last of them begins.
    let mut best: Vec<(u64, usize)> = (0..=costs.len()).map(|n| (sum(0..n), 0)).collect();
    let mut begins = Vec::new();
    for parts in 2..=of {
        let next = |n: usize| {
            let cuts = (parts - 1..n).map(|at| (best[at].0.max(sum(at..n)), at));
            cuts.min().unwrap_or((u64::MAX, 0))
        };
        best = (0..=costs.len()).map(next).collect();
        begins.push(best.iter().map(|(_, at)| *at).collect::<Vec<_>>());
    }
    let (mut ends, mut end) = (vec![costs.len()], costs.len());
    for begins in begins.iter().rev() {
        end = begins[end];
        ends.push(end);
    }
    ends.push(0);
    ends.reverse();
    ends.windows(2).map(|w| w[0]..w[1]).collect()
}

#[cfg(test)]
mod tests {
    use super::{Shard, cut};
    use proptest::prelude::*;

    #[test]
    fn every_item_is_in_one_part() {
        let parts: Vec<Shard> = (1..=3).map(|i| format!("{i}/3").parse().unwrap()).collect();
        for index in 0..20 {
            assert_eq!(parts.iter().filter(|s| s.has(index)).count(), 1);
        }
        for bad in ["0/3", "4/3", "1", "1/0", "a/b", "-1/2", ""] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
    }

    proptest! {
        /// Runs that follow each other, none empty; and no other cut has a cheaper dearest one.
        #[test]
        fn a_cut_is_fair(costs in prop::collection::vec(0u64..50, 1..9), of in 1usize..9) {
            prop_assume!(of <= costs.len());
            let cut = cut(&costs, of);
            prop_assert_eq!(cut.len(), of);
            prop_assert!(cut.iter().all(|r| !r.is_empty()));
            prop_assert!(cut.windows(2).all(|w| w[0].end == w[1].start));
            prop_assert_eq!((cut[0].start, cut[of - 1].end), (0, costs.len()));
            let dearest = cut.iter().map(|r| costs[r.clone()].iter().sum::<u64>()).max().unwrap();
            // Every way to choose where runs begin.
            let least = (0u32..1 << (costs.len() - 1)).filter(|begins| begins.count_ones() as usize == of - 1).map(|begins| {
                let (mut most, mut run) = (0, 0);
                for (i, cost) in costs.iter().enumerate() {
                    run = if i > 0 && begins >> (i - 1) & 1 == 1 { *cost } else { run + cost };
                    most = most.max(run);
                }
                most
            });
            prop_assert_eq!(dearest, least.min().unwrap());
        }
    }
}
