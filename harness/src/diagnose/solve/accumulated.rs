//! What was accumulated in fewer bits: a running sum that is rounded to bf16 or f16 whenever something is added to it, or
//! partial sums that are.
//!
//! A sum `Σ p_i` is dealt out to lanes, runs of so many terms in turn, as the threads of a warp or the registers of a tile
//! take them. A lane adds so many terms at a time to its sum, which is rounded each time; the sums of the lanes are added
//! up exactly, or rounded again one after the other or in a tree. Which way is tried on a few of the wrong elements, and
//! must then give all. A sum so near the middle between two numbers of the format that f32 arithmetic may decide either way
//! says nothing. Sums of products are of this kind, the mean of squares of a norm, and the sum that weights are divided by.

use super::rounded::HALVES;
use super::scene::Scene;
use super::terms::Sums;
use super::{Law, Row, allowed, keys, norm};
use crate::verdict::RowAt;
use qdiff_engine::ops::{Op, UNIT};
use std::rc::Rc;

/// How the sums of the lanes become one.
#[derive(Clone, Copy, PartialEq)]
enum Joined {
    Exactly,
    InTurn,
    InATree,
}

/// What is rounded.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    /// The running sum, each time.
    Running,
    /// What is added to it, and not the sum itself.
    Parts,
}

/// One way to accumulate.
#[derive(Clone, Copy)]
struct Way {
    format: (&'static str, fn(f64) -> f64),
    kept: Kept,
    /// Lanes, and terms in a row that one of them takes.
    lanes: usize,
    run: usize,
    /// Terms of a lane that are added up before its sum is rounded.
    at_once: usize,
    joined: Joined,
    /// Whether each term is rounded too.
    terms: bool,
}

/// How far f32 arithmetic may be off the exact sum before it is rounded, relative to all that was added.
const OFF: f64 = 2.0 * UNIT;

/// Elements that a way is tried on, and how many of them it must give: others may be near the middle.
const TRIED: usize = 10;
const GIVEN: usize = 6;

/// Error over size that such rounding makes, beyond which no way is tried.
const SIZES: std::ops::Range<f64> = 1e-6..0.3;

impl Way {
    /// The sum, and how far it may go the other way where a rounding was decided by less than f32 arithmetic is off: NaN.
    fn sum(&self, terms: &[f64]) -> f64 {
        let round = self.format.1;
        let mut sure = true;
        let mut kept = |x: f64, size: f64| {
            let (low, high) = (round(x - OFF * size), round(x + OFF * size));
            sure &= low == high;
            round(x)
        };
        let term = |p: f64| if self.terms { round(p) } else { p };
        // The running sum of each lane, what it has not yet added, and of how many terms and what size that is.
        let mut sums = vec![0f64; self.lanes];
        let mut open = vec![(0f64, 0usize, 0f64); self.lanes];
        let mut add = |sum: &mut f64, (part, _, size): (f64, usize, f64)| match self.kept {
            Kept::Running => *sum = kept(*sum + part, if self.at_once == 1 { (*sum + part).abs() } else { sum.abs() + size }),
            Kept::Parts => *sum += kept(part, size),
        };
        for (i, p) in terms.iter().enumerate() {
            let lane = i / self.run % self.lanes;
            let p = term(*p);
            let part = &mut open[lane];
            *part = (part.0 + p, part.1 + 1, part.2 + p.abs());
            if part.1 == self.at_once {
                add(&mut sums[lane], std::mem::take(part));
            }
        }
        for (sum, part) in sums.iter_mut().zip(open).filter(|(_, part)| part.1 > 0) {
            add(sum, part);
        }
        let both = |a: f64, b: f64| round(a + b);
        let total = match self.joined {
            Joined::Exactly => sums.iter().sum(),
            Joined::InTurn => sums.iter().copied().reduce(both).unwrap_or(0.0),
            Joined::InATree => {
                let mut left = sums;
                while left.len() > 1 {
                    let half = left.len() / 2;
                    left = (0..half).map(|i| both(left[i], left[i + half])).collect();
                }
                left[0]
            }
        };
        if sure { total } else { f64::NAN }
    }

    /// The ways to add up so many terms.
    fn all(terms: usize) -> Vec<Self> {
        let powers = |top: usize| (0..=8).map(|b| 1usize << b).filter(move |n| *n <= top);
        let mut all = Vec::new();
        for format in HALVES {
            let way = Self { format, kept: Kept::Running, lanes: 1, run: 1, at_once: 1, joined: Joined::Exactly, terms: false };
            for lanes in powers(terms / 2) {
                let each = terms.div_ceil(lanes);
                let sizes = || powers(each - 1).chain([each]);
                for run in [1, 2, 4, 8, 16, 32].into_iter().filter(|run| if lanes == 1 { *run == 1 } else { run * lanes <= terms }) {
                    for at_once in sizes() {
                        let joins: &[Joined] = match lanes {
                            1 => &[Joined::Exactly],
                            _ => &[Joined::Exactly, Joined::InTurn, Joined::InATree],
                        };
                        for &joined in joins {
                            let way = Self { lanes, run, at_once, joined, ..way };
                            all.push(way);
                            all.extend((at_once < each).then_some(Self { terms: true, ..way }));
                        }
                    }
                }
                // Each part of a run of its own: split sums.
                let run = terms.div_ceil(lanes);
                if lanes > 1 && !run.is_power_of_two() {
                    all.extend([Joined::Exactly, Joined::InTurn, Joined::InATree].map(|joined| Self { lanes, run, at_once: run, joined, ..way }));
                }
            }
            // What is added is rounded, and the sum is not.
            all.extend(powers(terms - 1).map(|at_once| Self { kept: Kept::Parts, at_once, ..way }));
        }
        all
    }

    /// In words, of sums of these terms.
    fn told(&self, sum: &str, many: &str) -> String {
        let name = self.format.0;
        if self.kept == Kept::Parts {
            return match self.at_once {
                1 => format!("each term of {sum} is rounded to {name} before it is added"),
                n => format!("each sum of {n} {many} is rounded to {name} before it is added to {sum}"),
            };
        }
        let lanes = match (self.lanes, self.run) {
            (1, _) => String::new(),
            (n, 1) => format!(", in {n} lanes, {many} modulo {n},"),
            (n, run) => format!(", in {n} lanes of {run} {many} in turn,"),
        };
        let when = match self.at_once {
            1 => format!("after every one of the {many}"),
            n => format!("after every {n} {many}"),
        };
        let of = if self.lanes == 1 { "" } else { " of a lane" };
        let joined = match self.joined {
            Joined::Exactly => "",
            Joined::InTurn => ", and the lanes' sums are added in it one after the other",
            Joined::InATree => ", and the lanes' sums are added in it as a tree",
        };
        let terms = if self.terms { ", and so is each term" } else { "" };
        format!("{sum} is accumulated in {name}{lanes} rounded {when}{of}{joined}{terms}")
    }
}

/// The terms of the sum that element `i` of a row is made of.
type Terms<'a> = Rc<dyn Fn(&RowAt, usize) -> Option<Vec<f64>> + 'a>;

/// The element that such a sum makes, given the exact one.
type Made<'a> = Rc<dyn Fn(&RowAt, usize, f64) -> Option<f64> + 'a>;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some((sum, many, terms, made)) = operation(scene) else {
        return Vec::new();
    };
    let elements: Vec<(f64, f64, f32)> = scene.fit.iter().map(|&at| scene.element(at)).collect();
    let squares = |f: fn(&(f64, f64, f32)) -> f64| elements.iter().map(|e| f(e).powi(2)).sum::<f64>();
    if !SIZES.contains(&(squares(|(g, w, _)| g - w) / squares(|(_, w, _)| *w)).sqrt()) {
        return Vec::new();
    }
    // Long sums show most; of several rows.
    let step = (scene.fit.len() / (2 * TRIED)).max(1);
    let mut tried: Vec<((usize, usize), Vec<f64>)> = scene
        .fit
        .iter()
        .rev()
        .step_by(step)
        .filter_map(|&(r, i)| Some(((r, i), terms(&scene.e.rows[r], i)?)))
        .take(2 * TRIED)
        .collect();
    tried.sort_by_key(|(_, t)| std::cmp::Reverse(t.len()));
    tried.truncate(TRIED);
    let Some(longest) = tried.first().map(|(_, t)| t.len()).filter(|n| *n >= 2 && tried.len() >= GIVEN) else {
        return Vec::new();
    };
    let gives = |way: &Way| {
        let mut missed = 0;
        for ((r, i), terms) in &tried {
            let (row, (got, _, bound)) = (&scene.e.rows[*r], scene.element((*r, *i)));
            let given = made(row, *i, way.sum(terms));
            missed += usize::from(given.is_none_or(|v| {
                v.is_nan() || (got - v).abs() > allowed(v, bound) + scene.e.grain.reach(got as f32)
            }));
            if missed > tried.len() - GIVEN {
                return false;
            }
        }
        true
    };
    let ways = Way::all(longest).into_iter().filter(gives);
    ways.map(|way| {
        let (terms, made) = (terms.clone(), made.clone());
        Law::new(way.told(sum, many), 2, move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            let value = |i: usize| Some(made(row, i, way.sum(&terms(row, i)?))?);
            let value: Vec<f64> = (0..want.len()).map(|i| value(i).unwrap_or(f64::NAN)).collect();
            Some(Row { value, bound: bound.to_vec() })
        })
    })
    .collect()
}

/// What the sum is called, and its terms; these, and what is made of it.
fn operation<'a>(scene: &'a Scene<'a>) -> Option<(&'static str, &'static str, Terms<'a>, Made<'a>)> {
    let itself: Made<'a> = Rc::new(|_, _, sum| Some(sum));
    match &scene.node().op {
        op @ (Op::Linear | Op::AttnScores(_) | Op::AttnContext(_)) => {
            let sums = Sums::new(scene)?;
            let terms = move |row: &RowAt, i: usize| {
                let (a, b) = sums.factors(row, i)?;
                Some(a.iter().zip(&b).map(|(a, b)| a * b).collect())
            };
            let (_, many) = super::terms::term(op);
            Some(("the sum", many, Rc::new(terms), itself))
        }
        Op::RmsNorm(rms) => {
            let run = scene.width()? / rms.groups;
            let own = scene.vector(&scene.node().weights[0].name, run);
            let part = move |row: &RowAt, i: usize| -> Option<Vec<f64>> {
                Some(norm::operand(scene, row, 0)?.get(i / run * run..)?.get(..run)?.to_vec())
            };
            let terms = move |row: &RowAt, i: usize| Some(part(row, i)?.iter().map(|v| v * v).collect());
            let eps = rms.eps;
            let made = move |row: &RowAt, i: usize, sum: f64| {
                Some(norm::operand(scene, row, 0)?.get(i)? / (sum / run as f64 + eps).sqrt() * f64::from(own[i % run]))
            };
            Some(("the sum of squares", "elements", Rc::new(terms), Rc::new(made)))
        }
        Op::AttnWeights(softmax) => {
            let scale = softmax.scale;
            let exponentials = move |row: &RowAt| -> Option<Vec<f64>> {
                let of = |s: &[f64], p: usize, n: usize| {
                    let seen = &s[..(p + 1).min(n)];
                    let top = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    seen.iter().map(|s| (s - top).exp()).chain(std::iter::repeat(0.0)).take(n).collect()
                };
                Some(keys::weights(scene, scale, row, of)?.value)
            };
            let terms = move |row: &RowAt, _: usize| {
                exponentials(row).map(|mut e| {
                    e.truncate(row.place.position + 1);
                    e
                })
            };
            let made = move |row: &RowAt, i: usize, sum: f64| Some(exponentials(row)?.get(i)? / sum);
            Some(("the sum that weights are divided by", "keys", Rc::new(terms), Rc::new(made)))
        }
        Op::Embed | Op::Bias | Op::Rope(_) | Op::KvCache(_) | Op::Residual | Op::SwiGlu => None,
    }
}
