//! What was accumulated in fewer bits: a running sum that is rounded to bf16 or f16 whenever something is added to it, or
//! partial sums that are.
//!
//! A sum `Σ p_i` is dealt out to lanes, runs of so many terms in turn, as the threads of a warp or the registers of a tile
//! take them. A lane adds so many terms at a time to its sum, which is rounded each time; the sums of the lanes are added
//! up exactly, or rounded again one after the other or in a tree. Which way is tried on a few of the wrong elements, and
//! must then give all. A sum so near the middle between two numbers of the format that f32 arithmetic may decide either way
//! says nothing. Sums of products are of this kind, the mean of squares of a norm, and the sum that weights are divided by.

use super::held::allowed;
use super::rounded::{HALVES, Rounding};
use super::scene::Scene;
use super::terms::Sums;
use super::{Law, Row, attended, norm};
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, UNIT};
use rayon::prelude::*;
use std::collections::HashMap;
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

/// Which factors of the products are rounded before.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Factors {
    Neither,
    Left,
    Right,
    Both,
}

/// One way to accumulate.
#[derive(Clone, Copy)]
struct Way {
    format: Rounding,
    kept: Kept,
    factors: Factors,
    /// Terms of a run that is summed so separately; the runs are added exactly. All terms if there is one run.
    chunk: usize,
    /// Lanes, and terms in a row that one of them takes.
    lanes: usize,
    run: usize,
    /// Terms of a lane that are added up before its sum is rounded.
    at_once: usize,
    joined: Joined,
    /// Whether the first lane takes all terms behind the last whole round of the lanes.
    rest_in_first: bool,
    /// Whether each term is rounded too.
    terms: bool,
}

/// How far f32 arithmetic may be off the exact sum before it is rounded, relative to all that was added.
const OFF: f64 = 2.0 * UNIT;

/// Elements that a way is tried on, of which so many are needed, and how many of them it must give: the others may all be near
/// the middle. None of them may be otherwise.
const TRIED: usize = 10;
const NEEDED: usize = 6;
const GIVEN: usize = 3;

impl Way {
    /// The sum; NaN where a rounding was decided by less than f32 arithmetic is off.
    fn sum(&self, mut terms: Vec<f64>) -> f64 {
        if self.terms {
            terms.iter_mut().for_each(|p| *p = self.format.1(*p));
        }
        self.sums(&terms, &[self.joined]).map_or(f64::NAN, |sums| sums[0])
    }

    /// The sums of terms, which are rounded where they should be, with the lanes' sums joined in each of these ways.
    fn sums(&self, terms: &[f64], joined: &[Joined]) -> Option<Vec<f64>> {
        let mut sums = vec![0f64; joined.len()];
        for chunk in terms.chunks(self.chunk) {
            let lanes = self.lanes(chunk)?;
            sums.iter_mut().zip(joined).for_each(|(sum, joined)| *sum += self.join(&lanes, *joined));
        }
        Some(sums)
    }

    /// The sum of each lane.
    fn lanes(&self, terms: &[f64]) -> Option<Vec<f64>> {
        let round = self.format.1;
        let kept = |x: f64, size: f64| {
            let (low, high) = (round(x - OFF * size), round(x + OFF * size));
            (low == high).then_some(low)
        };
        let add = |sum: f64, part: f64, size: f64| match self.kept {
            Kept::Running => {
                kept(sum + part, if self.at_once == 1 { (sum + part).abs() + size } else { sum.abs() + size })
            }
            Kept::Parts => Some(sum + kept(part, size)?),
        };
        // Terms that all lanes take in turn; the first lane takes those behind them.
        let even = if self.rest_in_first {
            terms.len() / (self.run * self.lanes) * self.run * self.lanes
        } else {
            terms.len()
        };
        let (in_turn, rest) = terms.split_at(even);
        let lane = |lane: usize| {
            let mut sum = 0f64;
            // What it has not yet added, and of how many terms and what size that is.
            let (mut part, mut count, mut size) = (0f64, 0, 0f64);
            let runs = (lane * self.run..even).step_by(self.run.saturating_mul(self.lanes));
            let runs = runs.map(|first| &in_turn[first..even.min(first + self.run)]);
            for run in runs.chain((lane == 0).then_some(rest)) {
                for p in run {
                    (part, count, size) = (part + p, count + 1, size + p.abs());
                    if count == self.at_once {
                        sum = add(sum, part, size)?;
                        (part, count, size) = (0.0, 0, 0.0);
                    }
                }
            }
            if count > 0 { add(sum, part, size) } else { Some(sum) }
        };
        (0..self.lanes).map(lane).collect()
    }

    fn join(&self, lanes: &[f64], joined: Joined) -> f64 {
        let both = |a: f64, b: f64| self.format.1(a + b);
        match joined {
            Joined::Exactly => lanes.iter().sum(),
            Joined::InTurn => lanes.iter().copied().reduce(both).unwrap_or(0.0),
            Joined::InATree => {
                let mut left = lanes.to_vec();
                while left.len() > 1 {
                    let half = left.len() / 2;
                    left = (0..half).map(|i| both(left[i], left[i + half])).collect();
                }
                left[0]
            }
        }
    }

    /// What makes its terms what they are.
    fn takes(&self) -> (&'static str, Factors, bool) {
        (self.format.0, self.factors, self.terms)
    }

    /// Ways to join its lanes.
    fn joins(&self) -> &'static [Joined] {
        match self.lanes {
            1 => &[Joined::Exactly],
            _ => &[Joined::Exactly, Joined::InTurn, Joined::InATree],
        }
    }

    /// The ways to add up so many terms, of products or not, but for how lanes are joined.
    fn all(terms: usize, formats: &[Rounding], products: bool) -> Vec<Self> {
        let powers = |top: usize| (0..=8).map(|b| 1usize << b).filter(move |n| *n <= top);
        // What is long is tried in fewer ways: it takes as much longer.
        let rounded: &[Factors] = match products {
            true if terms <= 1024 => &[Factors::Neither, Factors::Both, Factors::Left, Factors::Right],
            true => &[Factors::Neither, Factors::Both],
            false => &[Factors::Neither],
        };
        let mut all = Vec::new();
        for (&format, &factors) in formats.iter().flat_map(|f| rounded.iter().map(move |r| (f, r))) {
            let way = Self {
                format,
                kept: Kept::Running,
                factors,
                chunk: usize::MAX,
                lanes: 1,
                run: 1,
                at_once: 1,
                joined: Joined::Exactly,
                rest_in_first: false,
                terms: false,
            };
            let chunks = [16, 32, 64, 128, 256, 512].into_iter().filter(|n| *n < terms);
            for chunk in std::iter::once(terms).chain(chunks) {
                let top = if chunk == terms { chunk / 2 } else { 4.min(chunk / 2) };
                for lanes in powers(top) {
                    let each = chunk.div_ceil(lanes);
                    let runs = [1, 2, 4, 8, 16, 32].into_iter().filter(|run| match lanes {
                        1 => *run == 1,
                        _ => run * lanes <= chunk && (chunk == terms || *run == 1),
                    });
                    // Parts as long as each other, of which the last is shorter.
                    let split =
                        Some(each).filter(|n| lanes > 1 && !(n.is_power_of_two() && *n <= 32) && chunk == terms);
                    for run in runs.chain(split) {
                        for at_once in powers(each - 1).chain([each]) {
                            let chunk = if chunk == terms { usize::MAX } else { chunk };
                            let way = Self { chunk, lanes, run, at_once, ..way };
                            all.push(way);
                            all.extend((at_once < each).then_some(Self { terms: true, ..way }));
                            let unrolled = (2..=8).contains(&lanes) && run == 1 && at_once == 1 && chunk == usize::MAX;
                            all.extend(unrolled.then_some(Self { rest_in_first: true, ..way }));
                        }
                    }
                }
            }
            // What is added is rounded, and the sum is not.
            all.extend(powers(terms - 1).map(|at_once| Self { kept: Kept::Parts, at_once, ..way }));
        }
        // The simpler first.
        all.sort_by_key(|way| {
            (way.factors != Factors::Neither, way.chunk != usize::MAX, way.rest_in_first, way.terms, way.lanes > 1)
        });
        all
    }

    /// In words, of sums of these terms.
    fn told(&self, sum: &str, many: &str, factors: [&str; 2], terms: usize) -> String {
        let name = self.format.0;
        let [left, right] = factors;
        let factors = match self.factors {
            Factors::Neither => String::new(),
            Factors::Left => format!(", and {left} are rounded to it before they are multiplied"),
            Factors::Right => format!(", and {right} are rounded to it before they are multiplied"),
            Factors::Both => format!(", and {left} and {right} are rounded to it before they are multiplied"),
        };
        if self.kept == Kept::Parts {
            return match self.at_once {
                // A single number of either is one of the other too.
                1 => {
                    let name = if name == "f16" { "f16 or TF32 (both keep 11 bits)" } else { name };
                    format!("each term of {sum} is rounded to {name} before it is added{factors}")
                }
                n => format!("each sum of {n} {many} is rounded to {name} before it is added to {sum}{factors}"),
            };
        }
        if self.at_once >= terms && self.lanes == 1 && !self.terms {
            return format!("{sum} is rounded to {name}, once, at its end{factors}");
        }
        let chunk = match self.chunk {
            n if n >= terms => String::new(),
            n => format!(", each {n} {many} by themselves and exactly added up,"),
        };
        let lanes = match (self.lanes, self.run) {
            (1, _) => String::new(),
            (n, 1) if self.rest_in_first => {
                format!(", in {n} lanes, {many} modulo {n}, and those behind the last whole {n} in the first lane,")
            }
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
        let each_term = if self.terms { ", and so is each term" } else { "" };
        let lanes = format!("{chunk}{lanes}").replace(",,", ",");
        format!("{sum} is accumulated in {name}{lanes} rounded {when}{of}{joined}{each_term}{factors}")
    }
}

/// The terms of the sum that element `i` of a row is made of, factors rounded or not.
type Terms<'a> = Rc<dyn Fn(&RowAt, usize, (Factors, fn(f64) -> f64)) -> Option<Vec<f64>> + 'a>;

/// What an element is, given the sum that it is made of.
type Made<'a> = Rc<dyn Fn(&RowAt, usize) -> Option<OfSum> + 'a>;
type OfSum = Box<dyn Fn(f64) -> f64 + Send + Sync>;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Some((sum, many, terms, made)) = operation(scene) else {
        return Vec::new();
    };
    let elements: Vec<(f64, f64, f32)> = scene.fit.iter().map(|&at| scene.element(at)).collect();
    let squares = |f: fn(&(f64, f64, f32)) -> f64| elements.iter().map(|e| f(e).powi(2)).sum::<f64>();
    let size = (squares(|(g, w, _)| g - w) / squares(|(_, w, _)| *w)).sqrt();
    // Half a step of the format, a few or many times.
    let likely = |(name, _): &Rounding| {
        let unit = if *name == "f16" { 0.5f64.powi(11) } else { 0.5f64.powi(8) };
        (unit / 64.0..unit * 64.0).contains(&size)
    };
    let formats: Vec<_> = HALVES.into_iter().filter(likely).collect();
    if formats.is_empty() {
        return Vec::new();
    }
    // Long sums show most; of several rows.
    let step = (scene.fit.len() / (2 * TRIED)).max(1);
    let exactly = (Factors::Neither, (|x| x) as fn(f64) -> f64);
    let mut tried: Vec<((usize, usize), usize)> = scene
        .fit
        .iter()
        .rev()
        .step_by(step)
        .filter_map(|&(r, i)| Some(((r, i), terms(&scene.e.rows[r], i, exactly)?.len())))
        .take(2 * TRIED)
        .collect();
    tried.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    tried.truncate(TRIED);
    let Some(longest) = tried.first().map(|(_, n)| *n).filter(|n| *n >= 2 && tried.len() >= NEEDED) else {
        return Vec::new();
    };
    let products = matches!(
        scene.node().op.anatomy(),
        Anatomy::Contraction(
            Contraction::Weight(None) | Contraction::Scores(_) | Contraction::Context(_) | Contraction::Rows(_)
        )
    );
    let all = Way::all(longest, &formats, products);
    // Each element's terms, as each format and choice of factors makes them.
    let mut known: HashMap<_, Vec<Vec<f64>>> = HashMap::new();
    for way in &all {
        known.entry(way.takes()).or_insert_with(|| {
            let of = |((r, i), _): &((usize, usize), usize)| {
                let mut terms = terms(&scene.e.rows[*r], *i, (way.factors, way.format.1))?;
                if way.terms {
                    terms.iter_mut().for_each(|p| *p = way.format.1(*p));
                }
                Some(terms)
            };
            tried.iter().filter_map(of).collect()
        });
    }
    let wanted = |((r, i), _): &((usize, usize), usize)| {
        let (got, _, bound) = scene.element((*r, *i));
        (made(&scene.e.rows[*r], *i), got, bound, scene.e.grain.reach(got as f32))
    };
    let wanted: Vec<_> = tried.iter().map(wanted).collect();
    scene.count(all.len() * tried.len() * longest / 2);
    let giving = |way: &Way| {
        let (mut joins, mut given) = (way.joins().to_vec(), 0);
        for ((made, got, bound, grain), terms) in wanted.iter().zip(&known[&way.takes()]) {
            let (Some(made), Some(sums)) = (made, way.sums(terms, &joins)) else { continue };
            let off = |v: f64| v.is_nan() || (got - v).abs() > allowed(v, *bound) + grain;
            let mut sums = sums.into_iter();
            joins.retain(|_| sums.next().is_some_and(|sum| !off(made(sum))));
            if joins.is_empty() {
                break;
            }
            given += 1;
        }
        joins.truncate(if given < GIVEN { 0 } else { joins.len() });
        joins.into_iter().map(|joined| Way { joined, ..*way }).collect::<Vec<_>>()
    };
    let ways: Vec<Way> = all.par_iter().flat_map_iter(giving).collect();
    ways.into_iter()
        .map(|way| {
            let (terms, made) = (terms.clone(), made.clone());
            let what = way.told(sum, many, super::factors::called(scene.node().op.anatomy()), longest);
            let law = Law::new(what, 2, move |row: &RowAt| {
                let (_, want, bound) = scene.e.row(row);
                // Of rows of fewer terms all are one run.
                let value = |i: usize| Some(made(row, i)?(way.sum(terms(row, i, (way.factors, way.format.1))?)));
                let value: Vec<f64> = (0..want.len()).map(|i| value(i).unwrap_or(f64::NAN)).collect();
                Some(Row { value, bound: bound.to_vec() })
            });
            Law { halves: way.format.0 == "f16", ..law }
        })
        .collect()
}

/// What the sum is called, and its terms; these, and what is made of it.
fn operation<'a>(scene: &'a Scene<'a>) -> Option<(&'static str, &'static str, Terms<'a>, Made<'a>)> {
    let itself: Made<'a> = Rc::new(|_, _| Some(Box::new(|sum| sum)));
    match scene.node().op.anatomy() {
        op @ Anatomy::Contraction(
            Contraction::Weight(None) | Contraction::Scores(_) | Contraction::Context(_) | Contraction::Rows(_),
        ) => {
            let sums = Sums::new(scene)?;
            let terms = move |row: &RowAt, i: usize, (factors, round): (Factors, fn(f64) -> f64)| {
                let (a, b) = sums.factors(row, i)?;
                let left = |a: f64| if matches!(factors, Factors::Left | Factors::Both) { round(a) } else { a };
                let right = |b: f64| if matches!(factors, Factors::Right | Factors::Both) { round(b) } else { b };
                Some(a.iter().zip(&b).map(|(a, b)| left(*a) * right(*b)).collect())
            };
            let (_, many) = super::groups::term(op);
            Some(("the sum", many, Rc::new(terms), itself))
        }
        Anatomy::RowReduction(RowReduction::MeanSquare(rms)) => {
            let run = scene.width()? / rms.groups;
            let own = scene.vector(&scene.node().weights[0].name, run);
            let part = move |row: &RowAt, i: usize| -> Option<Vec<f64>> {
                Some(norm::operand(scene, row, 0)?.get(i / run * run..)?.get(..run)?.to_vec())
            };
            let terms = move |row: &RowAt, i: usize, _: (Factors, fn(f64) -> f64)| {
                Some(part(row, i)?.iter().map(|v| v * v).collect())
            };
            let eps = rms.eps;
            let made = move |row: &RowAt, i: usize| -> Option<OfSum> {
                let (x, weight) = (*norm::operand(scene, row, 0)?.get(i)?, f64::from(own[i % run]));
                Some(Box::new(move |sum| x / (sum / run as f64 + eps).sqrt() * weight))
            };
            Some(("the sum of squares", "elements", Rc::new(terms), Rc::new(made)))
        }
        Anatomy::RowReduction(RowReduction::Exponentials(softmax)) => {
            let scale = softmax.scale;
            let exponentials = move |row: &RowAt| -> Option<Vec<f64>> {
                let of = |s: &[f64], p: usize, n: usize| {
                    let seen = &s[..(p + 1).min(n)];
                    let top = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    seen.iter().map(|s| (s - top).exp()).chain(std::iter::repeat(0.0)).take(n).collect()
                };
                Some(attended::weights(scene, scale, row, of)?.value)
            };
            let terms = move |row: &RowAt, _: usize, _: (Factors, fn(f64) -> f64)| {
                exponentials(row).map(|mut e| {
                    e.truncate(row.place.position + 1);
                    e
                })
            };
            let made = move |row: &RowAt, i: usize| -> Option<OfSum> {
                let e = *exponentials(row)?.get(i)?;
                Some(Box::new(move |sum| e / sum))
            };
            Some(("the sum that weights are divided by", "keys", Rc::new(terms), Rc::new(made)))
        }
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => None,
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => None,
    }
}
