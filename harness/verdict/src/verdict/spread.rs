//! How a residual is spread: over positions, over elements, and where it is largest. What charts are drawn from.

use super::Element;
use crate::number::rounded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// Elements kept with their values.
const WORST: usize = 8;

/// An error / bound ratio that also counts everything above, NaN included.
pub const BEYOND: f32 = 1e9;

/// Bin of the histogram for errors of one to two times the bound.
pub const BIN_OF_ONE: usize = 24;

/// Bins of the histogram.
const BINS: usize = 64;

/// Shares of what is allowed, over a whole run of one stage on one side.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// Largest share used at each position from 0 on, over its rows, heads and
    /// steps; `null` where nothing was evaluated; three digits, at most 1e9.
    #[serde(serialize_with = "short")]
    pub positions: Vec<Option<f32>>,
    /// How many elements use between `2^(i-24)` and `2^(i-23)` of what they are
    /// allowed, from `i = 0` on; the first bin holds all that use less.
    pub elements: Vec<u64>,
    /// The worst element of each of the worst rows beyond what is allowed, the worst first.
    pub worst: Vec<Element>,
}

impl Spread {
    /// Notes a row of `position` that uses `share` of its bound.
    pub(super) fn row(&mut self, position: usize, share: f64) {
        if self.positions.len() <= position {
            self.positions.resize(position + 1, None);
        }
        // A NaN fails the comparison and becomes the cap.
        let share = if share < f64::from(BEYOND) { share as f32 } else { BEYOND };
        let seen = &mut self.positions[position];
        *seen = Some(seen.map_or(share, |s| s.max(share)));
    }

    /// Adds elements by their bins.
    pub(super) fn elements(&mut self, bins: &Bins) {
        let count = |bin: usize| bins.0.iter().map(|part| part[bin]).sum::<u64>();
        let used = (0..BINS).rposition(|bin| count(bin) > 0).map_or(0, |last| last + 1);
        self.elements.resize(self.elements.len().max(used), 0);
        self.elements.iter_mut().enumerate().for_each(|(bin, sum)| *sum += count(bin));
    }

    /// Keeps `element` if it is among the worst.
    pub(super) fn keep(&mut self, element: Element) {
        let at = self.worst.partition_point(|e| e.share().total_cmp(&element.share()).is_ge());
        if at < WORST {
            self.worst.insert(at, element);
            self.worst.truncate(WORST);
        }
    }
}

/// Counts of elements by the share that they use of what they are allowed, in several parts, so that neighbours, most of
/// which use about the same, do not wait for each other.
#[derive(Clone)]
pub(super) struct Bins([[u64; BINS]; PARTS]);

/// Parts of the counts.
const PARTS: usize = 4;

impl Default for Bins {
    fn default() -> Self {
        Self([[0; BINS]; PARTS])
    }
}

impl Bins {
    /// Counts the element `at` that uses `share`.
    #[inline(always)]
    pub(super) fn count(&mut self, at: usize, share: f64) {
        // The exponent of an IEEE double is the floor of its binary logarithm.
        let exponent = (share.to_bits() >> 52) as i64 & 0x7ff;
        let bin = (exponent - 1023 + BIN_OF_ONE as i64).clamp(0, BINS as i64 - 1);
        self.0[at % PARTS][bin as usize] += 1;
    }
}

fn short<S: Serializer>(shares: &[Option<f32>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(shares.iter().map(|s| s.map(|s| rounded(f64::from(s)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_powers_of_two() {
        let (mut spread, mut bins) = (Spread::default(), Bins::default());
        for (at, share) in [0.0, 1e-30, 1.0, 1.99, 0.5, 2.0].into_iter().enumerate() {
            bins.count(at, share);
        }
        spread.elements(&bins);
        assert_eq!(spread.elements.len(), BIN_OF_ONE + 2);
        let mut beyond = Bins::default();
        beyond.count(0, f64::INFINITY);
        spread.elements(&beyond);
        assert_eq!(spread.elements[0], 2);
        assert_eq!(spread.elements[BIN_OF_ONE - 1..=BIN_OF_ONE + 1], [1, 2, 1]);
        assert_eq!(spread.elements[BINS - 1], 1);
        assert_eq!(spread.elements.iter().sum::<u64>(), 7);
    }

    #[test]
    fn a_position_keeps_its_worst_row() {
        let mut spread = Spread::default();
        for (position, share) in [(2, 0.5), (2, 0.25), (0, f64::NAN), (0, 0.1)] {
            spread.row(position, share);
        }
        assert_eq!(spread.positions, [Some(BEYOND), None, Some(0.5)]);
    }
}
