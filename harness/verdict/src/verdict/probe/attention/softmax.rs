//! Attention weights, row by row beside their scores.

use super::{EXACT, LANES, Look, Row, Shares, fold, largest};
use crate::verdict::tolerance::ELEMENT_FACTOR;
use qdiff_engine::isa::{Vectorised, vectorised};
use qdiff_engine::ops::{Softmax, TINY, UNIT, attn_scores, attn_weights};
use rayon::prelude::*;

/// Distance of a scaled score from the largest at which its weight still is a normal f64.
const NORMAL: f64 = 700.0;

impl Look<'_> {
    /// The shares of attention weights; the bound of precise functions is taken `functions` times.
    pub(super) fn weights(&self, softmax: &Softmax, functions: f64) -> Option<Shares> {
        let &[heads, tokens, keys] = self.given.shape() else { return None };
        let scores = self.stage.graph.nodes[self.stage.node.inputs[0]].id;
        let scores = self.source.step(self.step).stages.get(&scores)?;
        if *scores.shape() != [heads, tokens, keys] {
            return None;
        }
        let mut shares = vec![0f64; tokens];
        for rows in self.chunks(keys) {
            let one = |h: usize| {
                let (s, w) = (self.plane(scores, h, &rows), self.plane(self.given, h, &rows));
                let mut room = (Vec::new(), Vec::new(), Vec::new());
                let pairs = s.chunks_exact(keys).zip(w.chunks_exact(keys)).zip(&self.positions[rows.clone()]);
                let share = |((scores, given), position): ((&[f32], &[f32]), &u32)| {
                    let seen = attn_scores::causal(*position, keys);
                    let ahead = given[seen..].iter().fold(0, |all, w| all | w.to_bits());
                    let (padded, exponentials) = (seen.next_multiple_of(LANES), &mut room.2);
                    room.0.clear();
                    room.0.extend_from_slice(&scores[..seen]);
                    room.0.resize(padded, scores[0]);
                    room.1.clear();
                    room.1.extend_from_slice(&given[..seen]);
                    room.1.resize(padded, 0.0);
                    exponentials.resize(padded, 0.0);
                    let (scores, given) = (room.0.as_chunks().0, room.1.as_chunks().0);
                    let row = vectorised(Weights {
                        scores,
                        given,
                        seen,
                        scale: softmax.scale,
                        keys,
                        functions,
                        exponentials,
                    });
                    if ahead == 0 { row.share() } else { f64::INFINITY }
                };
                pairs.map(share).collect::<Vec<f64>>()
            };
            let of_heads: Vec<Vec<f64>> = (0..heads).into_par_iter().map(one).collect();
            largest(&mut shares[rows.clone()], &of_heads);
        }
        Some((shares, EXACT))
    }
}

/// A row of attention weights beside its scores, of keys that are seen, in whole lanes.
struct Weights<'a> {
    /// Behind the last the first stands again.
    scores: &'a [[f32; LANES]],
    /// Behind the last there is nothing.
    given: &'a [[f32; LANES]],
    seen: usize,
    scale: f64,
    /// Over the whole row.
    keys: usize,
    /// Factor on the bound.
    functions: f64,
    /// Room for as many.
    exponentials: &'a mut [f64],
}

impl Vectorised for Weights<'_> {
    type Output = Row;

    #[inline(always)]
    fn run(self) -> Row {
        let (mut most, mut least) = ([f64::NEG_INFINITY; LANES], [f64::INFINITY; LANES]);
        // NaN as soon as one is not finite.
        let mut finite = [0f64; LANES];
        for (s, w) in self.scores.iter().zip(self.given) {
            for i in 0..LANES {
                let z = f64::from(s[i]) * self.scale;
                most[i] = if z > most[i] { z } else { most[i] };
                least[i] = if z < least[i] { z } else { least[i] };
                finite[i] += f64::from(0.0 * s[i] + 0.0 * w[i]);
            }
        }
        let top = most.into_iter().fold(f64::NEG_INFINITY, f64::max);
        let bottom = least.into_iter().fold(f64::INFINITY, f64::min);
        let sound = fold(finite) == 0.0 && top - bottom <= NORMAL;
        if !sound {
            return Row { share: f64::INFINITY, ..Row::default() };
        }
        for (s, e) in self.scores.iter().zip(self.exponentials.chunks_exact_mut(LANES)) {
            for i in 0..LANES {
                e[i] = exp(f64::from(s[i]) * self.scale - top);
            }
        }
        self.exponentials[self.seen..].fill(0.0);
        let mut sums = [0f64; LANES];
        for e in self.exponentials.chunks_exact(LANES) {
            for i in 0..LANES {
                sums[i] += e[i];
            }
        }
        let inverse = 1.0 / fold(sums);
        let few = attn_weights::roundings(self.keys) + top.abs().max(bottom.abs());
        let (mut shares, mut errors) = ([0f64; LANES], [0f64; LANES]);
        let (mut squares, mut fourths) = ([0f64; LANES], [0f64; LANES]);
        for ((s, w), e) in self.scores.iter().zip(self.given).zip(self.exponentials.chunks_exact(LANES)) {
            for i in 0..LANES {
                let (z, y) = (f64::from(s[i]) * self.scale, e[i] * inverse);
                let units = z.abs() + 2.0 * (top - z) + few;
                let bound = self.functions * (UNIT * y * units + TINY);
                let error = f64::from(w[i]) - y;
                let share = error.abs() / (ELEMENT_FACTOR * bound);
                shares[i] = if share > shares[i] { share } else { shares[i] };
                errors[i] += error * error;
                squares[i] += bound * bound;
                fourths[i] += (bound * bound) * (bound * bound);
            }
        }
        let share = shares.into_iter().fold(0.0, f64::max);
        Row { share, errors: fold(errors), squares: fold(squares), fourths: fold(fourths) }
    }
}

/// Coefficients of the Taylor series of the exponential, from the twelfth power down to the first.
const SERIES: [f64; 12] = [
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
    1.0,
];

/// The exponential of `x` from −[`NORMAL`] to 0, to some 1e-15: `2^n·e^r` with `|r| ≤ ln 2 / 2`.
#[inline(always)]
fn exp(x: f64) -> f64 {
    /// Added to a number it leaves the nearest integer in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // ln 2 in two parts, the first of few bits, so that its product with n is exact.
    const HIGH: f64 = 0.693_147_180_369_123_8;
    const LOW: f64 = 1.908_214_929_270_587_7e-10;
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * HIGH) - n * LOW;
    let series = SERIES.iter().fold(0.0, |sum, c| sum * r + c) * r + 1.0;
    series * f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qdiff_engine::ops::Tensor;

    fn looked_at(scores: &[f32], given: &[f32], scale: f64, keys: usize) -> Row {
        let seen = scores.len();
        let padded = |values: &[f32], by: f32| {
            let mut values = values.to_vec();
            values.resize(seen.next_multiple_of(LANES), by);
            values
        };
        let (scores, given) = (padded(scores, scores[0]), padded(given, 0.0));
        let mut exponentials = vec![0f64; scores.len()];
        let (scores, given) = (scores.as_chunks().0, given.as_chunks().0);
        let exponentials = exponentials.as_mut_slice();
        vectorised(Weights { scores, given, seen, scale, keys, functions: 1.0, exponentials })
    }

    proptest! {
        #[test]
        fn exponentials_are_those_of_the_library(x in -NORMAL..0.0) {
            prop_assert!((exp(x) / x.exp() - 1.0).abs() < 2e-15, "{x}");
        }

        /// What is looked at in lanes is what the op says of its value and bound.
        #[test]
        fn a_row_of_weights_is_held_to_the_op(
            scores in prop::collection::vec(-60f32..60.0, 1..40), off in prop::collection::vec(-1e-6f32..1e-6, 40),
            ahead in 0usize..9,
        ) {
            let (softmax, keys) = (Softmax { scale: 0.25 }, scores.len() + ahead);
            let mut all: Vec<f64> = scores.iter().map(|s| f64::from(*s)).collect();
            all.resize(keys, 3.0);
            let all = Tensor { shape: vec![1, 1, keys], data: all };
            let y = attn_weights::forward(&softmax, &all, &[scores.len() as u32 - 1]);
            let bound = attn_weights::bound(&softmax, &all, &y);
            let given: Vec<f32> = y.data[..scores.len()].iter().zip(&off).map(|(y, off)| *y as f32 * (1.0 + off)).collect();
            let row = looked_at(&scores, &given, softmax.scale, keys);
            let mut expected = Row::default();
            for ((g, y), b) in given.iter().zip(&y.data).zip(&bound) {
                expected.element(f64::from(*g) - y, f64::from(*b));
            }
            let (got, want) = (row.share(), expected.share());
            // With one key nothing is off, and both are 0.
            prop_assert!((got - want).abs() <= 1e-4 * want, "{got} {want}");
            for wrong in [f32::NAN, f32::INFINITY] {
                let mut scores = scores.clone();
                scores[off.len() % given.len()] = wrong;
                prop_assert_eq!(looked_at(&scores, &given, softmax.scale, keys).share(), f64::INFINITY);
            }
        }
    }
}
