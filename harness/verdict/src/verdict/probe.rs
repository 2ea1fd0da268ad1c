//! Linear layers checked without being computed (Freivalds 1979).
//!
//! For `y = W·x` of m outputs, blocks of [`BLOCK`] outputs are drawn together with random numbers r: once per block
//! `u = rᵀ·W`, reading every weight once, and then for each row `r·y − u·x = r·e`, the error of the block's outputs in a
//! random combination, for `n + BLOCK` operations instead of `BLOCK·n`. All in f64, on the operands that the runner
//! multiplies, quantised as it declares.
//!
//! *Allowed.* The bound of an output is `b = u·√n·Σ|w·x|` ([`qdiff_engine::ops::linear`]). Over a block `Σb` is linear in
//! `|x|` as well, so one more vector `Σ|W|` gives `a = Σb/√BLOCK`, which is no more than `‖b‖`. A row is doubted from half
//! of `a` on in any block, or half of `‖a‖` over all of its blocks, and then is computed; so is every row of a side of
//! which one turns out wrong, and so are always the few that come nearest to doubt, of which reports tell the errors.
//! Probes alone never convict.
//!
//! *Seen.* Errors of a right engine are independent between outputs, so that `r·e` is within `λ·‖r∘b‖` with probability
//! `1 − 2·exp(−λ²/2)`: a single output off by more than `(a/2 + λ·‖r∘b‖)/|r|` raises doubt (see [`sees`]); what rounding
//! makes of `r·e` is much less than that, and doubt begins at about 3 bounds. Outputs share a block with those of like
//! weights alone, so that none hides among larger ones; and a row that few inputs carry, whose outputs' bounds do not go
//! with the size of their weights, is computed. Errors of several outputs of a block may cancel: r is drawn from a
//! continuum, so that no two are equal, and twice; and neighbours, of which faults take several at once, share no block.
//! [`MISSED`] is how often they still cancel.
//!
//! *Not foreseen.* The numbers are drawn from a hash of the very values and weights ([`Seed`]), so that a verdict is the same
//! whenever it is made, and nobody can write errors that they do not see: other errors make other numbers. Blocks, and the
//! rows that are always computed, need no secret: the first follow from the weights, the others from what the numbers see.

mod attention;
mod limits;
mod random;

pub(super) use random::Random;
pub use random::{MISSED, SEVERAL};

use super::mode::{CheckMode, Seed};
use super::source::{Passed, Source, Stage};
use crate::arithmetic::Accumulation;
use crate::memory::{PROBED_ROWS, PROBED_WEIGHTS};
use limits::{BLOCK, DOUBT, LANES, PROBES, worse};
use ndarray::{ArrayView1, ArrayView2};
use qdiff_engine::dtype::DType;
use qdiff_engine::isa::{Vectorised, vectorised};
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, Real, linear};
use qdiff_engine::quant::{self, ActivationFormat, AsMultiplied, WeightSource};
use random::sees;
use rayon::prelude::*;
use std::cell::OnceCell;
use std::ops::Range;

/// Rows of a side that are computed in any case: those nearest to doubt.
const COMPUTED: usize = 4;

/// Rows that are taken through the weights together.
const ROWS_AT_ONCE: usize = 512;

/// Blocks whose combinations a thread holds at once.
const BLOCKS_AT_ONCE: usize = 64;

/// Rows are held as f64 and their magnitudes as f32, and so are combinations of weights and sums of magnitudes.
const _: () = assert!(12 * ROWS_AT_ONCE == PROBED_ROWS && (8 * PROBES + 4) * BLOCKS_AT_ONCE == PROBED_WEIGHTS);

/// Products, of rows and weights, from which on probes save time.
const PAYS: usize = 1 << 27;

/// Queries times keys of a step from which on they do.
const PAYS_PAIRS: usize = 1 << 16;

/// Rows from which on they do: the weights are read three times.
const PAYS_ROWS: usize = 128;

/// Outputs of a block are no more than so many times as large as the smallest, by the sum of their weights' magnitudes.
const ALIKE: f32 = 2.0;

/// Inputs that carry a row, `(Σ|x|)²/Σx²`, below which it is computed.
const CARRIERS: f64 = 32.0;

/// Rows of one step of a side, of one format of activations.
struct Part<'a> {
    source: &'a Source<'a>,
    step: usize,
    rows: Range<usize>,
    format: ActivationFormat,
}

/// Outputs of a block, and the random numbers of each, of each combination one.
struct Block {
    outputs: Vec<usize>,
    numbers: Vec<[f64; PROBES]>,
}

/// By side, share of what is allowed, step and row.
type Shares = Vec<Vec<(f64, usize, usize)>>;

/// The rows that need not be computed; `None` where that saves nothing. The random numbers are drawn from the values where no
/// seed is given.
pub(super) fn passed(
    stage: Stage<'_>, sides: &[Source<'_>], (mode, seed): (CheckMode, Option<Seed>),
) -> Option<Passed> {
    let node = stage.node;
    if mode == CheckMode::Full || !node.faults.none() {
        return None;
    }
    let count = sides.iter().map(|source| source.index + 1).max()?;
    // Hashed once, where anything is looked at.
    let drawn = OnceCell::new();
    let seed = || *drawn.get_or_init(|| seed.unwrap_or_else(|| Seed::of(stage, sides)));
    let (mut shares, sees) = match node.op.anatomy() {
        Anatomy::Contraction(Contraction::Weight(None)) => layers(stage, sides, (mode, count), &seed)?,
        Anatomy::Contraction(Contraction::Scores(_) | Contraction::Context(_))
        | Anatomy::RowReduction(RowReduction::Exponentials(_)) => attended(stage, sides, (mode, count), &seed)?,
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => {
            return None;
        }
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => return None,
    };
    let mut passed = Passed { rows: vec![Vec::new(); count], sees, seed: drawn.get().copied() };
    for source in sides {
        let steps = &source.side.capture.steps;
        passed.rows[source.index] = steps.iter().map(|step| vec![false; step.rows()]).collect();
        let of_side = &mut shares[source.index];
        of_side.retain(|(_, index, row)| {
            let step = source.step(*index);
            source.asked(step, &(*row..*row + 1)) && step.has_row(node.id, step.first + step.offset(*row))
        });
        of_side.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (share, step, row) in of_side.iter().skip(COMPUTED) {
            passed.rows[source.index][*step][*row] = *share <= DOUBT;
        }
    }
    Some(passed)
}

/// Those of the stages of attention.
fn attended(
    stage: Stage<'_>, sides: &[Source<'_>], (mode, count): (CheckMode, usize), seed: &dyn Fn() -> Seed,
) -> Option<(Shares, f64)> {
    let (mut all, mut sees) = (vec![Vec::new(); count], 0f64);
    for source in sides {
        for &index in &source.steps {
            let step = source.step(index);
            if mode == CheckMode::Auto && (step.rows() < PAYS_ROWS || step.rows() * step.keys() < PAYS_PAIRS) {
                continue;
            }
            if let Some((shares, of_step)) = attention::shares(stage, source, index, seed) {
                sees = sees.max(of_step);
                all[source.index].extend((0..).zip(shares).map(|(row, share)| (share, index, row)));
            }
        }
    }
    all.iter().any(|shares| !shares.is_empty()).then_some((all, sees))
}

/// Those of a linear layer.
fn layers(
    stage: Stage<'_>, sides: &[Source<'_>], (mode, count): (CheckMode, usize), seed: &dyn Fn() -> Seed,
) -> Option<(Shares, f64)> {
    let weight = stage.node.weights.first()?;
    let (n, m) = stage.weights.extent(&weight.name);
    let parts: Vec<Part<'_>> = sides.iter().flat_map(|source| parts(stage, source, &weight.name)).collect();
    let total: usize = parts.iter().map(|part| part.rows.len()).sum();
    match mode {
        CheckMode::Auto if total < PAYS_ROWS || total * n * m < PAYS => return None,
        _ if total == 0 => return None,
        _ => {}
    }
    let (mut shares, mut sees): (Shares, _) = (vec![Vec::new(); count], 0f64);
    let mut formats: Vec<ActivationFormat> = Vec::new();
    for part in &parts {
        if !formats.contains(&part.format) {
            formats.push(part.format);
        }
    }
    for format in formats {
        let weights = AsMultiplied(stage.weights, format);
        let (blocks, of_format) = blocks(&weights, &weight.name, seed().random(0));
        sees = sees.max(of_format);
        let mut rest = parts.iter().filter(|part| part.format == format).peekable();
        while rest.peek().is_some() {
            let mut room = ROWS_AT_ONCE;
            let batch: Vec<&Part<'_>> = std::iter::from_fn(|| {
                let part = rest.next_if(|part| part.rows.len() <= room)?;
                room -= part.rows.len();
                Some(part)
            })
            .collect();
            let mut of_rows = probed(stage, &weights, &batch, &blocks).into_iter();
            for part in batch {
                let with_place = part.rows.clone().zip(of_rows.by_ref());
                shares[part.source.index].extend(with_place.map(|(row, share)| (share, part.step, row)));
            }
        }
    }
    Some((shares, sees))
}

/// What of a side can be probed: rows asked for, in an arithmetic whose errors the bound of the sums holds alone.
fn parts<'a>(stage: Stage<'_>, source: &'a Source<'a>, name: &str) -> Vec<Part<'a>> {
    let node = stage.node;
    let (side, input) = (source.side, stage.graph.nodes[node.inputs[0]].id);
    let rounding = &side.capture.rounding;
    let (ty, (n, m)) = (stage.weights.ggml_type(name), stage.weights.extent(name));
    let plain = side.arithmetic.parameters == DType::F32
        && [rounding.output(node.id), rounding.stored(node.id), rounding.stored(input)]
            .iter()
            .all(|f| *f == DType::F32);
    let mut parts = Vec::new();
    for &index in source.steps.iter().filter(|_| plain && source.computed.is_none()) {
        let step = source.step(index);
        let rule = side.arithmetic.linear(ty, step.tokens.len());
        let exact = rule.accumulation != Accumulation::F16 && rule.output == DType::F32;
        let shapes = [(input, n), (node.id, m)];
        let whole = shapes
            .iter()
            .all(|(id, width)| step.stages.get(id).is_some_and(|stored| *stored.shape() == [step.rows(), *width]));
        // What a quantiser leaves uncertain of every row is no error of the sums.
        let plain = rule.activations == ActivationFormat::F32;
        let uncertain = !plain && quant::settled(rule.activations, &[1.0]) != [0.0];
        if !exact || !whole || uncertain || quant::takes_sums(ty, rule.activations) {
            continue;
        }
        for from in (0..step.rows()).step_by(ROWS_AT_ONCE) {
            let rows = from..step.rows().min(from + ROWS_AT_ONCE);
            if source.asked(step, &rows) {
                parts.push(Part { source, step: index, rows, format: rule.activations });
            }
        }
    }
    parts
}

/// Outputs in the order of their weights' size, in blocks; and what is seen in them.
fn blocks(weights: &dyn WeightSource, name: &str, mut random: Random) -> (Vec<Block>, f64) {
    let (n, m) = weights.extent(name);
    let size = |row: &mut Vec<f32>, output: usize| {
        weights.rows(name, output, row);
        vectorised(Sums(row)).0 as f32
    };
    let sizes: Vec<f32> = (0..m).into_par_iter().map_init(|| vec![0f32; n], size).collect();
    let mut outputs: Vec<usize> = (0..m).collect();
    outputs.sort_by(|a, b| sizes[*a].total_cmp(&sizes[*b]));
    let (mut blocks, mut seen) = (Vec::new(), 0f64);
    let mut rest = outputs.as_slice();
    while let Some(&smallest) = rest.first() {
        let alike = |output: &&usize| sizes[**output] <= ALIKE * sizes[smallest];
        let count = rest.iter().take(BLOCK).take_while(alike).count().max(1);
        let (outputs, more) = rest.split_at(count);
        rest = more;
        seen = seen.max(sees(outputs.iter().map(|o| f64::from(sizes[*o]))));
        let numbers = outputs.iter().map(|_| std::array::from_fn(|_| random.number())).collect();
        blocks.push(Block { outputs: outputs.to_vec(), numbers });
    }
    (blocks, seen)
}

/// The largest error / bound ratio for each row of the parts; infinity where it is unknown.
fn probed(stage: Stage<'_>, weights: &dyn WeightSource, parts: &[&Part<'_>], blocks: &[Block]) -> Vec<f64> {
    let node = stage.node;
    let name = &node.weights[0].name;
    let n = weights.extent(name).0;
    let (mut rows, mut given, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        operands(stage, part, n, &mut rows, &mut shares);
        combinations(stage, part, blocks, &mut given);
    }
    let magnitudes: Vec<f32> = rows.iter().map(|v| v.abs() as f32).collect();
    let (x, magnitudes) = (matrix(&rows, n), matrix(&magnitudes, n));
    let factor = f64::from(linear::bound_factor(n));
    // For each row of some blocks: the largest ratio, and squares of the errors and of the bounds.
    let of_some = |(chunk, blocks_of): (usize, &[Block])| {
        let (combined, absolute) = combine(weights, name, n, blocks_of);
        let expected = x.dot(&matrix(&combined, n).t());
        let reach = magnitudes.dot(&matrix(&absolute, n).t());
        let of_row = |(row, (expected, reach)): (usize, (ArrayView1<'_, f64>, ArrayView1<'_, f32>))| {
            let first = (row * blocks.len() + chunk * BLOCKS_AT_ONCE) * PROBES;
            let mut of_row = (0f64, 0f64, 0f64);
            for (b, block) in blocks_of.iter().enumerate() {
                let allowed = factor * f64::from(reach[b]) / (block.outputs.len() as f64).sqrt();
                for probe in b * PROBES..(b + 1) * PROBES {
                    let error = (given[first + probe] - expected[probe]).abs();
                    of_row.0 = worse(of_row.0, error, allowed);
                    of_row.1 += error * error / PROBES as f64;
                }
                of_row.2 += allowed * allowed;
            }
            of_row
        };
        expected.rows().into_iter().zip(reach.rows()).enumerate().map(of_row).collect::<Vec<_>>()
    };
    let of_all: Vec<Vec<(f64, f64, f64)>> = blocks.par_chunks(BLOCKS_AT_ONCE).enumerate().map(of_some).collect();
    let together = |(row, share): (usize, f64)| {
        let of_row = of_all.iter().map(|of_some| of_some[row]);
        let (largest, errors, allowances) =
            of_row.fold((share, 0.0, 0.0), |all, some| (all.0.max(some.0), all.1 + some.1, all.2 + some.2));
        worse(largest, errors.sqrt(), allowances.sqrt())
    };
    shares.into_iter().enumerate().map(together).collect()
}

/// Rows of `n` numbers.
fn matrix<F>(numbers: &[F], n: usize) -> ArrayView2<'_, F> {
    ArrayView2::from_shape((numbers.len() / n.max(1), n), numbers).expect("whole rows")
}

/// Appends the rows that the runner multiplied, and infinity for those that it may have rounded this way or that.
fn operands(stage: Stage<'_>, part: &Part<'_>, n: usize, rows: &mut Vec<f64>, shares: &mut Vec<f64>) {
    let input = stage.graph.nodes[stage.node.inputs[0]].id;
    let x = part.source.step(part.step).stages[&input].slice(0, part.rows.clone()).data;
    let from = rows.len();
    rows.resize(from + x.len(), 0.0);
    let (values, plain) = (&mut rows[from..], part.format == ActivationFormat::F32);
    if plain {
        values.iter_mut().zip(&x).for_each(|(v, x)| *v = f64::from(*x));
    } else {
        quant::emulate(part.format, &x, values);
    }
    for (x, values) in x.chunks_exact(n).zip(values.chunks_exact(n)) {
        let settled = plain || quant::ties(part.format, x).is_empty();
        let (sum, squares) = vectorised(Sums(values));
        // Not of a row of zeros, and false of NaN.
        let carried = squares == 0.0 || sum * sum >= CARRIERS.min(n as f64 / 4.0) * squares;
        let sure = settled && carried && squares.is_finite();
        shares.push(if sure { 0.0 } else { f64::INFINITY });
    }
}

/// The sums of magnitudes and of squares, in lanes.
struct Sums<'a, T>(&'a [T]);

impl<T: Copy + Into<f64>> Vectorised for Sums<'_, T> {
    type Output = (f64, f64);

    #[inline(always)]
    fn run(self) -> (f64, f64) {
        let (mut sums, mut squares) = ([0f64; LANES], [0f64; LANES]);
        let (parts, rest) = self.0.as_chunks::<LANES>();
        let mut add = |i: usize, v: f64| {
            sums[i] += v.abs();
            squares[i] += v * v;
        };
        parts.iter().for_each(|part| (0..LANES).for_each(|i| add(i, part[i].into())));
        rest.iter().enumerate().for_each(|(i, v)| add(i, (*v).into()));
        (sums.iter().sum(), squares.iter().sum())
    }
}

/// Appends what the runner's outputs are in each combination of each block, row by row.
fn combinations(stage: Stage<'_>, part: &Part<'_>, blocks: &[Block], given: &mut Vec<f64>) {
    let stored = &part.source.step(part.step).stages[&stage.node.id];
    // A few rows at a time: of a vocabulary they are long.
    for from in part.rows.clone().step_by(16) {
        let y = stored.slice(0, from..part.rows.end.min(from + 16));
        let of_row = |row: usize| {
            let y = y.row(row);
            let of_block = |block: &Block| {
                let pairs = block.outputs.iter().zip(&block.numbers);
                pairs.fold([0f64; PROBES], |sums, (output, numbers)| {
                    let y = f64::from(y[*output]);
                    std::array::from_fn(|probe| sums[probe] + numbers[probe] * y)
                })
            };
            blocks.iter().map(of_block).collect::<Vec<_>>()
        };
        let of_rows: Vec<Vec<[f64; PROBES]>> = (0..y.rows()).into_par_iter().map(of_row).collect();
        of_rows.iter().for_each(|row| given.extend_from_slice(row.as_flattened()));
    }
}

/// The combinations of each block's weights, and the sum of their magnitudes.
fn combine(weights: &dyn WeightSource, name: &str, n: usize, blocks: &[Block]) -> (Vec<f64>, Vec<f32>) {
    let (mut combined, mut absolute) = (vec![0f64; blocks.len() * PROBES * n], vec![0f32; blocks.len() * n]);
    let by_block = combined.par_chunks_mut(PROBES * n).zip(absolute.par_chunks_mut(n)).zip(blocks);
    let room = || (vec![0f32; n], vec![0f64; n]);
    by_block.for_each_init(room, |(row, wide), ((combined, absolute), block)| {
        for (i, output) in block.outputs.iter().enumerate() {
            weights.rows(name, *output, row);
            f64::widen(row, wide);
            for (sums, number) in combined.chunks_exact_mut(n).zip(block.numbers[i]) {
                f64::axpy(number, wide, sums);
            }
            absolute.iter_mut().zip(&*row).for_each(|(sum, w)| *sum += w.abs());
        }
    });
    (combined, absolute)
}

#[cfg(test)]
mod tests;
