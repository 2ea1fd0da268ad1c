//! The logits of both sides, position by position: what each would say next.

use super::global::common;
use super::operands::rows_of;
use crate::capture::{Capture, Filter};
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
    #[schemars(with = "Real")]
    pub logit: f32,
    /// Its probability at temperature 1.
    #[serde(with = "Real")]
    #[schemars(with = "Real")]
    pub probability: f32,
}

/// The logits after one token, on both sides.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LogitsRow {
    /// 0 for the prefill.
    pub step: usize,
    /// Position of the token they follow.
    pub position: usize,
    /// Kullback-Leibler divergence of the subject from the reference, in nats:
    /// Σ p_ref · (ln p_ref − ln p_sub).
    #[serde(with = "Real")]
    #[schemars(with = "Real")]
    pub kl: f32,
    /// Largest difference between the two sides' logits.
    #[serde(with = "Real")]
    #[schemars(with = "Real")]
    pub error: f32,
    /// The subject's likeliest tokens, the likeliest first.
    pub subject: Vec<Choice>,
    /// The reference's.
    pub reference: Vec<Choice>,
}

/// Compares the logits `node` of both captures; empty where they were not
/// captured in one shape.
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
            (same && filter.position(position)).then(|| LogitsRow {
                step: s.index,
                position,
                kl: divergence(&b.data, &a.data) as f32,
                error: largest_difference(&a.data, &b.data),
                subject: top(&a.data),
                reference: top(&b.data),
            })
        })
        .collect()
}

/// Natural logarithm of Σ exp(x).
fn log_sum_exp(x: &[f32]) -> f64 {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    let max = f64::from(max);
    max + x.iter().map(|v| (f64::from(*v) - max).exp()).sum::<f64>().ln()
}

/// KL(p ‖ q) of the distributions with these logits.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (zp, zq) = (log_sum_exp(p), log_sum_exp(q));
    p.iter()
        .zip(q)
        .map(|(p, q)| {
            let (p, q) = (f64::from(*p) - zp, f64::from(*q) - zq);
            p.exp() * (p - q)
        })
        .sum()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    // `f32::max` drops a NaN; a report must not.
    a.iter().zip(b).fold(0.0, |m: f32, (a, b)| {
        let d = (a - b).abs();
        if d.is_nan() || m.is_nan() { f32::NAN } else { m.max(d) }
    })
}

/// The largest logits; among equals the lowest id first, NaN never.
fn top(x: &[f32]) -> Vec<Choice> {
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(TOP + 1);
    for (i, &v) in x.iter().enumerate() {
        if v.is_nan() || (best.len() == TOP && v <= best[TOP - 1].1) {
            continue;
        }
        let at = best.partition_point(|(_, b)| *b >= v);
        best.insert(at, (i, v));
        best.truncate(TOP);
    }
    let z = log_sum_exp(x);
    best.into_iter()
        .map(|(i, logit)| Choice { token: i as u32, logit, probability: (f64::from(logit) - z).exp() as f32 })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_keep_the_lowest_id_first() {
        let found = top(&[1.0, 3.0, f32::NAN, 3.0, 2.0, 0.5, -1.0, 2.5]);
        let ids: Vec<u32> = found.iter().map(|c| c.token).collect();
        assert_eq!(ids, [1, 3, 7, 4, 0]);
    }

    #[test]
    fn divergence_of_two_coins() {
        // ln odds 0 and ln 3: fair against three to one.
        let (fair, biased) = ([0.0, 0.0], [3f32.ln(), 0.0]);
        let expected = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((divergence(&fair, &biased) - expected).abs() < 1e-7);
        assert!(divergence(&fair, &fair).abs() < 1e-15);
        assert!(divergence(&fair, &[f32::NAN, 0.0]).is_nan());
    }

    #[test]
    fn a_nan_is_no_small_difference() {
        assert!(largest_difference(&[f32::NAN, 1.0], &[0.0, 5.0]).is_nan());
        assert_eq!(largest_difference(&[0.0, 1.0], &[0.5, 5.0]), 4.0);
    }
}
