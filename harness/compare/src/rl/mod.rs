//! A trainer and a rollout on the same tokens: how far their logprobs may be apart by rounding, and what remains.
//!
//! # What rounding allows
//!
//! Let `z` be the logits after the tokens up to position `t`, and `y` the token at `t + 1`. Its logprob is
//! `l = z[y] - log Σ exp z[i]`. An engine rounds the output of each stage `s` of the model: element `i` becomes `v[s,i] + e[s,i]` with
//! `|e[s,i]| <= b[s,i]`, the bound by which every stage is judged, from the operands and the declared arithmetic. To first order the
//! logprob is then off by `Σ g[s,i] e[s,i]`, with `g` its derivatives. Worst cases of all roundings at once say nothing: after 24
//! layers they exceed every value. So roundings are taken as independent with mean zero, as in segments. An error that is spread
//! evenly over `[-b, b]` has variance `b²/3`, no error of that size and mean zero that is spread so that larger ones are rarer has more,
//! and the logprob is off by something with variance `σ² = Σ g² b²/3`.
//!
//! The derivatives are not needed: [`RUNS`] evaluations of the model in f64, each with every element moved by such a random share of
//! its bound ([`drawn`]), give `RUNS` samples of `l`, and their variance estimates `σ²`, with all terms of higher order. Both sides round
//! independently, so the gap has variance `σ²(trainer) + σ²(rollout)`. A value with this variance, divided by its estimate from 16 samples,
//! follows Student's t with 15 degrees of freedom, which exceeds [`TIMES`] = 10 once in 20 million tokens. That is what is
//! allowed, with what the last steps add without any chance: `z[y]`, the largest logit, the logarithm and their differences are each
//! rounded once in f32, and the sum of `V` exponentials is off by `u·√V` as any sum; numbers in a text are rounded to their
//! last digit.
//!
//! Activations that are quantised move the mean too, in the same way in every run. So the gap may differ from that of the two means by
//! the above, with `1/RUNS` of the variance more for the means; and the difference of the means is what the declared arithmetics make
//! of the model themselves.
//!
//! By the same samples each side is held against their mean, which is what the model says without rounding: so it is known which of the
//! two is wrong, also where nothing but its logprobs is known.

mod given;
mod meaning;

pub use given::Given;
pub use meaning::{Left, Meaning, Means};

use crate::loaded::LoadedModel;
use crate::number::Real;
use crate::pair::{Pair, Recording};
use crate::verdict::{Seed, drawn};
use anyhow::Result;
use meaning::{Row, logprob};
use qdiff_engine::ops::UNIT;
use schemars::JsonSchema;
use serde::Serialize;

/// Evaluations that round by chance.
pub const RUNS: usize = 16;

/// Standard deviations that are allowed, by their estimate from so many runs.
pub const TIMES: f64 = 10.0;

/// Most rows of logits that are compared with reported logprobs to find out what those mean.
const ROWS: usize = 256;

/// A token of both runs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Token {
    /// Its position.
    pub position: usize,
    /// Its id.
    pub token: u32,
    /// Its text.
    pub text: String,
    /// Its logprob by the trainer.
    pub trainer: Real,
    /// By the rollout.
    pub rollout: Real,
    /// The rollout's minus the trainer's, in nats.
    pub gap: Real,
    /// How large the gap may be by rounding; absent where rounding may do anything.
    pub allowed: Option<Real>,
    /// What the gap has beyond that; 0 where it is within.
    pub remains: Real,
    /// The logprob that the model gives it in f64, without rounding.
    pub f64: Real,
}

/// What one side says of the logprobs.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct OfSide {
    /// Whether its logprobs are those that it reports; else they are computed from its logits.
    pub reported: bool,
    /// Tokens whose logprob it gives.
    pub tokens: usize,
    /// Those that are further from what the model gives in f64 than rounding allows.
    pub beyond: usize,
    /// The first of them.
    pub first_beyond: Option<usize>,
    /// What the reported ones are.
    pub means: Option<Means>,
}

/// What was found of the logprobs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Study {
    /// The tokens of which both sides give a logprob.
    pub tokens: Vec<Token>,
    /// What the trainer says of them.
    pub trainer: OfSide,
    /// What the rollout does.
    pub rollout: OfSide,
    /// Root of the mean square of the gaps, in nats.
    pub rms: Real,
    /// What rounding makes it, about: the same of the estimated deviations.
    pub expected: Real,
}

/// The logprobs of a side, by the position of the row that they follow.
struct Logprobs {
    /// The value, and by how much the last steps may be off.
    values: Vec<Option<(f64, f64)>>,
    reported: bool,
}

/// What samples say of each logprob.
struct Samples {
    mean: Vec<f64>,
    variance: Vec<f64>,
}

/// Compares the logprobs of `ids` that both sides give. `given` are those that the sides report, where they are no arrays of a capture.
///
/// # Errors
/// Numbers that fit no tokens of the run.
pub fn study(
    opened: &LoadedModel, pair: &Pair<'_>, [trainer, rollout]: [&Recording; 2], ids: &[u32], given: [Option<&Given>; 2],
) -> Result<Study> {
    let mut sides = Vec::new();
    for (side, given) in [trainer, rollout].into_iter().zip(given) {
        let reported = given.map(|given| given.placed(ids.len())).transpose()?.or_else(|| arrays(side, ids.len()));
        sides.push((side, logprobs(pair, side, ids, reported.as_deref()), reported));
    }
    let of_trainer = samples(pair, trainer, ids, 0);
    let same = trainer.manifest.arithmetic == rollout.manifest.arithmetic
        && trainer.capture.rounding == rollout.capture.rounding
        && lengths(trainer) == lengths(rollout);
    let of_rollout = if same { None } else { Some(samples(pair, rollout, ids, RUNS as u64)) };
    let drawn = [&of_trainer, of_rollout.as_ref().unwrap_or(&of_trainer)];
    let mut told = Vec::new();
    for ((side, own, reported), samples) in sides.iter().zip(drawn) {
        let mut of_side = OfSide { reported: own.reported, ..OfSide::default() };
        for (at, value) in own.values.iter().enumerate() {
            let Some((value, off)) = value else { continue };
            of_side.tokens += 1;
            let allowed = TIMES * (samples.variance[at] * (1.0 + 1.0 / RUNS as f64)).sqrt() + off;
            if (value - samples.mean[at]).abs() > allowed || value.is_nan() {
                of_side.beyond += 1;
                of_side.first_beyond.get_or_insert(at + 1);
            }
        }
        if let Some(reported) = reported {
            let rows = rows(pair, side, ids, reported, samples);
            of_side.means = Some(meaning::of(opened, &rows, ids));
        }
        told.push(of_side);
    }
    let mut tokens = Vec::new();
    let (mut squares, mut expected) = (0.0, 0.0);
    for at in 0..ids.len().saturating_sub(1) {
        let (Some((a, a_off)), Some((b, b_off))) = (sides[0].1.values[at], sides[1].1.values[at]) else { continue };
        // What the declared arithmetics differ by, known as well as means of so many samples are.
        let declared = drawn[1].mean[at] - drawn[0].mean[at];
        let variance = drawn[0].variance[at] + drawn[1].variance[at];
        let spread = TIMES * (variance * (1.0 + 1.0 / RUNS as f64)).sqrt() + a_off + b_off;
        let (gap, allowed) = (b - a, declared.abs() + spread);
        let remains = if gap.is_nan() { gap } else { ((gap - declared).abs() - spread).max(0.0) };
        squares += gap * gap;
        expected += declared * declared + variance;
        tokens.push(Token {
            position: at + 1,
            token: ids[at + 1],
            text: opened.piece(ids[at + 1]),
            trainer: Real(a),
            rollout: Real(b),
            gap: Real(gap),
            allowed: allowed.is_finite().then_some(Real(allowed)),
            remains: Real(remains),
            f64: Real(drawn[0].mean[at]),
        });
    }
    let mean = |sum: f64| Real((sum / tokens.len().max(1) as f64).sqrt());
    let (rms, expected) = (mean(squares), mean(expected));
    let mut told = told.into_iter();
    let (trainer, rollout) = (told.next().unwrap_or_default(), told.next().unwrap_or_default());
    Ok(Study { tokens, trainer, rollout, rms, expected })
}

fn lengths(side: &Recording) -> Vec<usize> {
    side.capture.steps.iter().map(|step| step.tokens.len()).collect()
}

/// Calls `each` with every row of logits that a side captured: the position that it follows, and its ids.
fn each_row(pair: &Pair<'_>, side: &Recording, mut each: impl FnMut(usize, &[f32])) {
    let Some(node) = pair.oracle.graph.nodes.last() else { return };
    for step in &side.capture.steps {
        for row in 0..step.rows() {
            if let Some(values) = crate::logits::row_of(node, step, row) {
                each(step.first + step.offset(row), &values);
            }
        }
    }
}

/// The arrays of logprobs that a side captured, by the position of the row; `None` where there is none.
fn arrays(side: &Recording, tokens: usize) -> Option<Vec<Option<(f64, f64)>>> {
    let mut all = vec![None; tokens];
    for step in &side.capture.steps {
        for (row, value) in step.logprobs.iter().flatten().enumerate() {
            let value = f64::from(*value);
            *all.get_mut(step.first + step.offset(row))? = Some((value, UNIT * value.abs()));
        }
    }
    all.pop();
    all.iter().any(Option::is_some).then_some(all)
}

/// The logprobs of a side: those that it reports, else those of its logits.
fn logprobs(pair: &Pair<'_>, side: &Recording, ids: &[u32], reported: Option<&[Option<(f64, f64)>]>) -> Logprobs {
    let mut of_logits: Vec<Option<(f64, f64)>> = vec![None; ids.len().saturating_sub(1)];
    let stored = pair.oracle.graph.nodes.last().map(|node| side.capture.rounding.stored(node.id)).unwrap_or_default();
    each_row(pair, side, |at, row| {
        if let Some(slot) = of_logits.get_mut(at) {
            let (value, off) = logprob(row, ids[at + 1] as usize);
            // A logit is off by half a step of what it was stored in, and so is the mean of all.
            let largest = row.iter().fold(0f32, |most, z| most.max(z.abs()));
            let narrow = if stored == qdiff_engine::dtype::DType::F32 {
                0.0
            } else {
                2.0 * stored.half_step(f64::from(largest))
            };
            *slot = Some((value, off + narrow));
        }
    });
    let Some(reported) = reported else { return Logprobs { values: of_logits, reported: false } };
    // What the last steps do to a number that is reported, its logits would say; of the others, what they do at most here.
    let most = of_logits.iter().flatten().map(|(_, off)| *off).fold(0.0, f64::max);
    let off = |at: usize| of_logits[at].map_or(most.max(64.0 * UNIT), |(_, off)| off);
    let value = |(at, value): (usize, &Option<(f64, f64)>)| value.map(|(value, digits)| (value, digits + off(at)));
    Logprobs { values: reported.iter().enumerate().map(value).collect(), reported: true }
}

/// Runs that round by chance, in the arithmetic of a side.
fn samples(pair: &Pair<'_>, side: &Recording, ids: &[u32], from: u64) -> Samples {
    let count = ids.len().saturating_sub(1);
    let (mut mean, mut squares) = (vec![0.0; count], vec![0.0; count]);
    for run in 0..RUNS {
        (pair.progress)("what rounding allows", run, RUNS);
        drawn(&pair.oracle, side.side(), Some(Seed(from + run as u64)), &mut |at, row| {
            if at < count {
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = row.iter().map(|z| (z - largest).exp()).sum();
                let value = row[ids[at + 1] as usize] - largest - sum.ln();
                // Welford's update of mean and squares.
                let apart = value - mean[at];
                mean[at] += apart / (run + 1) as f64;
                squares[at] += apart * (value - mean[at]);
            }
        });
    }
    (pair.progress)("what rounding allows", RUNS, RUNS);
    Samples { mean, variance: squares.into_iter().map(|s| s / (RUNS - 1) as f64).collect() }
}

/// The rows of logits by which it is seen what the reported logprobs of a side mean: its own where it captured them, else those that
/// the model gives in f64 in its arithmetic.
fn rows(
    pair: &Pair<'_>, side: &Recording, ids: &[u32], reported: &[Option<(f64, f64)>], samples: &Samples,
) -> Vec<Row> {
    let mut wanted: Vec<bool> = vec![false; ids.len()];
    let known = (0..reported.len()).filter(|at| reported[*at].is_some());
    known.take(ROWS).for_each(|at| wanted[at] = true);
    let mut all: Vec<Option<Row>> = vec![None; ids.len()];
    let row = |at: usize, logits: Vec<f32>, own: bool| {
        let (value, digits) = reported[at]?;
        let slack = digits + logprob(&logits, ids[at + 1] as usize).1;
        let slack = if own { slack } else { slack + TIMES * samples.variance[at].sqrt() };
        Some(Row { at, value, slack, logits })
    };
    each_row(pair, side, |at, logits| {
        if wanted.get(at).copied().unwrap_or(false) {
            all[at] = row(at, logits.to_vec(), true);
        }
    });
    if (0..ids.len()).any(|at| wanted[at] && all[at].is_none()) {
        drawn(&pair.oracle, side.side(), None, &mut |at, logits| {
            if wanted[at] && all[at].is_none() {
                all[at] = row(at, logits.iter().map(|z| *z as f32).collect(), false);
            }
        });
    }
    all.into_iter().flatten().collect()
}
