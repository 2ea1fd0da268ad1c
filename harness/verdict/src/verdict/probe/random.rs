//! What probes draw their random numbers from: everything that they look at. Whoever makes an error that these numbers do not
//! see has changed the values, and with them the numbers.

use super::limits::{DEVIATIONS, DOUBT, PROBES};
use crate::verdict::mode::Seed;
use crate::verdict::source::{Block, Source, Stage};
use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

/// Range of the magnitudes of the random numbers: far enough from zero for every output to count, and no two alike.
pub(super) const SMALLEST: f64 = 0.75;
pub(super) const LARGEST: f64 = 1.25;

/// Values that are hashed in one piece.
const PIECE: usize = 1 << 18;

/// How many times as far as a single element that is seen the largest of several is off, of which `MISSED` tells.
pub const SEVERAL: f64 = 10.0;

/// Chance at most that the errors of several outputs of a block cancel so that a row passes, where the largest of them is
/// [`SEVERAL`] times what is seen of a single one.
///
/// With `E` the largest error, its share `r·E` of a combination has the density `1/(2·w·E)` where it can be, w the width of
/// the range of the magnitudes of r; so, for any others, a combination is within ±δ with probability `δ/(w·E)` at
/// most. Combinations are independent, and doubt begins at `δ = DOUBT·a`. What is seen of a single output is
/// `(DOUBT·a + λ·LARGEST·‖b‖)/SMALLEST` or more, and `‖b‖` is no less than `a`.
pub const MISSED: f64 = missed(SEVERAL);

/// The same for another factor.
const fn missed(times: f64) -> f64 {
    let seen = (DOUBT + DEVIATIONS * LARGEST) / SMALLEST;
    let one = DOUBT / ((LARGEST - SMALLEST) * times * seen);
    let (mut all, mut probe) = (1.0, 0);
    while probe < PROBES {
        all *= one;
        probe += 1;
    }
    all
}

impl Seed {
    /// From the values of a stage and of what it reads, on all sides, and from its weights (SHA-256).
    pub(super) fn of(stage: Stage<'_>, sides: &[Source<'_>]) -> Self {
        let mut whole = Sha256::new();
        whole.update(stage.node.id.to_string());
        for weight in &stage.node.weights {
            let bytes = stage.weights.stored(&weight.name).bytes;
            pieces(&mut whole, bytes.len(), 4 * PIECE, |from, to| Sha256::digest(&bytes[from..to]).into());
        }
        let ids: Vec<_> = stage.node.inputs.iter().map(|i| stage.graph.nodes[*i].id).chain([stage.node.id]).collect();
        for source in sides {
            for &index in &source.steps {
                for stored in ids.iter().filter_map(|id| source.step(index).stages.get(id)) {
                    whole.update(format!("{} {index} {:?}", source.index, stored.shape()));
                    let of = |from, to| Sha256::digest(bytemuck::cast_slice::<f32, u8>(&stored.flat(from..to))).into();
                    pieces(&mut whole, stored.shape().iter().product(), PIECE, of);
                }
            }
        }
        let hash = whole.finalize();
        let (first, _) = hash.as_chunks::<8>();
        Self(u64::from_le_bytes(first[0]))
    }

    /// Random numbers for one of the things that are looked at with this seed.
    pub(in crate::verdict) fn random(self, of: usize) -> Random {
        let mut streams = Random(self.0);
        Random((0..=of).fold(0, |_, _| streams.next()))
    }
}

/// Adds the hashes of the pieces of `count` things.
fn pieces(whole: &mut Sha256, count: usize, piece: usize, hash: impl Fn(usize, usize) -> [u8; 32] + Sync) {
    let of_piece = |i: usize| hash(i * piece, count.min((i + 1) * piece));
    let all: Vec<[u8; 32]> = (0..count.div_ceil(piece)).into_par_iter().map(of_piece).collect();
    all.iter().for_each(|hash| whole.update(hash));
}

/// By how many of its bounds an output of a block must be off to be seen, of the output with the smallest bound; bounds are
/// about as the sizes of the weights.
pub(super) fn sees(sizes: impl Iterator<Item = f64> + Clone) -> f64 {
    let (count, sum) = sizes.clone().fold((0.0, 0.0), |(n, sum), size| (n + 1.0, sum + size));
    let norm = sizes.clone().map(|size| size * size).sum::<f64>().sqrt();
    let Some(smallest) = sizes.filter(|size| *size > 0.0).min_by(f64::total_cmp) else { return 0.0 };
    (DOUBT * sum / f64::sqrt(count) + DEVIATIONS * LARGEST * norm) / (SMALLEST * smallest)
}

/// splitmix64 (Steele, Lea & Flood 2014).
pub(in crate::verdict) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Moves every element by a share of its bound, drawn evenly from −1 to 1, and makes its bound 0.
    pub(in crate::verdict) fn scatter(&mut self, block: &mut Block<'_>) {
        for (value, bound) in block.value.to_mut().data.iter_mut().zip(block.bound.to_mut()) {
            let share = (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
            *value += share * f64::from(*bound);
            *bound = 0.0;
        }
    }

    /// A random sign, and a magnitude from [`SMALLEST`] to [`LARGEST`].
    pub(super) fn number(&mut self) -> f64 {
        let z = self.next();
        let unit = (z >> 12) as f64 / (1u64 << 52) as f64;
        let magnitude = SMALLEST + (LARGEST - SMALLEST) * unit;
        if z & 1 == 0 { magnitude } else { -magnitude }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::probe::limits::BLOCK;

    const TRIALS: u64 = 100_000;

    /// The numbers of a block.
    fn numbers(seed: u64) -> Vec<[f64; PROBES]> {
        let mut random = Seed(seed).random(0);
        (0..BLOCK).map(|_| std::array::from_fn(|_| random.number())).collect()
    }

    /// Seeds, of so many, that have no doubt of these errors.
    fn passing(errors: &[f64; BLOCK], allowed: f64) -> u64 {
        let doubted = |seed: &u64| {
            let numbers = numbers(*seed);
            let combined = |probe: usize| errors.iter().zip(&numbers).map(|(e, r)| e * r[probe]).sum::<f64>();
            (0..PROBES).any(|probe| combined(probe).abs() > DOUBT * allowed)
        };
        TRIALS - (0..TRIALS).filter(doubted).count() as u64
    }

    #[test]
    fn errors_that_cancel_pass_no_more_often_than_is_told() {
        // All bounds alike.
        let allowed = (BLOCK as f64).sqrt();
        let seen = sees([1.0; BLOCK].into_iter());
        let mut most = 0;
        for times in [1.0, 3.0] {
            let largest = times * seen;
            let [mut two, mut all] = [[0.0; BLOCK]; 2];
            (two[0], two[1]) = (largest, -largest);
            all.iter_mut().enumerate().for_each(|(i, e)| *e = if i % 2 == 0 { largest } else { -largest });
            // What the numbers of one seed do not see at all.
            let of = numbers(TRIALS + 7);
            let [a, b, c] = [0, 1, 2].map(|i: usize| of[i]);
            let blind = [b[0] * c[1] - b[1] * c[0], c[0] * a[1] - c[1] * a[0], a[0] * b[1] - a[1] * b[0]];
            let size = blind.iter().fold(0.0, |m: f64, e| m.max(e.abs()));
            let mut unseen = [0.0; BLOCK];
            unseen.iter_mut().zip(blind).for_each(|(e, blind)| *e = largest * blind / size);
            for errors in [two, all, unseen] {
                let (passing, expected) = (passing(&errors, allowed), missed(times) * TRIALS as f64);
                assert!(passing as f64 <= expected + 5.0 * expected.sqrt(), "{times} {passing} {expected}");
                most = most.max(passing);
            }
        }
        // The stated probability is close to the true one, and a single output of the stated size is seen.
        assert!(most as f64 > 0.1 * missed(1.0) * TRIALS as f64, "{most}");
        let mut one = [0.0; BLOCK];
        one[5] = seen;
        assert_eq!(passing(&one, allowed), 0);
    }

    #[test]
    fn a_seed_is_read_as_it_is_written() {
        for seed in [Seed(0), Seed(0x71d1_ff00), Seed(u64::MAX)] {
            assert_eq!(seed.to_string().parse(), Ok(seed));
            assert_eq!(serde_json::from_str::<Seed>(&serde_json::to_string(&seed).unwrap()).unwrap(), seed);
        }
        assert_eq!(serde_json::from_str::<Seed>("1909587712").unwrap(), Seed(0x71d1_ff00));
        assert_eq!("0xff".parse(), Ok(Seed(255)));
        for text in ["", "0x", "-1", "g", "12345678901234567"] {
            assert!(text.parse::<Seed>().is_err(), "{text}");
        }
    }
}
