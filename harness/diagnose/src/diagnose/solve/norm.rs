//! Norms: another mean of squares, another root, another weight.

use super::attended::Half;
use super::index::{Index, Sources};
use super::scene::{Layout, Scene};
use super::{Law, Row};
use crate::verdict::{RowAt, right};
use qdiff_engine::model::StageId;
use qdiff_engine::ops::anatomy::{Elementwise, RowReduction};
use qdiff_engine::ops::{Anatomy, RmsNorm, Tensor, UNIT, rope};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Anatomy::RowReduction(RowReduction::MeanSquare(norm)) = scene.node().op.anatomy() else {
        return Vec::new();
    };
    let Some(width) = scene.width() else {
        return Vec::new();
    };
    let run = width / norm.groups;
    let own = Rc::new(scene.vector(&scene.node().weights[0].name, run));
    let mut all = Vec::new();
    for (what, scale) in scales(norm, run) {
        let own = own.clone();
        all.push(Law::new(what, 1, move |row: &RowAt| normed(scene, row, run, &|x| scale(x), &|i| f64::from(own[i]))));
    }
    for other in [0.0, 1e-5, 1e-6, 1e-8, 1e-12, 1e-3, norm.eps * run as f64, norm.eps / run as f64]
        .into_iter()
        .filter(|other| (other - norm.eps).abs() > 1e-3 * norm.eps)
    {
        let (own, scale) = (own.clone(), move |x: &[f64]| 1.0 / (mean(x) + other).sqrt());
        let law = Law::new(format!("ε is {other:e}"), 1, move |row: &RowAt| {
            normed(scene, row, run, &scale, &|i| f64::from(own[i]))
        });
        all.push(law.of_model("ε", other));
        let weights: [(&str, Change); 3] = [
            ("the weight is not applied", |_| 1.0),
            ("1 is added to the weight", |w| 1.0 + w),
            ("the weight is applied twice", |w| w * w),
        ];
        for (what, f) in weights {
            let own = scene.vector(&scene.node().weights[0].name, run);
            all.push(Law::new(format!("ε is {other:e}, and {what}"), 2, move |row: &RowAt| {
                normed(scene, row, run, &scale, &|i| f(f64::from(own[i])))
            }));
        }
    }
    all.extend(counted(scene, norm.eps, run, &own));
    let right = |x: &[f64]| 1.0 / (mean(x) + norm.eps).sqrt();
    let mut weights: Vec<(String, Weight)> = vec![("the weight is not applied".to_owned(), Rc::new(|_| 1.0))];
    let of_own = |f: fn(f64) -> f64| -> Weight {
        let own = own.clone();
        Rc::new(move |i| f(f64::from(own[i])))
    };
    weights.push(("1 is added to the weight, as other architectures do".to_owned(), of_own(|w| 1.0 + w)));
    weights.push(("the weight is applied twice".to_owned(), of_own(|w| w * w)));
    for by in [1, run - 1, 2, run - 2, run / 2] {
        let own = own.clone();
        let what = format!(
            "the weight is read {} on",
            if by <= run / 2 { format!("{by} elements") } else { format!("−{} elements", run - by) }
        );
        weights.push((what, Rc::new(move |i| f64::from(own[(i + by) % own.len()]))));
    }
    for (which, place, by) in super::operands::columns(run, scene.e.oracle.graph.config.head_dim) {
        let own = own.clone();
        weights.push((
            format!("the weight {which} is applied"),
            Rc::new(move |i| f64::from(own[place(i, by) % own.len()])),
        ));
    }
    all.extend(rotated_first(scene, norm, run, &own));
    let of_others = scene.vectors(run).into_iter().filter(|(name, _)| *name != scene.node().weights[0].name);
    for (name, vector) in of_others {
        weights.push((format!("the weight is {name}"), Rc::new(move |i| f64::from(vector[i % vector.len()]))));
    }
    for (what, weight) in weights {
        all.push(Law::new(what, 1, move |row: &RowAt| normed(scene, row, run, &right, &|i| weight(i))));
    }
    for id in scene.alike() {
        let own = own.clone();
        all.push(Law::new(format!("{id} is normalised in the place of its input"), 1, move |row: &RowAt| {
            let x = of_stage(scene, row, id)?;
            let scaled = x.chunks(run).flat_map(|part| {
                let scale = right(part);
                part.iter().map(move |v| v * scale)
            });
            let value: Vec<f64> = scaled.enumerate().map(|(i, v)| v * f64::from(own[i % run])).collect();
            let bound = value.iter().map(|v| (UNIT * 12.0 * v.abs()) as f32).collect();
            Some(Row { value, bound })
        }));
    }
    for id in scene.alike() {
        let own = own.clone();
        all.push(Law::new(format!("{id} is added to the input before it is normalised"), 1, move |row: &RowAt| {
            let x: Vec<f64> =
                operand(scene, row, 0)?.iter().zip(of_stage(scene, row, id)?).map(|(x, other)| x + other).collect();
            let scaled = x.chunks(run).flat_map(|part| {
                let scale = right(part);
                part.iter().map(move |v| v * scale)
            });
            let value: Vec<f64> = scaled.enumerate().map(|(i, v)| v * f64::from(own[i % run])).collect();
            let bound = value.iter().map(|v| (UNIT * 12.0 * v.abs()) as f32).collect();
            Some(Row { value, bound })
        }));
    }
    for id in scene.alike() {
        let (own, eps) = (own.clone(), norm.eps);
        let law = Law::new(format!("the mean of squares is that of {id}"), 1, move |row: &RowAt| {
            let other = of_stage(scene, row, id)?;
            let scale = move |at: usize, _: &[f64]| 1.0 / (mean(&other[at / run * run..][..run]) + eps).sqrt();
            normed_by(scene, row, &scale, &|i| f64::from(own[i % run]), run)
        });
        all.push(law);
    }
    all.push(twice(scene, norm, run, own.clone()));
    all.extend(Half::ALL.into_iter().flat_map(|to| rounded(scene, norm, run, &own, to)));
    let eps = norm.eps;
    let mut parts: Vec<usize> =
        [2, 3, 4, 6, 8, 12, 16].iter().filter(|n| run.is_multiple_of(**n)).map(|n| run / n).collect();
    parts.extend((3..12).map(|b| 1usize << b));
    parts.retain(|n| (8..run).contains(n));
    parts.sort_unstable();
    parts.dedup();
    for n in parts {
        let own = own.clone();
        all.push(Law::new(format!("each {n} elements are normalised by themselves"), 1, move |row: &RowAt| {
            let x = operand(scene, row, 0)?;
            let scaled = x.chunks(n).flat_map(|part| {
                let scale = 1.0 / (mean(part) + eps).sqrt();
                part.iter().map(move |v| v * scale)
            });
            let value: Vec<f64> = scaled.enumerate().map(|(i, v)| v * f64::from(own[i % run])).collect();
            let bound = value.iter().map(|v| (UNIT * 12.0 * v.abs()) as f32).collect();
            Some(Row { value, bound })
        }));
    }
    if norm.groups > 1 {
        let own = own.clone();
        let what = "the mean of squares is over all heads of the token together, not over each";
        all.push(Law::new(what, 0, move |row: &RowAt| {
            let scale = 1.0 / (mean(&whole(scene, row)?) + eps).sqrt();
            normed_by(scene, row, &|_, _| scale, &|i| f64::from(own[i % run]), run)
        }));
    }
    for heads in (2..=4).filter(|heads| norm.groups.is_multiple_of(*heads)) {
        let length = heads * run;
        let by_one = format!("the squares of each {heads} heads are added together, and divided by the length of one");
        let by_all = format!("the mean of squares is over each {heads} heads together, not over each one");
        for (what, count) in [(by_one, run), (by_all, length)] {
            let own = own.clone();
            all.push(Law::new(what, 1, move |row: &RowAt| {
                let (all, from) = (whole(scene, row)?, scene.token(row).1);
                let scale = move |at: usize, _: &[f64]| {
                    let squares: f64 = all[(from + at) / length * length..][..length].iter().map(|v| v * v).sum();
                    1.0 / (squares / count as f64 + eps).sqrt()
                };
                normed_by(scene, row, &scale, &|i| f64::from(own[i % run]), run)
            }));
        }
    }
    for index in tokens(scene, (run, eps), &own) {
        let own = own.clone();
        let what = format!("the mean is that of the {} in the part", index.told("token", "t"));
        all.push(Law::new(what, index.parameters(), move |row: &RowAt| {
            let (number, count) = scene.number(row.step, scene.token(row).0);
            let other = of_token(scene, row, scene.numbered(row.step, index.of(number, count)?)?)?;
            let scale = move |at: usize, _: &[f64]| 1.0 / (mean(&other[at / run * run..][..run]) + eps).sqrt();
            normed_by(scene, row, &scale, &|i| f64::from(own[i % run]), run)
        }));
    }
    for (by, halved) in [(-1i64, true), (1, true), (-1, false), (1, false)] {
        let own = own.clone();
        let side = if by < 0 { "before" } else { "after" };
        let what = match halved {
            true => format!("the mean is over this token and the one {side} in the part"),
            false => format!("the squares of the token {side} in the part are in the sum as well"),
        };
        let of = if halved { 2.0 } else { 1.0 };
        all.push(Law::new(what, 0, move |row: &RowAt| {
            let other = operand(scene, row, by)?;
            let scale = move |at: usize, x: &[f64]| {
                let at = at / run * run;
                1.0 / ((mean(&x[at..][..run]) + mean(&other[at..][..run])) / of + eps).sqrt()
            };
            normed_by(scene, row, &scale, &|i| f64::from(own[i % run]), run)
        }));
    }
    all
}

/// Elements of the groups whose share in the mean of squares is read off many rows, the smaller last; how far from a whole number a
/// share may be.
const GROUPS: [usize; 4] = [128, 64, 32, 16];
const WHOLE: f64 = 0.05;

/// Groups of elements that are missing from the mean of squares, or count twice: with `rows` of the squares up to each element and of
/// how much their sum is off, how often each group counts more than once.
fn of_groups(scene: &Scene<'_>, run: usize, rows: &[(Vec<f64>, f64, f64)]) -> Option<(usize, Vec<i32>)> {
    let fitting = GROUPS.into_iter().filter(|each| run.is_multiple_of(*each));
    for each in fitting.filter(|each| (2..rows.len().saturating_sub(2)).contains(&(run / each))) {
        let groups = run / each;
        scene.count(groups * groups * (rows.len() + groups));
        let squares = |before: &[f64], g: usize| (before[(g + 1) * each] - before[g * each]) / before[run];
        // The least squares of all rows, as shares of each row's own sum.
        let mut system = vec![vec![0f64; groups + 1]; groups];
        for (before, off, _) in rows {
            let of: Vec<f64> = (0..groups).map(|g| squares(before, g)).chain([off / before[run]]).collect();
            for (g, line) in system.iter_mut().enumerate() {
                line.iter_mut().zip(&of).for_each(|(sum, v)| *sum += of[g] * v);
            }
        }
        let Some(shares) = solved(system) else { continue };
        if shares.iter().all(|share| (share - share.round()).abs() < WHOLE) && shares.iter().any(|s| s.abs() > 0.5) {
            return Some((each, shares.iter().map(|share| share.round() as i32).collect()));
        }
    }
    None
}

/// The solution of linear equations, each with its right side last.
fn solved(mut lines: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let n = lines.len();
    for at in 0..n {
        let pivot = (at..n).max_by(|a, b| lines[*a][at].abs().total_cmp(&lines[*b][at].abs()))?;
        lines.swap(at, pivot);
        let line = lines[at].clone();
        if line[at].abs() < f64::MIN_POSITIVE {
            return None;
        }
        for (_, other) in lines.iter_mut().enumerate().filter(|(i, _)| *i != at) {
            let by = other[at] / line[at];
            other.iter_mut().zip(&line).for_each(|(v, own)| *v -= by * own);
        }
    }
    Some((0..n).map(|i| lines[i][n] / lines[i][i]).collect())
}

/// The elements of these groups, as ranges in words.
fn ranges(each: usize, groups: impl Fn(usize) -> bool, count: usize) -> String {
    let mut all: Vec<Range<usize>> = Vec::new();
    for g in (0..count).filter(|g| groups(*g)) {
        match all.last_mut().filter(|last| last.end == g * each) {
            Some(last) => last.end += each,
            None => all.push(g * each..(g + 1) * each),
        }
    }
    let told: Vec<String> = all.iter().map(|range| format!("{} to {}", range.start, range.end - 1)).collect();
    told.join(", ")
}

/// Rows that what is counted otherwise is read off, the widest norm of which all runs of elements are tried, and runs that are reported.
const COUNTED: usize = 6;
const MANY: usize = 96;
const FINE: usize = 512;
const TOLD: usize = 4;

/// A run of elements that counts twice in the mean of squares, or is missing from it: it is the one whose squares make the
/// difference in several rows.
fn counted<'a>(scene: &'a Scene<'a>, eps: f64, run: usize, own: &Rc<Vec<f32>>) -> Vec<Law<'a>> {
    // For each row its squares up to each element, how much the sum is off, and how exactly that is known.
    let mut rows: Vec<(Vec<f64>, f64, f64)> = Vec::new();
    for &r in scene.rows.iter().filter(|&&r| scene.wrong_in(r)) {
        let row = &scene.e.rows[r];
        let Some(x) = operand(scene, row, 0).filter(|x| x.len() >= run) else { return Vec::new() };
        let (got, ..) = scene.e.row(row);
        let (mut gz, mut zz) = (0.0, 0.0);
        for i in 0..run {
            let z = x[i] * f64::from(own[i]);
            (gz, zz) = (gz + f64::from(got[i]) * z, zz + z * z);
        }
        let mut before = vec![0.0];
        x[..run].iter().for_each(|v| before.push(before[before.len() - 1] + v * v));
        let sum = ((zz / gz).powi(2) - eps) * run as f64;
        // Heads of a token may be right.
        let off = sum - before[run];
        if off.abs() > 1e-5 * before[run] {
            rows.push((before, off, 2e-6 * sum.abs()));
        }
        if rows.len() == MANY {
            break;
        }
    }
    let of_groups = of_groups(scene, run, &rows);
    rows.truncate(COUNTED);
    let Some((_, first, _)) = rows.first().filter(|_| rows.len() >= 3) else { return Vec::new() };
    let sign = first.signum();
    let step = if run <= FINE { 1 } else { 4 };
    scene.count(run / step * (run / step));
    let mut all: Vec<(usize, usize)> = Vec::new();
    for from in (0..run).step_by(step) {
        for to in (from + step..=run).step_by(step) {
            let gives =
                |(before, off, near): &(Vec<f64>, f64, f64)| (sign * off - (before[to] - before[from])).abs() <= *near;
            if rows.iter().all(gives) {
                all.push((from, to));
            }
        }
    }
    // The last elements, read so many before their own place.
    let mut moved: Vec<(usize, usize)> = Vec::new();
    for from in (1..run).step_by(step) {
        for by in (step..=from).step_by(step) {
            let gives = |(before, off, near): &(Vec<f64>, f64, f64)| {
                let part = |at: usize| before[at + run - from] - before[at];
                (*off - part(from - by) + part(from)).abs() <= *near
            };
            if rows.iter().all(gives) {
                moved.push((from, by));
            }
        }
    }
    let law = |(what, scale): (String, Scale)| {
        let own = own.clone();
        Law::new(what, 2, move |row: &RowAt| normed(scene, row, run, &scale, &|i| f64::from(own[i])))
    };
    let squares = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>();
    let counted = all.into_iter().take(TOLD).map(|(from, to)| -> (String, Scale) {
        let how = if sign > 0.0 { "count twice in" } else { "are missing from" };
        let scale = move |x: &[f64]| 1.0 / (mean(x) + sign * squares(&x[from..to]) / x.len() as f64 + eps).sqrt();
        (format!("the elements {from} to {} {how} the mean of squares", to - 1), Box::new(scale))
    });
    let moved = moved.into_iter().take(TOLD).map(|(from, by)| -> (String, Scale) {
        let scale = move |x: &[f64]| {
            let more = squares(&x[from - by..x.len() - by]) - squares(&x[from..]);
            1.0 / (mean(x) + more / x.len() as f64 + eps).sqrt()
        };
        (format!("from element {from} on the mean of squares is of the elements {by} before"), Box::new(scale))
    });
    let grouped = of_groups.map(|(each, more)| -> (String, Scale) {
        let told = |share: i32, what: &str| {
            let ranges = ranges(each, |g| more[g] == share, more.len());
            Some(format!("the elements {ranges} {what} the mean of squares")).filter(|_| !ranges.is_empty())
        };
        let all = [told(-1, "are missing from"), told(1, "count twice in")];
        let scale = move |x: &[f64]| {
            let more: f64 = x.chunks(each).zip(&more).map(|(part, more)| f64::from(*more) * squares(part)).sum();
            1.0 / (mean(x) + more / x.len() as f64 + eps).sqrt()
        };
        (all.into_iter().flatten().collect::<Vec<_>>().join(", and "), Box::new(scale))
    });
    let grouped = grouped.filter(|(what, _)| !what.is_empty());
    counted.chain(moved).chain(grouped).map(law).collect()
}

/// What becomes of a weight.
type Change = fn(f64) -> f64;

/// The norm of what it gives.
fn twice<'a>(scene: &'a Scene<'a>, norm: &RmsNorm, run: usize, own: Rc<Vec<f32>>) -> Law<'a> {
    let eps = norm.eps;
    Law::new("the norm is applied twice", 0, move |row: &RowAt| {
        let mut value = operand(scene, row, 0)?;
        for _ in 0..2 {
            for part in value.chunks_mut(run) {
                let scale = 1.0 / (mean(part) + eps).sqrt();
                part.iter_mut().zip(&*own).for_each(|(v, w)| *v *= scale * f64::from(*w));
            }
        }
        let bound = value.iter().map(|v| (UNIT * 24.0 * v.abs()) as f32).collect();
        Some(Row { value, bound })
    })
}

/// The normalised value is rounded before the weight is applied; the product as well, or not.
fn rounded<'a>(scene: &'a Scene<'a>, norm: &RmsNorm, run: usize, own: &Rc<Vec<f32>>, to: Half) -> [Law<'a>; 2] {
    let eps = norm.eps;
    [false, true].map(|product| {
        let own = own.clone();
        let (name, again) = (to.name(), if product { ", and so is the product" } else { "" });
        let what = format!("the normalised value is rounded to {name} before the weight is applied{again}");
        Law::new(what, 1, move |row: &RowAt| {
            let x = operand(scene, row, 0)?;
            let (mut value, mut bound) = (Vec::with_capacity(x.len()), Vec::with_capacity(x.len()));
            for part in x.chunks(run) {
                let scale = 1.0 / (mean(part) + eps).sqrt();
                for (v, w) in part.iter().zip(&*own) {
                    let (v, w) = (v * scale, f64::from(*w));
                    let off = 6.0 * UNIT * v.abs();
                    let made = to.round(v) * w;
                    let mut either = to.either(v, off) * w.abs();
                    if product {
                        either += to.either(made, either + UNIT * made.abs());
                    }
                    value.push(if product { to.round(made) } else { made });
                    bound.push((either + 2.0 * UNIT * made.abs()) as f32);
                }
            }
            Some(Row { value, bound })
        })
    })
}

/// A weight by its index.
type Weight = Rc<dyn Fn(usize) -> f64>;

fn mean(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64
}

type Scale = Box<dyn Fn(&[f64]) -> f64>;

/// Factors that are not the right one, of a run of elements.
fn scales(norm: &RmsNorm, run: usize) -> Vec<(String, Scale)> {
    let eps = norm.eps;
    let root = move |mean: f64| 1.0 / (mean + eps).sqrt();
    let mut all: Vec<(String, Scale)> = vec![
        ("the square root is left out".to_owned(), Box::new(move |x| 1.0 / (mean(x) + eps))),
        (
            "the row is multiplied by the root, and not divided by it".to_owned(),
            Box::new(move |x| (mean(x) + eps).sqrt()),
        ),
        ("ε is added to the root instead of below it".to_owned(), Box::new(move |x| 1.0 / (mean(x).sqrt() + eps))),
        (
            "the sum of squares is not divided by their number".to_owned(),
            Box::new(move |x| root(mean(x) * x.len() as f64)),
        ),
        ("the sum of squares is divided by half their number".to_owned(), Box::new(move |x| root(2.0 * mean(x)))),
        (
            "the sum of squares is divided by one less than their number".to_owned(),
            Box::new(move |x| root(mean(x) * x.len() as f64 / (x.len() - 1) as f64)),
        ),
        (
            "the mean is the square of the mean, not the mean of squares".to_owned(),
            Box::new(move |x| root((x.iter().sum::<f64>() / x.len() as f64).powi(2))),
        ),
        (
            "the variance about the mean is taken, as in LayerNorm".to_owned(),
            Box::new(move |x| {
                let m = x.iter().sum::<f64>() / x.len() as f64;
                root(x.iter().map(|v| (v - m).powi(2)).sum::<f64>() / x.len() as f64)
            }),
        ),
        (
            "the mean of sizes is taken instead of squares".to_owned(),
            Box::new(move |x| 1.0 / (x.iter().map(|v| v.abs()).sum::<f64>() / x.len() as f64)),
        ),
        ("nothing is normalised: the factor is 1".to_owned(), Box::new(|_| 1.0)),
        (
            "ε is added to the mean of squares of the row over its largest element, so it counts times that one's square".to_owned(),
            Box::new(move |x| 1.0 / (mean(x) + eps * x.iter().fold(0.0, |most: f64, v| most.max(v * v))).sqrt()),
        ),
    ];
    for to in Half::ALL {
        let name = to.name();
        let of_elements = move |x: &[f64]| x.iter().map(|v| to.round(*v).powi(2)).sum::<f64>() / x.len() as f64;
        let of_squares = move |x: &[f64]| x.iter().map(|v| to.round(v * v)).sum::<f64>() / x.len() as f64;
        all.push((
            format!("the mean of squares is of elements that are rounded to {name}, which are normed as they are"),
            Box::new(move |x| root(of_elements(x))),
        ));
        all.push((
            format!("the mean of squares is of squares that are rounded to {name}"),
            Box::new(move |x| root(of_squares(x))),
        ));
        all.push((
            format!("the mean of squares is of elements that are rounded to {name}, as are their squares"),
            Box::new(move |x| root(x.iter().map(|v| to.round(to.round(*v).powi(2))).sum::<f64>() / x.len() as f64)),
        ));
        all.push((format!("the mean of squares is rounded to {name}"), Box::new(move |x| root(to.round(mean(x))))));
        all.push((format!("the factor of a row is rounded to {name}"), Box::new(move |x| to.round(root(mean(x))))));
    }
    let padded = [run.next_power_of_two(), run.next_multiple_of(64), run.next_multiple_of(256)];
    for n in padded.into_iter().filter(|n| *n > run).collect::<BTreeSet<_>>() {
        let what = format!("the sum of squares is divided by {n} instead of their number, {run}");
        all.push((what, Box::new(move |x| root(mean(x) * run as f64 / n as f64))));
    }
    type Chosen = Box<dyn Fn(usize) -> bool>;
    let mut parts: Vec<(String, Chosen)> = Vec::new();
    let mut lost = 1;
    while lost < run {
        parts.push((
            format!("the last {lost} elements are missing from the mean of squares"),
            Box::new(move |i| i + lost < run),
        ));
        parts.push((
            format!("the first {lost} elements are missing from the mean of squares"),
            Box::new(move |i| i >= lost),
        ));
        if lost >= 8 {
            let whole = run / lost * lost;
            if whole < run {
                parts.push((
                    format!(
                        "the tail after whole tiles of {lost}, {} elements, is missing from the mean of squares",
                        run - whole
                    ),
                    Box::new(move |i| i < whole),
                ));
            }
        }
        lost *= 2;
    }
    // A tree of halves ends with the odd part of the length, of which it may lose one.
    let odd = run >> run.trailing_zeros();
    let odd = Some(odd).filter(|odd| (3..64).contains(odd) && *odd < run);
    for m in [2usize, 4, 8, 16, 32, 64, 128, 256].into_iter().chain(odd) {
        for r in 0..m.min(run) {
            parts.push((
                format!("elements ≡ {r} mod {m} are missing from the mean of squares"),
                Box::new(move |i| i % m != r),
            ));
        }
        if m > 2 {
            for half in [2, 4] {
                let kept = m - m / half;
                parts.push((
                    format!("elements ≡ {kept}..{} mod {m} are missing from the mean of squares", m - 1),
                    Box::new(move |i| i % m < kept),
                ));
            }
        }
        if m < run {
            parts.push((format!("only the first {m} elements are in the mean of squares"), Box::new(move |i| i < m)));
        }
    }
    for (what, chosen) in parts {
        let chosen = Rc::new(chosen);
        let sum = move |x: &[f64]| -> (f64, usize) {
            let taken = x.iter().enumerate().filter(|(i, _)| chosen(*i));
            taken.fold((0.0, 0), |(s, n), (_, v)| (s + v * v, n + 1))
        };
        let again = sum.clone();
        all.push((what.clone(), Box::new(move |x| root(sum(x).0 / x.len() as f64))));
        all.push((
            what + ", which is taken of the rest",
            Box::new(move |x| {
                let (s, n) = again(x);
                root(s / n.max(1) as f64)
            }),
        ));
    }
    all
}

/// The operand's vector of the token so many rows away, from where a row begins on.
pub(super) fn operand(scene: &Scene<'_>, row: &RowAt, by: i64) -> Option<Vec<f64>> {
    of_token(scene, row, usize::try_from(scene.token(row).0 as i64 + by).ok()?)
}

/// The same elements of the row's token in another stage.
pub(super) fn of_stage(scene: &Scene<'_>, row: &RowAt, id: StageId) -> Option<Vec<f64>> {
    let graph = &scene.e.oracle.graph;
    let layout = Layout::of(&graph.nodes[graph.index(id)?]);
    let (tensor, (token, from)) = (scene.tensor(row.step, id)?, scene.token(row));
    let (tokens, _, width) = layout.extents(&tensor.shape);
    let all = from..from + row.range.len();
    let value = |j: usize| f64::from(tensor.data[layout.at(&tensor.shape, token, j)]);
    (token < tokens && all.end <= width).then(|| all.map(value).collect())
}

/// The same of a token by its row.
fn of_token(scene: &Scene<'_>, row: &RowAt, token: usize) -> Option<Vec<f64>> {
    let from = scene.token(row).1;
    elements(scene, row, token, |_| from..from + row.range.len())
}

/// The operand's vector of a row's token, all of it.
fn whole(scene: &Scene<'_>, row: &RowAt) -> Option<Vec<f64>> {
    elements(scene, row, scene.token(row).0, |width| 0..width)
}

fn elements(scene: &Scene<'_>, row: &RowAt, token: usize, of: impl FnOnce(usize) -> Range<usize>) -> Option<Vec<f64>> {
    let graph = &scene.e.oracle.graph;
    let layout = Layout::of(&graph.nodes[*scene.node().inputs.first()?]);
    let tensor = scene.operand(row.step, 0)?;
    let (tokens, _, width) = layout.extents(&tensor.shape);
    let value = |j: usize| f64::from(tensor.data[layout.at(&tensor.shape, token, j)]);
    (token < tokens).then(|| of(width).map(value).collect())
}

/// Wrong rows that are looked at.
const ROWS: usize = 48;

/// The maps that give the tokens of the part whose means are in wrong rows.
fn tokens(scene: &Scene<'_>, (run, eps): (usize, f64), weight: &[f32]) -> Vec<Index> {
    let mut all = Sources::new();
    for &r in scene.rows.iter().filter(|&&r| scene.wrong_in(r)).take(ROWS) {
        let row = &scene.e.rows[r];
        let (Some(x), (got, _, bound), token) = (operand(scene, row, 0), scene.e.row(row), scene.token(row).0) else {
            return Vec::new();
        };
        let wrong = scene.wrong_of(row);
        let gives = |other: &usize| {
            let Some(other) = of_token(scene, row, *other) else { return false };
            let scale = |i: usize| 1.0 / (mean(&other[i / run * run..][..run]) + eps).sqrt();
            wrong.iter().take(8).all(|&i| right(got[i], x[i] * scale(i) * f64::from(weight[i % run]), bound[i]))
        };
        let rows = scene.e.side.capture.steps[row.step].rows();
        let some: Vec<usize> = (0..rows).filter(|other| *other != token).filter(gives).collect();
        if some.is_empty() {
            return Vec::new();
        }
        let some = some.into_iter().map(|other| scene.number(row.step, other).0).collect();
        super::moved::meet(&mut all, scene.number(row.step, token), some);
    }
    Index::giving(&all)
}

/// Every run of a row times its factor, times the weight.
fn normed(
    scene: &Scene<'_>, row: &RowAt, run: usize, scale: &dyn Fn(&[f64]) -> f64, weight: &dyn Fn(usize) -> f64,
) -> Option<Row> {
    normed_by(scene, row, &|at, x| scale(&x[at / run * run..][..run]), weight, run)
}

fn normed_by(
    scene: &Scene<'_>, row: &RowAt, scale: &dyn Fn(usize, &[f64]) -> f64, weight: &dyn Fn(usize) -> f64, run: usize,
) -> Option<Row> {
    let x = operand(scene, row, 0)?;
    let mut value = Vec::with_capacity(x.len());
    for first in (0..x.len()).step_by(run) {
        let s = scale(first, &x);
        value.extend((0..run.min(x.len() - first)).map(|i| x[first + i] * s * weight(i)));
    }
    let bound = value.iter().map(|v| (UNIT * 12.0 * v.abs()) as f32).collect();
    Some(Row { value, bound })
}
/// What is done where norm and rotation are exchanged.
pub(in super::super) const AFTER_ROTATION: &str = "the norm over each head is applied after the rotation";

/// Heads that are rotated before they are normalised, and not after it.
fn rotated_first<'a>(scene: &'a Scene<'a>, norm: &'a RmsNorm, run: usize, own: &Rc<Vec<f32>>) -> Option<Law<'a>> {
    let graph = &scene.e.oracle.graph;
    let at = graph.index(scene.node().id)?;
    let rope = graph.nodes.iter().filter(|node| node.inputs.first() == Some(&at)).find_map(|node| {
        match node.op.anatomy() {
            Anatomy::Elementwise(Elementwise::Rotation(rope)) if rope.head_dim == run => Some(rope),
            _ => None,
        }
    })?;
    let own = own.clone();
    Some(Law::new(AFTER_ROTATION, 0, move |row: &RowAt| {
        let x = operand(scene, row, 0)?;
        let plain = Tensor { shape: vec![1, x.len()], data: x.clone() };
        let turned = rope::forward(rope, &plain, &[row.place.position as f64]).data;
        let scaled = turned.chunks(run).flat_map(|part| {
            let scale = 1.0 / (mean(part) + norm.eps).sqrt();
            part.iter().map(move |v| v * scale)
        });
        let value: Vec<f64> = scaled.enumerate().map(|(i, v)| v * f64::from(own[i % run])).collect();
        // The angle is as uncertain as its position is large.
        let size = value.iter().fold(0f64, |most, v| most.max(v.abs()));
        let reach = (UNIT * size * (16.0 + row.place.position as f64)) as f32;
        Some(Row { bound: vec![reach; value.len()], value })
    }))
}
