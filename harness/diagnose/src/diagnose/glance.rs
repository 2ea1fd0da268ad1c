//! A few outputs of a large layer: what does not explain these does not explain the layer.

use super::searcher::heavy;
use crate::capture::{Capture, Filter, Step};
use crate::verdict::{Evidence, Side, outputs, right, settle_all};
use qdiff_engine::model::Node;
use std::ops::Range;

/// Outputs that are looked at.
const OUTPUTS: usize = 64;

/// Some outputs of some rows.
pub(super) struct Glance {
    outputs: Range<usize>,
    /// How many there are.
    all: usize,
    capture: Capture,
}

impl Glance {
    /// Where most of a large layer is wrong; `None` of one that is soon evaluated whole.
    pub(super) fn of(e: &Evidence<'_>) -> Option<Self> {
        // A tolerance of the user's own allows other distances.
        if !heavy(e) || e.rule.is_some() || !e.misshapen.is_empty() {
            return None;
        }
        let mut wrong = vec![0usize; e.node.weights[0].extent.get(1)?.div_ceil(OUTPUTS)];
        e.wrong().iter().filter(|w| w.got.is_finite()).for_each(|w| wrong[w.index / OUTPUTS] += 1);
        let most = (0..wrong.len()).max_by_key(|&i| (wrong[i], std::cmp::Reverse(i))).filter(|&i| wrong[i] > 0)?;
        let first = most * OUTPUTS;
        let outputs = first..(first + OUTPUTS).min(e.node.weights[0].extent[1]);
        let all = e.side.capture;
        let mut capture = all.sibling();
        for step in &all.steps {
            let mut less = Step { kept: step.kept.clone(), last_row: step.last_row.clone(), ..step.bare() };
            for (id, stored) in &step.stages {
                let own = *id == e.node.id;
                let part = if own { stored.slice(1, outputs.clone()) } else { stored.get().into_owned() };
                less.stages.insert(*id, all.store.keep(part));
            }
            capture.steps.push(less);
        }
        Some(Self { outputs, all: e.node.weights[0].extent[1], capture })
    }

    /// The part of the work of all outputs that these take.
    pub(super) fn share(&self, work: u64) -> u64 {
        work / self.all.div_ceil(self.outputs.len()).max(1) as u64
    }

    /// Whether the layer as `node` says would give every wrong element of these outputs, as far as that is a number.
    pub(super) fn survives(&self, e: &Evidence<'_>, node: &Node, filter: &Filter) -> bool {
        // An op defined outside the engine may read the weight in any way.
        if node.faults.compute.is_some() {
            return true;
        }
        let side = Side { capture: &self.capture, ..e.side };
        let mut assumed = outputs(node, e.oracle, side, filter, self.outputs.clone());
        settle_all(e.node, &e.oracle.graph, side, &mut assumed);
        e.bad_rows().all(|row| {
            let (got, want, bound) = e.row(row);
            let (width, outputs) = (got.len(), self.outputs.clone());
            let Some((other, reach)) = &assumed[row.step] else { return true };
            let from = row.range.start / width * outputs.len();
            outputs.enumerate().all(|(i, o)| {
                let (other, reach) = (other.data[from + i], reach[from + i]);
                !got[o].is_finite()
                    || right(got[o], want[o], bound[o])
                    || !other.is_finite()
                    || right(got[o], other, reach)
            })
        })
    }
}
