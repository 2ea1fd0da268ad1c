//! The stages of attention, which grow with tokens times tokens, checked without being put together.
//!
//! Scores are drawn together ([`scores`]). Weights ([`softmax`]) and context are evaluated, and held to half of what they are
//! allowed, in tiles that stay in registers and caches: nothing is kept of them but the largest share of a row.

mod scores;
mod softmax;

use super::limits::{BLOCK, DOUBT, LANES, worse};
use crate::arithmetic::Accumulation;
use crate::capture::Stored;
use crate::verdict::mode::Seed;
use crate::verdict::source::{Source, Stage};
use crate::verdict::tolerance::{ELEMENT_FACTOR, of_sums};
use qdiff_engine::dtype::DType;
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, Attention, Real, Tensor, attn_context};
use qdiff_engine::quant::{self, ActivationFormat};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// Rows and columns of a tile.
const TILE: usize = 4;

/// Elements of a head that are read at once.
const ELEMENTS_AT_ONCE: usize = 1 << 18;

/// Rows of them at most.
const ROWS_AT_ONCE: usize = 256;

/// Bounds from which on an element raises doubt that is evaluated itself.
const EXACT: f64 = DOUBT * ELEMENT_FACTOR;

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
pub(super) fn shares(stage: Stage<'_>, source: &Source<'_>, step: usize, seed: &dyn Fn() -> Seed) -> Option<Shares> {
    let (node, side) = (stage.node, source.side);
    let (rounding, at) = (&side.capture.rounding, source.step(step));
    let inputs = node.inputs.iter().map(|i| stage.graph.nodes[*i].id);
    let exact =
        rounding.output(node.id) == DType::F32 && inputs.chain([node.id]).all(|id| rounding.stored(id) == DType::F32);
    let rule = side.arithmetic.attention(at.tokens.len());
    let given = at.stages.get(&node.id)?;
    // What is prepared of keys serves the rows of a step together.
    let pays = at.rows() >= BLOCK && *given.shape() == *at.extent(node);
    if !exact || !pays || rule.accumulation == Accumulation::F16 || source.computed.is_some() {
        return None;
    }
    let look = |format| Look { stage, source, step, given, positions: at.positions(), format };
    match node.op.anatomy() {
        // There the query alone is rounded.
        Anatomy::Contraction(Contraction::Scores(_)) if rule.scores.block_size() > 1 => None,
        Anatomy::Contraction(Contraction::Scores(a)) => look(rule.scores).scores(a, seed()),
        Anatomy::RowReduction(RowReduction::Exponentials(softmax)) => {
            look(ActivationFormat::F32).weights(softmax, side.arithmetic.functions.factor())
        }
        Anatomy::Contraction(Contraction::Context(a)) if !rule.flash && !rule.log_sum_exp => {
            look(rule.context).context(a)
        }
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => None,
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => None,
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
    fn plane<'a>(&self, of: &'a Stored, head: usize, rows: &Range<usize>) -> Cow<'a, [f32]> {
        let (tokens, keys) = (of.shape()[1], of.shape()[2]);
        of.flat((head * tokens + rows.start) * keys..(head * tokens + rows.end) * keys)
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
