//! The stages of attention, which grow with tokens times tokens, checked without being put together.
//!
//! *Scores.* Keys are combined as the outputs of a linear layer are, [`BLOCK`] neighbours at a time: `u = Σ r·k`, and then
//! for each query `Σ r·s − u·q = Σ r·e`. A random number is divided by what its key's scores are like in size, so that
//! each error counts by its own bound, and neighbours make a block whatever their sizes: a query sees whole blocks but for
//! the last, whose scores are evaluated one by one, and what stands beyond them is not looked at.
//!
//! *Weights, context.* Every element is evaluated, and held to half of what it is allowed, in tiles that stay in registers
//! and caches: nothing is kept of it but the largest share of a row.

use super::{BLOCK, DOUBT, LARGEST, PROBES, Random, SEED, SMALLEST, sees, worse};
use crate::arithmetic::Accumulation;
use crate::capture::Stored;
use crate::formats::Format;
use crate::verdict::operands::{Source, Stage};
use crate::verdict::tolerance::{ELEMENT_FACTOR, of_sums};
use qdiff_engine::ops::real::{Vectorised, vectorised};
use qdiff_engine::ops::{Attention, Op, Real, Softmax, TINY, Tensor, UNIT, attn_context, attn_scores, attn_weights};
use qdiff_engine::quant::{self, ActivationFormat};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a tile.
const TILE: usize = 4;

/// Elements of a head that are read at once, and rows at most.
const ELEMENTS_AT_ONCE: usize = 1 << 18;
const ROWS_AT_ONCE: usize = 256;

/// Queries of which it is looked up how the bounds of a block differ.
const SAMPLED: usize = 32;

/// Bounds from which on an element raises doubt that is evaluated itself.
const EXACT: f64 = DOUBT * ELEMENT_FACTOR;

/// Distance of a scaled score from the largest at which its weight still is a normal f64.
const NORMAL: f64 = 700.0;

/// Lanes of a loop over f64.
const LANES: usize = 8;

/// What was seen of a row: the largest share of an element or block, and sums over the row of squared errors, and of
/// squares and fourth powers of bounds.
#[derive(Clone, Copy, Default)]
struct Row {
    share: f64,
    errors: f64,
    squares: f64,
    fourths: f64,
}

impl Row {
    /// Adds an element that is off by `error` and has this bound.
    fn element(&mut self, error: f64, bound: f64) {
        self.share = worse(self.share, error.abs(), ELEMENT_FACTOR * bound);
        let square = bound * bound;
        self.errors += error * error;
        self.squares += square;
        self.fourths += square * square;
    }

    /// The largest share of what its elements and their sum are allowed.
    fn share(&self) -> f64 {
        worse(self.share, self.errors.sqrt(), of_sums(self.squares, self.fourths))
    }
}

/// What a step of a side gives: row by row of its tokens the largest share that an error takes of what is allowed, and by
/// how many of its bounds a single element must be off to be seen.
pub(super) type Shares = (Vec<f64>, f64);

/// What is looked at: a stage of one step of one side.
struct Look<'a> {
    stage: Stage<'a>,
    source: &'a Source<'a>,
    step: usize,
    given: &'a Stored,
    positions: Vec<u32>,
    /// What the operands become.
    format: ActivationFormat,
}

/// `None` where it must be computed, or is another stage.
pub(super) fn shares(stage: Stage<'_>, source: &Source<'_>, step: usize) -> Option<Shares> {
    let (node, side) = (stage.node, source.side);
    let (rounding, at) = (&side.capture.rounding, source.step(step));
    let inputs = node.inputs.iter().map(|i| stage.graph.nodes[*i].id);
    let exact =
        rounding.output(node.id) == Format::F32 && inputs.chain([node.id]).all(|id| rounding.stored(id) == Format::F32);
    let rule = side.arithmetic.attention(at.tokens.len());
    let given = at.stages.get(&node.id)?;
    // What is prepared of keys serves the rows of a step together.
    let pays = at.rows() >= BLOCK && *given.shape() == *at.extent(node);
    if !exact || !pays || rule.accumulation == Accumulation::F16 || source.computed.is_some() {
        return None;
    }
    let look = |format| Look { stage, source, step, given, positions: at.positions(), format };
    match &node.op {
        Op::AttnScores(a) => look(rule.scores).scores(a),
        Op::AttnWeights(softmax) => look(ActivationFormat::F32).weights(softmax, side.arithmetic.functions.factor()),
        Op::AttnContext(a) if !rule.flash => look(rule.context).context(a),
        Op::AttnContext(_) | Op::Embed | Op::RmsNorm(_) | Op::Linear | Op::Bias | Op::Rope(_) | Op::KvCache(_) => None,
        Op::Residual | Op::SwiGlu => None,
    }
}

/// The keys of one head, combined.
struct Keys {
    /// Of each combination, the random number of each key by its size.
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
    fn new(keys: &[&[f64]], typical: &[f64]) -> Option<Self> {
        let d = typical.len();
        let size = |key: &&[f64]| key.iter().zip(typical).map(|(k, q)| k.abs() * q).sum::<f64>();
        let own: Vec<f64> = keys.iter().map(size).collect();
        let mut random = Random(SEED);
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

#[inline(always)]
fn fold(mut lanes: [f64; LANES]) -> f64 {
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] += lanes[i + n];
        }
    }
    lanes[0]
}

impl Look<'_> {
    /// Rows of the step, some at a time, tiles of them.
    fn chunks(&self, keys: usize) -> impl Iterator<Item = Range<usize>> {
        let (rows, some) = (self.positions.len(), ELEMENTS_AT_ONCE / keys.max(1));
        let some = some.clamp(TILE, ROWS_AT_ONCE) / TILE * TILE;
        (0..rows).step_by(some).map(move |from| from..rows.min(from + some))
    }

    /// An operand as it is multiplied.
    fn operand(&self, input: usize, rows: &Range<usize>) -> Option<Tensor<f64>> {
        let node = self.stage.node.inputs[input];
        Some(self.source.operand(self.stage.graph, node, self.step, rows)?.rounded(self.format).0)
    }

    /// Rows of the given plane `head` of `[H, T, N]`.
    fn plane<'a>(&self, of: &'a Stored, head: usize, rows: &Range<usize>) -> std::borrow::Cow<'a, [f32]> {
        let (tokens, keys) = (of.shape()[1], of.shape()[2]);
        of.flat((head * tokens + rows.start) * keys..(head * tokens + rows.end) * keys)
    }

    fn scores(&self, a: &Attention) -> Option<Shares> {
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
                Keys::new(&rows, &typical)
            })
            .collect::<Option<_>>()?;
        let mut shares = vec![0f64; self.positions.len()];
        for rows in self.chunks(keys) {
            let q = self.operand(0, &rows)?;
            let of_heads: Vec<Vec<f64>> = (0..a.n_heads)
                .into_par_iter()
                .map(|h| self.scores_of(a, h, &rows, (&q, &k), &combined[a.kv_head(h)]))
                .collect();
            largest(&mut shares[rows], &of_heads);
        }
        let seen = sampled.iter().zip(&some).map(|(t, q)| {
            let seen = attn_scores::causal(self.positions[*t], keys);
            let of = (0..a.n_heads).map(|h| {
                uneven(&q.data[h * d..][..d], &combined[a.kv_head(h)], seen, |n| &k.row(n)[a.kv_head(h) * d..][..d])
            });
            of.fold(0.0, f64::max)
        });
        Some((shares, seen.fold(EXACT, f64::max)))
    }

    /// The shares of rows of one head.
    fn scores_of(
        &self, a: &Attention, h: usize, rows: &Range<usize>, (q, k): (&Tensor<f64>, &Tensor<f64>), of: &Keys,
    ) -> Vec<f64> {
        let (d, keys, factor) = (a.head_dim, k.rows(), f64::from(attn_scores::bound_factor(a)));
        let given = self.plane(self.given, h, rows);
        let key = |n: usize| &k.row(n)[a.kv_head(h) * d..][..d];
        let query = |t: usize| &q.row(t.min(rows.len() - 1))[h * d..][..d];
        let blocks = of.absolute.len() / d;
        let (mut expected, mut reach) = (vec![0f64; TILE * blocks * PROBES], vec![0f32; TILE * blocks]);
        let (mut shares, mut combinations) = (Vec::with_capacity(rows.len()), Vec::new());
        for first in (0..rows.len()).step_by(TILE) {
            let queries: [&[f64]; TILE] = std::array::from_fn(|t| query(first + t));
            let magnitudes = queries.map(|q| q.iter().map(|q| q.abs() as f32).collect::<Vec<f32>>());
            let magnitudes: [&[f32]; TILE] = std::array::from_fn(|t| magnitudes[t].as_slice());
            let last = self.positions[rows.start + (first + TILE).min(rows.len()) - 1];
            let seen = (attn_scores::causal(last, keys) / BLOCK).next_multiple_of(TILE).min(blocks);
            for b in (0..seen * PROBES).step_by(TILE) {
                let tile = f64::tile(queries, std::array::from_fn(|i| &of.combined[(b + i) * d..][..d]));
                tile.iter().enumerate().for_each(|(t, values)| {
                    expected[t * blocks * PROBES + b..][..TILE].copy_from_slice(values);
                });
            }
            for b in (0..seen).step_by(TILE) {
                let tile = f32::tile(magnitudes, std::array::from_fn(|i| &of.absolute[(b + i) * d..][..d]));
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
                for n in combinations.len() * BLOCK..seen {
                    let (q, k) = (query(t), key(n));
                    let reach: f64 = q.iter().zip(k).map(|(q, k)| (q * k).abs()).sum();
                    row.element(f64::from(scores[n]) - f64::dot(q, k), factor * reach);
                }
                shares.push(row.share());
            }
        }
        shares
    }

    fn weights(&self, softmax: &Softmax, functions: f64) -> Option<Shares> {
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

    fn context(&self, a: &Attention) -> Option<Shares> {
        let d = a.head_dim;
        let v = self.operand(1, &(0..self.positions.len()))?;
        let keys = v.rows();
        let of_weights = self.stage.graph.nodes[self.stage.node.inputs[0]].id;
        let of_weights = self.source.step(self.step).stages.get(&of_weights)?;
        let tokens = self.positions.len();
        if v.shape != [keys, a.n_kv_heads, d]
            || *of_weights.shape() != [a.n_heads, tokens, keys]
            || !d.is_multiple_of(TILE)
        {
            return None;
        }
        // Element by element the values of all keys, and their magnitudes.
        let width = a.n_kv_heads * d;
        let mut columns = vec![0f64; width * keys];
        columns.par_chunks_exact_mut(keys).enumerate().for_each(|(c, column)| {
            column.iter_mut().zip(v.data[c..].iter().step_by(width)).for_each(|(to, v)| *to = *v);
        });
        let magnitudes: Vec<f32> = columns.iter().map(|v| v.abs() as f32).collect();
        let mut shares = vec![0f64; tokens];
        for rows in self.chunks(keys) {
            let given = self.given.flat(rows.start * a.n_heads * d..rows.end * a.n_heads * d);
            let one = |h: usize| {
                let from = a.kv_head(h) * d * keys;
                let values = (&columns[from..][..d * keys], &magnitudes[from..][..d * keys]);
                let w = self.plane(of_weights, h, &rows);
                self.context_of(d, &w, (&given, a.n_heads * d, h), values, keys)
            };
            let of_heads: Vec<Vec<Row>> = (0..a.n_heads).into_par_iter().map(one).collect();
            for (t, share) in shares[rows.clone()].iter_mut().enumerate() {
                let mut all = Row::default();
                for row in of_heads.iter().map(|rows| rows[t]) {
                    all.share = all.share.max(row.share);
                    all.errors += row.errors;
                    all.squares += row.squares;
                    all.fourths += row.fourths;
                }
                *share = all.share();
            }
        }
        Some((shares, EXACT))
    }

    /// What one head adds to the rows of its weights.
    fn context_of(
        &self, d: usize, w: &[f32], (given, width, h): (&[f32], usize, usize), (values, magnitudes): (&[f64], &[f32]),
        keys: usize,
    ) -> Vec<Row> {
        let rows = w.len() / keys;
        let mut all = vec![Row::default(); rows];
        let (mut wide, mut narrow) = (vec![0f64; TILE * keys], vec![0f32; TILE * keys]);
        for (first, tile) in (0..).step_by(TILE).zip(w.chunks(TILE * keys)) {
            // Rows that are not there stay as they were, and are not looked at.
            let wide_rows = &mut wide[..tile.len()];
            if self.format == ActivationFormat::F32 {
                f64::widen(tile, wide_rows);
            } else {
                quant::emulate(self.format, tile, wide_rows);
            }
            narrow.iter_mut().zip(&*wide_rows).for_each(|(to, w)| *to = w.abs() as f32);
            // Weights of nothing, as those of keys that are masked, add nothing.
            let bits = |block: &[f32]| block.iter().fold(0, |all, w| all | w.to_bits());
            let ends = narrow.chunks_exact(keys).map(|row| {
                let from_end = row.rchunks(BLOCK).position(|block| bits(block) != 0);
                from_end.map_or(0, |blocks| keys - blocks * BLOCK)
            });
            let end = ends.max().unwrap_or(0);
            let weights: [&[f64]; TILE] = std::array::from_fn(|t| &wide[t * keys..][..end]);
            let sizes: [&[f32]; TILE] = std::array::from_fn(|t| &narrow[t * keys..][..end]);
            for c in (0..d).step_by(TILE) {
                let expected = f64::tile(weights, std::array::from_fn(|i| &values[(c + i) * keys..][..end]));
                let reach = f32::tile(sizes, std::array::from_fn(|i| &magnitudes[(c + i) * keys..][..end]));
                for (t, row) in all[first..].iter_mut().take(TILE).enumerate() {
                    let given = &given[(first + t) * width + h * d + c..][..TILE];
                    for ((given, expected), reach) in given.iter().zip(expected[t]).zip(reach[t]) {
                        let bound = attn_context::bound_of(reach, keys);
                        row.element(f64::from(*given) - expected, f64::from(bound));
                    }
                }
            }
        }
        all
    }
}

/// Puts the largest of all heads.
fn largest(shares: &mut [f64], of_heads: &[Vec<f64>]) {
    for of_head in of_heads {
        shares.iter_mut().zip(of_head).for_each(|(share, of_head)| *share = share.max(*of_head));
    }
}

/// By how many of its bounds a score of this query must be off to be seen, in the block where they differ most beside what
/// was taken for their sizes.
fn uneven<'k>(q: &[f64], of: &Keys, seen: usize, key: impl Fn(usize) -> &'k [f64]) -> f64 {
    let by_size = |n: usize| {
        let reach: f64 = q.iter().zip(key(n)).map(|(q, k)| (q * k).abs()).sum();
        // Of the two numbers one has the sign, both about the size.
        reach * of.numbers[0][n].abs() / ((SMALLEST + LARGEST) / 2.0)
    };
    let blocks = (0..seen / BLOCK).map(|b| {
        let bounds: Vec<f64> = (b * BLOCK..(b + 1) * BLOCK).map(by_size).collect();
        sees(bounds.iter().copied())
    });
    blocks.fold(0.0, f64::max)
}

/// A row of attention weights beside its scores, of keys that are seen, in whole lanes.
struct Weights<'a> {
    /// Behind the last the first stands again.
    scores: &'a [[f32; LANES]],
    /// Behind the last there is nothing.
    given: &'a [[f32; LANES]],
    seen: usize,
    scale: f64,
    /// Of the whole row.
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
                finite[i] += f64::from((s[i] - s[i]) + (w[i] - w[i]));
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
            prop_assert!((row.share() / expected.share() - 1.0).abs() < 1e-4, "{} {}", row.share(), expected.share());
            for wrong in [f32::NAN, f32::INFINITY] {
                let mut scores = scores.clone();
                scores[off.len() % given.len()] = wrong;
                prop_assert_eq!(looked_at(&scores, &given, softmax.scale, keys).share(), f64::INFINITY);
            }
        }
    }
}
