//! Attention weights of both sides, in the layers where a fault begins.

use super::StageResult;
use crate::capture::{Capture, Step, Stored};
use crate::number::{Real, rounded};
use qdiff_engine::model::{Graph, StageId};
use qdiff_engine::ops::Op;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::ops::Range;

/// Layers shown.
const LAYERS: usize = 4;

/// Queries and keys shown.
const SIDE: usize = 48;

/// What one head attends to, on both sides.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AttentionMap {
    /// The stage.
    #[schemars(with = "String")]
    pub stage: StageId,
    /// The head: the worst one of the stage if it is beyond what is allowed,
    /// else the one in which the two sides differ most.
    pub head: usize,
    /// Whether this head is itself beyond what is allowed.
    pub flagged: bool,
    /// 0 for the prefill.
    pub step: usize,
    /// Positions of the queries shown.
    pub queries: Vec<usize>,
    /// Position of the first key shown.
    pub first_key: usize,
    /// Weights of the subject, one row per query.
    #[serde(serialize_with = "short")]
    #[schemars(with = "Vec<Vec<Real>>")]
    pub subject: Vec<Vec<Real>>,
    /// Weights of the reference.
    #[serde(serialize_with = "short")]
    #[schemars(with = "Vec<Vec<Real>>")]
    pub reference: Vec<Vec<Real>>,
}

/// One map for each of the first layers with an origin, where both sides'
/// weights were captured in one shape.
pub(super) fn maps(graph: &Graph, stages: &[StageResult], subject: &Capture, reference: &Capture) -> Vec<AttentionMap> {
    let mut layers: Vec<u16> = Vec::new();
    for layer in stages.iter().filter(|s| s.origin).filter_map(|s| s.id.layer) {
        if !layers.contains(&layer) {
            layers.push(layer);
        }
    }
    layers
        .iter()
        .take(LAYERS)
        .filter_map(|&layer| {
            let node = graph.nodes.iter().find(|n| n.id.layer == Some(layer) && matches!(n.op, Op::AttnWeights(_)))?;
            let stage = stages.iter().find(|s| s.id == node.id);
            map(node.id, stage, subject, reference)
        })
        .collect()
}

fn map(id: StageId, stage: Option<&StageResult>, subject: &Capture, reference: &Capture) -> Option<AttentionMap> {
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
    let head = match bad.and_then(|p| p.head).filter(|h| *h < heads) {
        Some(head) => head,
        None => most_different(a, b, heads),
    };
    let bad_row = bad.and_then(|p| positions.iter().position(|&q| q as usize == p.position));
    let rows = around(bad_row, queries);
    let last = positions.get(rows.end.checked_sub(1)?).map_or(keys, |&p| p as usize + 1);
    let end = last.clamp(SIDE.min(keys), keys);
    let seen = end - SIDE.min(end)..end;
    let of = |t: &Stored| {
        let weights = t.slice(0, head..head + 1);
        let row = |q: usize| {
            let row = &weights.data[q * keys..][seen.clone()];
            row.iter().map(|&v| Real(f64::from(v))).collect()
        };
        rows.clone().map(row).collect()
    };
    Some(AttentionMap {
        stage: id,
        head,
        flagged: bad.is_some(),
        step: step.index,
        queries: positions[rows.clone()].iter().map(|&p| p as usize).collect(),
        first_key: seen.start,
        subject: of(a),
        reference: of(b),
    })
}

/// The rows to show: around the bad one, else the last ones.
fn around(bad: Option<usize>, rows: usize) -> Range<usize> {
    let centre = bad.map_or(rows, |row| row + SIDE / 2);
    let last = centre.clamp(SIDE.min(rows), rows);
    last - SIDE.min(last)..last
}

/// The head in which the two sides differ most.
fn most_different(a: &Stored, b: &Stored, heads: usize) -> usize {
    let distance = |head: usize| -> f64 {
        let (a, b) = (a.slice(0, head..head + 1), b.slice(0, head..head + 1));
        let pairs = a.data.iter().zip(&b.data);
        pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
    };
    (0..heads).map(distance).enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(head, _)| head)
}

fn short<S: Serializer>(rows: &[Vec<Real>], serializer: S) -> Result<S::Ok, S::Error> {
    let rows = rows.iter().map(|row| {
        let row: Vec<Real> = row.iter().map(|v| Real(rounded(v.0))).collect();
        row
    });
    serializer.collect_seq(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bad_row_is_among_those_shown() {
        for (rows, bad) in
            [(16, None), (16, Some(3)), (512, None), (512, Some(0)), (512, Some(511)), (512, Some(200)), (1, Some(0))]
        {
            let shown = around(bad, rows);
            assert!(shown.end <= rows, "{rows} {bad:?}: {shown:?}");
            assert_eq!(shown.len(), SIDE.min(rows), "{rows} {bad:?}: {shown:?}");
            assert!(bad.is_none_or(|b| shown.contains(&b)), "{rows} {bad:?}: {shown:?}");
        }
    }
}
