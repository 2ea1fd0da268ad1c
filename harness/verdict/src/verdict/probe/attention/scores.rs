//! Scores. Keys are combined as the outputs of a linear layer are, [`BLOCK`] neighbours at a time: `u = Σ r·k`, and then for
//! each query `Σ r·s − u·q = Σ r·e`. A random number is divided by what its key's scores are like in size, so that each error
//! counts by its own bound, and neighbours of any size make a block: a query sees whole blocks but for the last,
//! whose scores are evaluated one by one, and scores beyond them are not looked at.

use super::{EXACT, LANES, Look, Row, Shares, TILE, fold, largest};
use crate::verdict::mode::Seed;
use crate::verdict::probe::limits::{BLOCK, PROBES, worse};
use crate::verdict::probe::random::{LARGEST, Random, SMALLEST, sees};
use qdiff_engine::isa::{Vectorised, vectorised};
use qdiff_engine::ops::{Attention, Real, Tensor, attn_scores};
use rayon::prelude::*;
use std::ops::Range;

/// Queries of which it is looked up how the bounds of a block differ.
const SAMPLED: usize = 32;

/// The keys of one head, combined.
struct Keys {
    /// The random number of each key divided by its size, for each combination.
    numbers: [Vec<f64>; PROBES],
    /// Block by block the combinations.
    combined: Vec<f64>,
    /// Block by block the sum of the keys' magnitudes by their sizes.
    absolute: Vec<f32>,
    /// Mean size of the keys of a block.
    sizes: Vec<f64>,
}

impl Keys {
    /// `keys` are rows of as many elements as `typical` has, which says how large those of queries are. `None` if a key is
    /// nothing, or no number.
    fn new(keys: &[&[f64]], typical: &[f64], mut random: Random) -> Option<Self> {
        let d = typical.len();
        let size = |key: &&[f64]| key.iter().zip(typical).map(|(k, q)| k.abs() * q).sum::<f64>();
        let own: Vec<f64> = keys.iter().map(size).collect();
        let numbers = std::array::from_fn(|_| own.iter().map(|size| random.number() / size).collect::<Vec<f64>>());
        // Whole tiles of them.
        let blocks = (keys.len() / BLOCK).next_multiple_of(TILE);
        let (mut combined, mut absolute) = (vec![0f64; blocks * PROBES * d], vec![0f32; blocks * d]);
        for (b, (keys, sizes)) in keys.chunks_exact(BLOCK).zip(own.chunks_exact(BLOCK)).enumerate() {
            for (probe, sums) in combined[b * PROBES * d..][..PROBES * d].chunks_exact_mut(d).enumerate() {
                for (key, number) in keys.iter().zip(&numbers[probe][b * BLOCK..]) {
                    f64::axpy(*number, key, sums);
                }
            }
            for (key, size) in keys.iter().zip(sizes) {
                absolute[b * d..][..d].iter_mut().zip(*key).for_each(|(sum, k)| *sum += (k.abs() / size) as f32);
            }
        }
        let means = own.chunks_exact(BLOCK).map(|sizes| sizes.iter().sum::<f64>() / BLOCK as f64).collect();
        let sound = own.iter().all(|size| size.is_normal());
        sound.then_some(Self { numbers, combined, absolute, sizes: means })
    }
}

/// Queries or keys, and their magnitudes.
type Operand = (Tensor<f64>, Tensor<f32>);

fn with_sizes(values: Tensor<f64>) -> Operand {
    let sizes = values.map(|v| v.abs() as f32);
    (values, sizes)
}

/// The combinations of a row's blocks.
struct Combinations<'a> {
    scores: &'a [f32],
    numbers: [&'a [f64]; PROBES],
    out: &'a mut Vec<[f64; PROBES]>,
}

impl Vectorised for Combinations<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.out.clear();
        let blocks = self.scores.chunks_exact(BLOCK);
        let [first, second] = self.numbers;
        for ((s, a), b) in blocks.zip(first.chunks_exact(BLOCK)).zip(second.chunks_exact(BLOCK)) {
            let (mut sums_a, mut sums_b) = ([0f64; LANES], [0f64; LANES]);
            for half in 0..BLOCK / LANES {
                for i in 0..LANES {
                    let s = f64::from(s[half * LANES + i]);
                    sums_a[i] += s * a[half * LANES + i];
                    sums_b[i] += s * b[half * LANES + i];
                }
            }
            self.out.push([fold(sums_a), fold(sums_b)]);
        }
    }
}

impl Look<'_> {
    /// The shares of attention scores.
    pub(super) fn scores(&self, a: &Attention, seed: Seed) -> Option<Shares> {
        let d = a.head_dim;
        let k = self.operand(1, &(0..self.positions.len()))?;
        let keys = k.rows();
        if k.shape != [self.given.shape()[2], a.n_kv_heads, d] {
            return None;
        }
        let every = self.positions.len().div_ceil(SAMPLED);
        let sampled: Vec<usize> = (0..self.positions.len()).step_by(every).collect();
        let some: Vec<Tensor<f64>> = sampled.iter().map(|&t| self.operand(0, &(t..t + 1))).collect::<Option<_>>()?;
        if some.iter().any(|q| q.data.len() != a.n_heads * d) {
            return None;
        }
        let of_head = |g: usize| (0..a.n_heads).filter(move |h| a.kv_head(*h) == g);
        let combined: Vec<Keys> = (0..a.n_kv_heads)
            .map(|g| {
                let mut typical = vec![0f64; d];
                for q in some.iter().flat_map(|q| of_head(g).map(|h| &q.data[h * d..][..d])) {
                    typical.iter_mut().zip(q).for_each(|(sum, q)| *sum += q.abs());
                }
                let rows: Vec<&[f64]> = (0..keys).map(|n| &k.row(n)[g * d..][..d]).collect();
                Keys::new(&rows, &typical, seed.random(g))
            })
            .collect::<Option<_>>()?;
        let k = with_sizes(k);
        let mut shares = vec![0f64; self.positions.len()];
        for rows in self.chunks(keys) {
            let q = with_sizes(self.operand(0, &rows)?);
            let of_heads: Vec<Vec<f64>> = (0..a.n_heads)
                .into_par_iter()
                .map(|h| self.scores_of(a, h, &rows, [&q, &k], &combined[a.kv_head(h)]))
                .collect();
            largest(&mut shares[rows], &of_heads);
        }
        let seen = sampled.iter().zip(&some).map(|(t, q)| {
            let seen = attn_scores::causal(self.positions[*t], keys);
            let of = (0..a.n_heads).map(|h| {
                uneven(&q.data[h * d..][..d], &combined[a.kv_head(h)], seen, |n| &k.0.row(n)[a.kv_head(h) * d..][..d])
            });
            of.fold(0.0, f64::max)
        });
        Some((shares, seen.fold(EXACT, f64::max)))
    }

    /// The shares of rows of one head.
    fn scores_of(&self, a: &Attention, h: usize, rows: &Range<usize>, [q, k]: [&Operand; 2], of: &Keys) -> Vec<f64> {
        let (d, keys, factor) = (a.head_dim, k.0.rows(), f64::from(attn_scores::bound_factor(a)));
        let given = self.plane(self.given, h, rows);
        let (query, key) = (h * d..(h + 1) * d, a.kv_head(h) * d..(a.kv_head(h) + 1) * d);
        let blocks = of.absolute.len() / d;
        let (mut expected, mut reach) = (vec![0f64; TILE * blocks * PROBES], vec![0f32; TILE * blocks]);
        let (mut shares, mut combinations) = (Vec::with_capacity(rows.len()), Vec::new());
        for first in (0..rows.len()).step_by(TILE) {
            // Behind the last row it stands again.
            let tile: [usize; TILE] = std::array::from_fn(|t| (first + t).min(rows.len() - 1));
            let (queries, sizes) = (tile.map(|t| &q.0.row(t)[query.clone()]), tile.map(|t| &q.1.row(t)[query.clone()]));
            let last = self.positions[rows.start + (first + TILE).min(rows.len()) - 1];
            let seen = (attn_scores::causal(last, keys) / BLOCK).next_multiple_of(TILE).min(blocks);
            for b in (0..seen * PROBES).step_by(TILE) {
                let tile = f64::tile(queries, std::array::from_fn(|i| &of.combined[(b + i) * d..][..d]));
                tile.iter().enumerate().for_each(|(t, values)| {
                    expected[t * blocks * PROBES + b..][..TILE].copy_from_slice(values);
                });
            }
            for b in (0..seen).step_by(TILE) {
                let tile = f32::tile(sizes, std::array::from_fn(|i| &of.absolute[(b + i) * d..][..d]));
                tile.iter().enumerate().for_each(|(t, values)| {
                    reach[t * blocks + b..][..TILE].copy_from_slice(values);
                });
            }
            for t in first..rows.len().min(first + TILE) {
                let seen = attn_scores::causal(self.positions[rows.start + t], keys);
                let scores = &given[t * keys..][..seen];
                let numbers = [0, 1].map(|probe: usize| of.numbers[probe].as_slice());
                vectorised(Combinations { scores, numbers, out: &mut combinations });
                let mut row = Row::default();
                let expected = expected[(t - first) * blocks * PROBES..].chunks_exact(PROBES);
                let bounds = reach[(t - first) * blocks..].iter().zip(&of.sizes);
                for ((given, expected), (reach, size)) in combinations.iter().zip(expected).zip(bounds) {
                    let allowed = factor * f64::from(*reach) / (BLOCK as f64).sqrt();
                    for (given, expected) in given.iter().zip(expected) {
                        let error = (given - expected).abs();
                        row.share = worse(row.share, error, allowed);
                        row.errors += (error * size).powi(2) / PROBES as f64;
                    }
                    let squares = (allowed * size).powi(2);
                    row.squares += squares;
                    row.fourths += squares * squares / BLOCK as f64;
                }
                for (n, score) in (0..).zip(scores).skip(combinations.len() * BLOCK) {
                    let reach = f64::from(f32::dot(&q.1.row(t)[query.clone()], &k.1.row(n)[key.clone()]));
                    let expected = f64::dot(&q.0.row(t)[query.clone()], &k.0.row(n)[key.clone()]);
                    row.element(f64::from(*score) - expected, factor * reach);
                }
                shares.push(row.share());
            }
        }
        shares
    }
}

/// By how many of its bounds a score of this query must be off to be seen, in the block where they differ most beside what
/// was taken for their sizes.
fn uneven<'k>(q: &[f64], of: &Keys, seen: usize, key: impl Fn(usize) -> &'k [f64]) -> f64 {
    let by_size = |n: usize| {
        let reach: f64 = q.iter().zip(key(n)).map(|(q, k)| (q * k).abs()).sum();
        // One of the two numbers has the sign, both have about the size.
        reach * of.numbers[0][n].abs() / ((SMALLEST + LARGEST) / 2.0)
    };
    let blocks = (0..seen / BLOCK).map(|b| {
        let bounds: Vec<f64> = (b * BLOCK..(b + 1) * BLOCK).map(by_size).collect();
        sees(bounds.iter().copied())
    });
    blocks.fold(0.0, f64::max)
}
