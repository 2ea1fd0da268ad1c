//! The global error: what a difference did to the result. Informational where local residuals exist.

use super::Place;
use super::operands::rows_of;
use super::rows::rows;
use crate::capture::{Capture, Filter, Step};
use crate::metrics::distance;
use crate::number::Real;
use qdiff_engine::model::Node;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Rows that are compared at once, to bound memory.
const ROWS_AT_ONCE: usize = 512;

/// Distance of the subject's stage from the reference's.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Global {
    /// Largest relative L2 distance of a row.
    #[serde(with = "Real")]
    pub error: f64,
    /// That row.
    pub at: Place,
    /// Whether all rows that were compared are the reference's bit by bit.
    #[serde(default)]
    pub identical: bool,
}

/// Compares a stage of two captures; `None` where no step has it in one shape on both sides.
pub fn compare(node: &Node, subject: &Capture, reference: &Capture, filter: &Filter) -> Option<Global> {
    let (mut worst, mut identical): (Option<Global>, _) = (None, true);
    for (s, r) in subject.steps.iter().zip(&reference.steps) {
        let (Some(a), Some(b)) = (s.stages.get(&node.id), r.stages.get(&node.id)) else {
            continue;
        };
        for (of_a, of_b) in common(node, s, r) {
            let (Some(a), Some(b)) = (rows_of(node, a, &of_a), rows_of(node, b, &of_b)) else {
                continue;
            };
            if a.data.len() != b.data.len() {
                continue;
            }
            for (at, range) in rows(node, &a.shape, s, s.positions()[of_a].to_vec()) {
                let given = s.has_row(node.id, at.position) && r.has_row(node.id, at.position);
                if given && filter.position(at.position) {
                    let (a, b) = (&a.data[range.clone()], &b.data[range]);
                    let error = distance(a, b);
                    identical &= same_bits(a, b);
                    if worst.is_none_or(|w| error > w.error) {
                        worst = Some(Global { error, at, identical });
                    }
                }
            }
        }
    }
    worst.map(|worst| Global { identical, ..worst })
}

/// Whether two rows are the same bit by bit.
pub(super) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    bytemuck::cast_slice::<f32, u32>(a) == bytemuck::cast_slice::<f32, u32>(b)
}

/// Ranges of rows that both steps kept, and that lie side by side in both.
pub(super) fn common(node: &Node, a: &Step, b: &Step) -> Vec<(Range<usize>, Range<usize>)> {
    if node.token_axis().is_none() {
        return vec![(0..0, 0..0)];
    }
    let mut parts: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    let mut j = 0;
    for i in 0..a.rows() {
        while j < b.rows() && b.offset(j) < a.offset(i) {
            j += 1;
        }
        if j == b.rows() || b.offset(j) != a.offset(i) {
            continue;
        }
        match parts.last_mut() {
            Some((of_a, of_b)) if of_a.end == i && of_b.end == j && of_a.len() < ROWS_AT_ONCE => {
                of_a.end = i + 1;
                of_b.end = j + 1;
            }
            _ => parts.push((i..i + 1, j..j + 1)),
        }
    }
    parts
}
