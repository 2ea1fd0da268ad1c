//! Attention weights of both sides, in the layers where a fault begins.

use super::StageResult;
use crate::capture::{Capture, Step, Stored};
use crate::metrics::distance;
use crate::number::{Real, rounded};
use qdiff_engine::model::{Graph, StageId};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::RowReduction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Layers shown.
const LAYERS: usize = 4;

/// Queries and keys shown of a head, at most.
const SIDE: usize = 48;

/// Heads shown of a layer.
const HEADS: usize = 32;

/// Weights shown of a side, all heads and layers together.
const WEIGHTS: usize = 1 << 15;

/// What one head attends to, on both sides.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AttentionMap {
    /// The stage.
    pub stage: StageId,
    /// The head. The first of a layer is the worst one of the stage if it is beyond what is allowed, else the one in
    /// which the two sides differ most; the others follow by how much the two sides differ.
    pub head: usize,
    /// Whether this head is itself beyond what is allowed.
    pub flagged: bool,
    /// 0 for the prefill.
    pub step: usize,
    /// Positions of the queries shown.
    pub queries: Vec<usize>,
    /// Position of the first key shown.
    pub first_key: usize,
    /// Weights of the subject, one row per query, in three digits.
    pub subject: Vec<Vec<Real>>,
    /// Weights of the reference.
    pub reference: Vec<Vec<Real>>,
}

/// A map for each head of the first layers with an origin, where both sides' weights were captured in one shape.
pub(super) fn maps(graph: &Graph, stages: &[StageResult], subject: &Capture, reference: &Capture) -> Vec<AttentionMap> {
    let origins = stages.iter().filter(|s| s.origin);
    let mut layers: Vec<(u16, Option<u16>)> = origins.filter_map(|s| Some((s.id.layer?, s.id.rank))).collect();
    layers.dedup();
    layers.truncate(LAYERS);
    let of_layer = |(layer, rank): &(u16, Option<u16>)| {
        let node = graph.nodes.iter().find(|n| {
            (n.id.layer, n.id.rank) == (Some(*layer), *rank)
                && matches!(n.op.anatomy(), Anatomy::RowReduction(RowReduction::Exponentials(_)))
        })?;
        let stage = stages.iter().find(|s| s.id == node.id);
        heads(node.id, stage, subject, reference, layers.len())
    };
    layers.iter().filter_map(of_layer).flatten().collect()
}

/// The heads of one of `layers` layers that are shown.
fn heads(
    id: StageId, stage: Option<&StageResult>, subject: &Capture, reference: &Capture, layers: usize,
) -> Option<Vec<AttentionMap>> {
    let local = stage.and_then(|s| s.subject.as_ref());
    // The worst row, where one is beyond what is allowed.
    let bad = local.and_then(|l| l.first_bad.and(l.at).or(l.first_bad));
    let holds = |s: &&Step| match bad {
        Some(p) => s.index == p.step && (s.first..s.keys()).contains(&p.position),
        None => s.rows() > 0,
    };
    let step = subject.steps.iter().find(holds)?;
    let other = reference.steps.iter().find(holds)?;
    let positions = step.positions();
    if other.positions() != positions {
        return None;
    }
    let (a, b) = (step.stages.get(&id)?, other.stages.get(&id)?);
    let &[heads, queries, keys] = a.shape() else {
        return None;
    };
    if b.shape() != a.shape() || queries != positions.len() {
        return None;
    }
    let worst = bad.and_then(|p| p.head).filter(|h| *h < heads);
    let order = by_difference(a, b, heads, worst);
    let side = (WEIGHTS / (order.len() * layers).max(1)).isqrt().min(SIDE);
    let bad_row = bad.and_then(|p| positions.iter().position(|&q| q as usize == p.position));
    let rows = around(bad_row, queries, side);
    let last = positions.get(rows.end.checked_sub(1)?).map_or(keys, |&p| p as usize + 1);
    let end = last.clamp(side.min(keys), keys);
    let seen = end - side.min(end)..end;
    let of = |t: &Stored, head: usize| {
        let weights = t.slice(0, head..head + 1);
        let row = |q: usize| {
            let row = &weights.data[q * keys..][seen.clone()];
            row.iter().map(|&v| Real(rounded(f64::from(v)))).collect()
        };
        rows.clone().map(row).collect()
    };
    let map = |head: usize| AttentionMap {
        stage: id,
        head,
        flagged: local.is_some_and(|l| l.bad_heads.contains(&head)),
        step: step.index,
        queries: positions[rows.clone()].iter().map(|&p| p as usize).collect(),
        first_key: seen.start,
        subject: of(a, head),
        reference: of(b, head),
    };
    Some(order.iter().copied().map(map).collect())
}

/// The rows to show: around the bad one, else the last ones.
fn around(bad: Option<usize>, rows: usize, side: usize) -> Range<usize> {
    let centre = bad.map_or(rows, |row| row + side.div_ceil(2));
    let last = centre.clamp(side.min(rows), rows);
    last - side.min(last)..last
}

/// The heads shown: `worst` first, then those in which the two sides differ most, relative to the reference `b`.
fn by_difference(a: &Stored, b: &Stored, heads: usize, worst: Option<usize>) -> Vec<usize> {
    let apart = |head: usize| distance(&a.slice(0, head..head + 1).data, &b.slice(0, head..head + 1).data);
    let distances: Vec<f64> = (0..heads).map(apart).collect();
    let mut order: Vec<usize> = (0..heads).collect();
    order.sort_by(|&x, &y| (Some(y) == worst).cmp(&(Some(x) == worst)).then(distances[y].total_cmp(&distances[x])));
    order.truncate(HEADS);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bad_row_is_among_those_shown() {
        for (rows, bad) in
            [(16, None), (16, Some(3)), (512, None), (512, Some(0)), (512, Some(511)), (512, Some(200)), (1, Some(0))]
        {
            let shown = around(bad, rows, SIDE);
            assert!(shown.end <= rows, "{rows} {bad:?}: {shown:?}");
            assert_eq!(shown.len(), SIDE.min(rows), "{rows} {bad:?}: {shown:?}");
            assert!(bad.is_none_or(|b| shown.contains(&b)), "{rows} {bad:?}: {shown:?}");
        }
    }
}
