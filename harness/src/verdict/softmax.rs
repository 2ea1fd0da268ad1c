//! Attention weights of scores that are not known to the last bit, because they were rounded.
//!
//! A score of a thousand, which massive keys give, is known to a half in f16: its weight to a factor of 1.06, or, first
//! order being long exhausted, to none. But all weights of a row are exponentials of their scores over one sum, and that is
//! what is checked: the scores are read off the weights, each within its own rounding, the sum is theirs. What remains is
//! held to the bound of f32. A row of which no score differs from another by many times its rounding is left to what the
//! rounding makes uncertain.

use super::grain::Grain;
use super::operands::{Source, Stage};
use super::tolerance::{ELEMENT_FACTOR, INCONCLUSIVE};
use crate::formats::Format;
use qdiff_engine::model::Node;
use qdiff_engine::ops::{Context, Op, Tensor, attn_scores};

/// Halvings of what the sum may be off by.
const HALVINGS: usize = 48;

/// How uncertain the scores of a softmax are to an engine that rounds them to `format` once more when they are scaled;
/// `None` of another op, or where they are rounded no more. What a captured score becomes is known.
pub(super) fn scaled(
    node: &Node, format: Format, scores: Option<&Tensor<f64>>, deltas: Option<&[f32]>,
) -> Option<Vec<f32>> {
    let (Op::AttnWeights(softmax), Some(scores)) = (&node.op, scores) else { return None };
    if format == Format::F32 || node.faults.left_out {
        return None;
    }
    let scale = softmax.scale.abs();
    let of = |(i, s): (usize, &f64)| {
        let z = s * scale;
        let known = f64::from(format.round(z as f32)) - z;
        let delta = deltas.map_or(known.abs() / scale, |d| f64::from(d[i]) + format.half_step(z) / scale);
        delta as f32
    };
    Some(scores.data.iter().enumerate().map(of).collect())
}

/// Gives `value`, the weights `[H, T, N]` of uncertain scores, in the rows that `given` tells more of, as scores within that
/// uncertainty make them. What this adds to the bound, `more`, is nothing there.
pub(super) fn settle(
    stage: Stage<'_>, (source, given): (&Source<'_>, &Tensor<f32>), (scores, deltas): (&[&Tensor<f64>], &[Option<&[f32]>]),
    context: &Context<'_>, value: &mut Tensor<f64>, (bound, more): (&[f32], &mut [f32]),
) {
    let faults = &stage.node.faults;
    let (Op::AttnWeights(softmax), &[scores], &[Some(deltas)]) = (&stage.node.op, scores, deltas) else { return };
    if faults.left_out || faults.compute.is_some() || given.data.len() != value.data.len() {
        return;
    }
    let grain = Grain::of(stage.node, stage.graph, source.side);
    // What was evaluated is uncertain in mean square, not at most.
    let factor = if source.computed.is_some() { ELEMENT_FACTOR } else { 1.0 };
    let (tokens, keys) = (scores.shape[1].max(1), scores.shape[2].max(1));
    for r in 0..scores.data.len() / keys {
        let at = r * keys..r * keys + attn_scores::causal(context.positions[r % tokens], keys);
        let given = &given.data[at.clone()];
        let row = Row {
            scores: scores.data[at.clone()].iter().map(|s| s * softmax.scale).collect(),
            reach: deltas[at.clone()].iter().map(|d| factor * f64::from(*d) * softmax.scale.abs()).collect(),
            given,
        };
        let spare = given.iter().zip(&bound[at.clone()]).map(|(g, b)| grain.reach(*g) + f64::from(*b)).sum();
        if row.settle(spare, &mut value.data[at.clone()]) {
            more[at].fill(0.0);
        }
    }
}

/// What a query sees: scores as the exponential takes them, how uncertain they are, and its weights.
struct Row<'a> {
    scores: Vec<f64>,
    reach: Vec<f64>,
    given: &'a [f32],
}

impl Row<'_> {
    /// The weights nearest to those given whose sum is 1, but for `spare`, the rounding of each of them.
    fn settle(&self, spare: f64, value: &mut [f64]) -> bool {
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (top, least) = (most(&self.scores), self.scores.iter().copied().fold(f64::INFINITY, f64::min));
        let reach = most(&self.reach);
        let told = reach > 0.0 && reach <= INCONCLUSIVE * (top - least);
        if !told || self.given.iter().any(|w| !w.is_finite()) {
            return false;
        }
        let sum: f64 = self.scores.iter().map(|z| (z - top).exp()).sum();
        let within: Vec<(f64, f64)> = (self.scores.iter().zip(&self.reach))
            .map(|(z, reach)| ((z - top - reach).exp() / sum, (z - top + reach).exp() / sum))
            .collect();
        let of = |scale: f64, (w, (low, high)): (&f32, &(f64, f64))| f64::from(*w).clamp(scale * low, scale * high);
        let total = |scale: f64| self.given.iter().zip(&within).map(|e| of(scale, e)).sum::<f64>();
        let given: f64 = self.given.iter().map(|w| f64::from(*w)).sum();
        let wanted = given.clamp(1.0 - spare, 1.0 + spare);
        // Of the sum of the exponentials, which is uncertain as they are; larger factors give larger weights.
        let (mut low, mut high) = ((-2.0 * reach).exp(), (2.0 * reach).exp());
        let mut scale = 1.0;
        for _ in 0..HALVINGS {
            let off = total(scale) - wanted;
            if off.abs() <= f64::EPSILON {
                break;
            }
            if off > 0.0 { high = scale } else { low = scale }
            scale = (low * high).sqrt();
        }
        for (value, e) in value.iter_mut().zip(self.given.iter().zip(&within)) {
            *value = of(scale, e);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qdiff_engine::ops::{Softmax, attn_weights};

    proptest! {
        /// Right weights of scores that were stored narrowly are their own; weights of which one is another, or that
        /// do not sum to one, are not.
        #[test]
        fn right_weights_are_read_off_and_wrong_ones_are_not(
            scores in prop::collection::vec(-900f32..900.0, 8), which in 0usize..8, narrow in 2usize..4,
        ) {
            let format = Format::NARROW[narrow];
            let softmax = Softmax { scale: 0.125 };
            let tensor = |data: Vec<f64>| Tensor { shape: vec![1, 1, 8], data };
            let exact = tensor(scores.iter().map(|s| f64::from(*s)).collect());
            let right = attn_weights::forward(&softmax, &exact, &[7]);
            let stored = tensor(scores.iter().map(|s| f64::from(format.round(*s))).collect());
            let reach: Vec<f64> = stored.data.iter().map(|s| format.half_step(*s) * softmax.scale).collect();
            let off = |given: &[f32]| {
                let mut value = vec![0.0; 8];
                let scores = stored.data.iter().map(|s| s * softmax.scale).collect();
                let told = Row { scores, reach: reach.clone(), given }.settle(1e-7, &mut value);
                assert!(told || reach.iter().all(|r| *r == 0.0));
                given.iter().zip(&value).map(|(g, v)| (f64::from(*g) - v).abs()).fold(0.0, f64::max)
            };
            let given: Vec<f32> = right.data.iter().map(|w| *w as f32).collect();
            prop_assert!(off(&given) < 1e-6, "{}", off(&given));
            let scaled: Vec<f32> = given.iter().map(|w| w * 0.75).collect();
            prop_assert!(off(&scaled) > 0.01);
            let mut moved = given.clone();
            moved[which] = (moved[which] + 0.5) % 1.0;
            prop_assert!(off(&moved) > 0.01);
        }
    }
}
