//! The global error: what a difference did to the result. Shown; decides
//! nothing where local residuals exist.

use super::Place;
use super::rows::{judged_len, place, row_len};
use crate::capture::{Capture, Filter};
use qdiff_engine::model::Node;
use serde::Serialize;

/// Distance of the subject's stage from the reference's.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Global {
    /// Largest relative L2 distance of a row.
    pub error: f64,
    /// That row.
    pub at: Place,
}

/// Compares a stage of two captures; `None` where no step has it in one shape
/// on both sides.
pub fn compare(
    node: &Node,
    subject: &Capture,
    reference: &Capture,
    filter: &Filter,
) -> Option<Global> {
    let mut worst: Option<Global> = None;
    for (s, r) in subject.steps.iter().zip(&reference.steps) {
        let (Some(a), Some(b)) = (s.stages.get(&node.id), r.stages.get(&node.id)) else {
            continue;
        };
        if a.data.len() != b.data.len() {
            continue;
        }
        let n = row_len(&a.shape);
        for (row, (a, b)) in a
            .data
            .chunks_exact(n)
            .zip(b.data.chunks_exact(n))
            .enumerate()
        {
            let at = place(node, &s.stages[&node.id].shape, s, row);
            if !filter.position(at.position) {
                continue;
            }
            let n = judged_len(node, at, n);
            let (mut d2, mut b2) = (0f64, 0f64);
            for (a, b) in a.iter().zip(b).take(n) {
                d2 += (f64::from(*a) - f64::from(*b)).powi(2);
                b2 += f64::from(*b).powi(2);
            }
            let error = d2.sqrt() / if b2 > 0.0 { b2.sqrt() } else { 1.0 };
            let error = if error.is_nan() { f64::INFINITY } else { error };
            if worst.is_none_or(|w| error > w.error) {
                worst = Some(Global { error, at });
            }
        }
    }
    worst
}
