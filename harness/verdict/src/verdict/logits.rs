//! The logits of both sides, position by position: what each would say next.

use super::global::common;
use super::operands::rows_of;
use crate::capture::{Capture, Filter};
use crate::metrics::{distance, divergence, largest_difference, log_sum_exp};
use crate::number::Real;
use qdiff_engine::model::Node;
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Choices kept of each side.
const TOP: usize = 5;

/// A token with its logit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    /// Token id.
    pub token: u32,
    /// Its logit.
    #[serde(with = "Real")]
    pub logit: f32,
    /// Its probability at temperature 1.
    #[serde(with = "Real")]
    pub probability: f32,
}

/// The logits after one token, on both sides.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LogitsRow {
    /// 0 for the prefill.
    pub step: usize,
    /// Position of the token they follow.
    pub position: usize,
    /// Kullback-Leibler divergence of the subject from the reference, in nats: Σ p_ref · (ln p_ref − ln p_sub).
    #[serde(with = "Real")]
    pub kl: f32,
    /// Largest difference between the two sides' logits.
    #[serde(with = "Real")]
    pub error: f32,
    /// Relative L2 distance of the subject's logits from the reference's.
    #[serde(default, with = "Real")]
    pub distance: f64,
    /// The subject's likeliest tokens, the likeliest first.
    pub subject: Vec<Choice>,
    /// The reference's.
    pub reference: Vec<Choice>,
}

/// Compares the logits `node` of both captures; empty where they were not captured in one shape.
pub(super) fn compare(node: &Node, subject: &Capture, reference: &Capture, filter: &Filter) -> Vec<LogitsRow> {
    let mut rows = Vec::new();
    for (s, r) in subject.steps.iter().zip(&reference.steps) {
        for (of_s, of_r) in common(node, s, r) {
            rows.extend(of_s.zip(of_r).map(|(i, j)| ((s, i), (r, j))));
        }
    }
    // A vocabulary is long: one row at a time is read.
    rows.into_par_iter()
        .filter_map(|((s, i), (r, j))| {
            let position = s.first + s.offset(i);
            let a = rows_of(node, s.stages.get(&node.id)?, &(i..i + 1))?;
            let b = rows_of(node, r.stages.get(&node.id)?, &(j..j + 1))?;
            let same = a.data.len() == b.data.len() && !a.data.is_empty();
            let given = s.has_row(node.id, position) && r.has_row(node.id, position);
            (given && same && filter.position(position)).then(|| {
                let (a, b) = (&a.data, &b.data);
                let (of_a, of_b) = (log_sum_exp(a), log_sum_exp(b));
                LogitsRow {
                    step: s.index,
                    position,
                    kl: divergence((b, of_b), (a, of_a)) as f32,
                    error: largest_difference(a, b) as f32,
                    distance: distance(a, b),
                    subject: top(a, of_a),
                    reference: top(b, of_b),
                }
            })
        })
        .collect()
}

/// The largest logits, whose [`log_sum_exp`] is `z`; among equals the lowest id first, NaN never.
fn top(x: &[f32], z: f64) -> Vec<Choice> {
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(TOP + 1);
    for (i, &v) in x.iter().enumerate() {
        if v.is_nan() || (best.len() == TOP && v <= best[TOP - 1].1) {
            continue;
        }
        let at = best.partition_point(|(_, b)| *b >= v);
        best.insert(at, (i, v));
        best.truncate(TOP);
    }
    best.into_iter()
        .map(|(i, logit)| Choice { token: i as u32, logit, probability: (f64::from(logit) - z).exp() as f32 })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_keep_the_lowest_id_first() {
        let found = top(&[1.0, 3.0, f32::NAN, 3.0, 2.0, 0.5, -1.0, 2.5], 0.0);
        let ids: Vec<u32> = found.iter().map(|c| c.token).collect();
        assert_eq!(ids, [1, 3, 7, 4, 0]);
    }
}
