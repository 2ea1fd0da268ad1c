//! Attention weights of scores that are not known to the last bit, because they were rounded.
//!
//! A score of a thousand, which massive keys give, is known to a quarter in f16 and to 2 in bf16, and a weight to a factor of
//! 1.06 or to none. But the weights of a row are held to more than their scores: all of them are exponentials over one sum.
//! So the scores are read off the weights, each within its own rounding, and the sum is theirs; what remains is held to the
//! bound of f32. A row passes if its weights follow from scores that round to the captured ones. Where a rounded score
//! says little of a weight, that is all that is known, and it is counted ([`super::Local::by_operands`]); it is taken
//! for a pass where the rounding is a small share of the scores.

use super::grain::Grain;
use super::source::{Source, Stage};
use super::tolerance::{ELEMENT_FACTOR, INCONCLUSIVE, of_row};
use qdiff_engine::dtype::DType;
use qdiff_engine::model::Node;
use qdiff_engine::ops::anatomy::RowReduction;
use qdiff_engine::ops::{Anatomy, Context, Tensor, attn_scores};

/// Halvings of what the sum may be off by.
const HALVINGS: usize = 48;

/// Share of the scores that their rounding may be in a row of which it makes the weights uncertain by more than
/// [`INCONCLUSIVE`]: half a step of bf16 is 0.4 %, of 8 bits 6 % and more.
const BACKWARD: f64 = 0.01;

/// Uncertainty of an exponent up to which that of the exponential is proportional to it.
const LINEAR: f64 = 0.25;

/// How uncertain the scores of a softmax are to an engine that rounds them to `format` once more when they are scaled;
/// `None` of another op, or where they are rounded no more. What a captured score becomes is known.
pub(super) fn scaled(
    node: &Node, format: DType, scores: Option<&Tensor<f64>>, deltas: Option<&[f32]>,
) -> Option<Vec<f32>> {
    let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = node.op.anatomy() else { return None };
    let scores = scores?;
    if format == DType::F32 || node.faults.left_out {
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
/// uncertainty make them. What this adds to the bound, `more`, is nothing there. Says of which rows `more` was so much that
/// they are known by their scores alone.
pub(super) fn settle(
    stage: Stage<'_>, (source, given): (&Source<'_>, &Tensor<f32>),
    (scores, deltas): (&[&Tensor<f64>], &[Option<&[f32]>]), context: &Context<'_>, value: &mut Tensor<f64>,
    (bound, more): (&[f32], &mut [f32]),
) -> Vec<bool> {
    let faults = &stage.node.faults;
    let (Anatomy::RowReduction(RowReduction::Exponentials(softmax)), &[scores], &[Some(deltas)]) =
        (stage.node.op.anatomy(), scores, deltas)
    else {
        return Vec::new();
    };
    if faults.left_out || faults.compute.is_some() || given.data.len() != value.data.len() {
        return Vec::new();
    }
    let grain = Grain::of(stage.node, stage.graph, source.side);
    // What was evaluated is uncertain in mean square, not at most.
    let factor = if source.computed.is_some() { ELEMENT_FACTOR } else { 1.0 };
    let (tokens, keys) = (scores.shape[1].max(1), scores.shape[2].max(1));
    let mut by_operands = vec![false; scores.data.len() / keys];
    for (r, by_operands) in by_operands.iter_mut().enumerate() {
        let at = r * keys..r * keys + attn_scores::causal(context.positions[r % tokens], keys);
        let given = &given.data[at.clone()];
        let row = Row {
            scores: scores.data[at.clone()].iter().map(|s| s * softmax.scale).collect(),
            reach: deltas[at.clone()].iter().map(|d| factor * f64::from(*d) * softmax.scale.abs()).collect(),
            given,
        };
        let bound = &bound[at.clone()];
        let spare: Vec<f64> = given.iter().zip(bound).map(|(g, b)| grain.reach(*g) + f64::from(*b)).collect();
        let (value, more) = (&mut value.data[at.clone()], &mut more[at.clone()]);
        // Beyond it first order says nothing: a weight and what it lacks to 1 change by no larger factor than this.
        let reach = 2.0 * row.reach.iter().copied().fold(0.0, f64::max);
        if reach > LINEAR {
            // Nor is a weight off by more than 1, also where nothing is to be multiplied with what no f64 holds.
            let most = |value: &f64| (reach.exp_m1() * value.min(1.0 - value)).min(1.0) as f32;
            more.iter_mut().zip(&*value).for_each(|(more, value)| *more = most(value));
        }
        let told = of_row(more) <= INCONCLUSIVE * value.iter().map(|v| v * v).sum::<f64>().sqrt();
        let size = row.scores.iter().fold(0f64, |m, z| m.max(z.abs()));
        if let Some(settled) = row.settle(&spare).filter(|_| told || reach <= 2.0 * BACKWARD * size) {
            value.copy_from_slice(&settled);
            more.fill(0.0);
            *by_operands = !told;
        }
    }
    by_operands
}

/// Largest uncertainty of an exponent that is judged: twice as much is still an exponent of an f64.
const FURTHEST: f64 = 350.0;

/// What a query sees: scores as the exponential takes them, how uncertain they are, and its weights.
struct Row<'a> {
    scores: Vec<f64>,
    reach: Vec<f64>,
    given: &'a [f32],
}

impl Row<'_> {
    /// The weights nearest to those given that scores within their reach make; each may lie off them by what it has to
    /// `spare`, its own rounding. `None` where the scores are exact, tell nothing, or are no numbers, and where a weight is none.
    fn settle(&self, spare: &[f64]) -> Option<Vec<f64>> {
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (top, reach) = (most(&self.scores), most(&self.reach));
        let sum: f64 = self.scores.iter().map(|z| (z - top).exp()).sum();
        let all: f64 = spare.iter().sum();
        let told = reach > 0.0 && reach <= FURTHEST && sum.is_finite() && all.is_finite();
        if !told || self.given.iter().any(|w| !w.is_finite()) {
            return None;
        }
        let within: Vec<(f64, f64)> = (self.scores.iter().zip(&self.reach))
            .map(|(z, reach)| ((z - top - reach).exp() / sum, (z - top + reach).exp() / sum))
            .collect();
        let given = || self.given.iter().map(|w| f64::from(*w));
        let of = |scale: f64| given().zip(&within).map(move |(w, (low, high))| w.max(scale * low).min(scale * high));
        // The sum of the exponentials is as uncertain as they are: a larger scale gives larger weights.
        let ends = ((-2.0 * reach).exp(), (2.0 * reach).exp());
        let sums_to = |wanted: f64, (mut low, mut high): (f64, f64)| {
            for _ in 0..HALVINGS {
                let middle = (low * high).sqrt();
                if of(middle).sum::<f64>() > wanted { high = middle } else { low = middle }
            }
            (low * high).sqrt()
        };
        let wanted = given().sum::<f64>().clamp(1.0 - all, 1.0 + all);
        // Each weight bounds the scale: of no other one it is as near as its own rounding.
        let bounds = given().zip(spare).zip(&within);
        let (low, high) = bounds.fold(ends, |(low, high), ((w, spare), within)| {
            let (least, most) = ((w - spare) / within.1, (w + spare) / within.0);
            (low.max(least), if within.0 > 0.0 { high.min(most) } else { high })
        });
        let scale = if low <= high { sums_to(wanted, (low, high)) } else { (low * high).sqrt().clamp(ends.0, ends.1) };
        let off = (of(scale).sum::<f64>() - 1.0).abs();
        // Weights that fit each score alone, and do not sum to one, are none.
        let scale = if off <= 2.0 * all { scale } else { sums_to(wanted, ends) };
        Some(of(scale).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qdiff_engine::ops::{Softmax, attn_weights};

    proptest! {
        /// Scores of 1e30 in bf16 are uncertain by more than an exponential holds, and so may be those of any size.
        #[test]
        fn scores_of_any_size_give_weights_or_nothing(
            scores in prop::collection::vec(prop_oneof![-1e30..1e30, -1e3..1e3, Just(0.0), Just(1e30)], 4),
            uncertain in prop_oneof![Just(0.0), 0.0..1.0, 0.0..400.0, Just(1e28), Just(f64::INFINITY)],
            given in prop::collection::vec(prop_oneof![Just(0f32), Just(448.0), 0f32..1.0], 4),
            spare in prop_oneof![Just(0.0), 0.0..1.0, Just(f64::INFINITY)],
        ) {
            let row = Row { scores, reach: vec![uncertain; 4], given: &given };
            if let Some(value) = row.settle(&[spare; 4]) {
                prop_assert!(value.iter().all(|w| !w.is_nan()), "{:?}", value);
            }
            if uncertain > FURTHEST {
                prop_assert!(row.settle(&[spare; 4]).is_none());
            }
        }

        /// Right weights of scores that were stored narrowly are their own; weights of which one is another, or that
        /// do not sum to one, are not.
        #[test]
        fn right_weights_are_read_off_and_wrong_ones_are_not(
            scores in prop::collection::vec(-90f32..90.0, 8), which in 0usize..8, narrow in 2usize..4,
        ) {
            let format = DType::NARROW[narrow];
            let softmax = Softmax { scale: 0.125 };
            let tensor = |data: Vec<f64>| Tensor { shape: vec![1, 1, 8], data };
            let exact = tensor(scores.iter().map(|s| f64::from(*s)).collect());
            let right = attn_weights::forward(&softmax, &exact, &[7]);
            let stored = tensor(scores.iter().map(|s| f64::from(format.round(*s))).collect());
            let reach: Vec<f64> = stored.data.iter().map(|s| format.half_step(*s) * softmax.scale).collect();
            let off = |given: &[f32]| {
                let scores = stored.data.iter().map(|s| s * softmax.scale).collect();
                let row = Row { scores, reach: reach.clone(), given };
                let spare: Vec<f64> = given.iter().map(|w| 1e-6 * f64::from(*w) + 1e-12).collect();
                let value = row.settle(&spare);
                let off = |value: Vec<f64>| given.iter().zip(value).map(|(g, v)| (f64::from(*g) - v).abs()).sum::<f64>();
                value.map(off)
            };
            let given: Vec<f32> = right.data.iter().map(|w| *w as f32).collect();
            // Of eight powers of two the scores are exact.
            let Some(rightly) = off(&given) else { return Ok(()) };
            prop_assert!(rightly < 1e-5, "{rightly}");
            let scaled: Vec<f32> = given.iter().map(|w| w * 0.75).collect();
            prop_assert!(off(&scaled) > Some(0.2));
            let mut moved = given.clone();
            moved[which] = (moved[which] + 0.5) % 1.0;
            prop_assert!(off(&moved) > Some(0.01));
        }
    }
}
