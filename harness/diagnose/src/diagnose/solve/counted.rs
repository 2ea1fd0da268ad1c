//! Keys that are taken more or less than once because a loop over tiles or splits of them begins or ends in the wrong
//! place: a tail that is forgotten or done twice, a key at a boundary that two tiles or none have, a split that is dropped.
//!
//! Key `k` of the `n` that a query sees is taken `c(k, n)` times. The context is then `Σ c·w·v`, the softmax
//! `c·e^s / Σ c·e^s`, or only the sum that weights are divided by has these. Where a rule of tiles does not tell, groups of
//! the keys in that sum are fitted, as `terms` does for products.

use super::attended::{self, Parts, Seats};
use super::groups::{Groups, told};
use super::scene::Scene;
use super::terms::{Sums, fitted};
use super::{Law, Row};
use crate::verdict::RowAt;
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, UNIT};
use std::rc::Rc;

/// How often a key is taken, of so many that are seen.
type Taken = Rc<dyn Fn(usize, usize) -> f64>;

/// Which keys, and whether a key is one of them.
type Which = (String, Rc<dyn Fn(usize, usize) -> bool>);

/// Keys that a wrong loop bound is about.
fn bounds() -> Vec<Which> {
    let mut all: Vec<Which> = Vec::new();
    for t in [2usize, 4, 8, 16, 32, 64, 128, 256] {
        all.push((format!("the keys after the last whole tile of {t} are"), Rc::new(move |k, n| k >= n / t * t)));
        all.push((
            format!("the keys of the last tile of {t}, whole or not, are"),
            Rc::new(move |k, n| k >= (n - 1) / t * t),
        ));
        all.push((format!("the keys of the first tile of {t} are"), Rc::new(move |k, _| k < t)));
        all.push((format!("the keys of the second tile of {t} are"), Rc::new(move |k, _| k / t == 1)));
        all.push((
            format!("the keys of the last whole tile of {t} are"),
            Rc::new(move |k, n| n >= t && k / t == n / t - 1),
        ));
        all.push((
            format!("the keys that the last {t} share with whole tiles of {t} are"),
            Rc::new(move |k, n| n > t && k + t >= n && k < n / t * t),
        ));
        all.push((
            format!("in every tile of {t} except the first, the first key is"),
            Rc::new(move |k, _| k >= t && k % t == 0),
        ));
        all.push((
            format!("in every tile of {t} except the last, the last key is"),
            Rc::new(move |k, n| k + 1 < n && k % t == t - 1),
        ));
        for odd in [0, 1] {
            let which = if odd == 1 { "second" } else { "other" };
            let what = format!(
                "the keys of every {which} tile of {t}{} are",
                if odd == 1 { "" } else { ", from the first on," }
            );
            all.push((what, Rc::new(move |k, _| k / t % 2 == odd)));
        }
    }
    for s in 2..=8usize {
        let chunk = move |n: usize| n.div_ceil(s);
        all.push((
            format!("the keys of the last of {s} splits are"),
            Rc::new(move |k, n| k / chunk(n) == (n - 1) / chunk(n)),
        ));
        all.push((format!("the keys of the first of {s} splits are"), Rc::new(move |k, n| k < chunk(n))));
        all.push((
            format!("the keys that {s} splits of as many keys leave over are"),
            Rc::new(move |k, n| k >= n / s * s),
        ));
        all.push((
            format!("in each of {s} splits except the first, the first key is"),
            Rc::new(move |k, n| k > 0 && k % chunk(n) == 0),
        ));
        all.push((
            format!("in each of {s} splits except the last, the last key is"),
            Rc::new(move |k, n| k + 1 < n && k % chunk(n) == chunk(n) - 1),
        ));
    }
    all
}

/// Ways to take keys, in words of `sum`.
fn ways(sum: &str) -> Vec<(String, Taken, f64)> {
    let of = |(which, is): Which| {
        [(0.0, "missing from"), (2.0, "taken twice in")].map(|(count, verb)| {
            let is = is.clone();
            let taken: Taken = Rc::new(move |k, n| if is(k, n) { count } else { 1.0 });
            (format!("{which} {verb} {sum}"), taken, count)
        })
    };
    bounds().into_iter().flat_map(of).collect()
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    match scene.node().op.anatomy() {
        Anatomy::RowReduction(RowReduction::Exponentials(softmax)) => {
            let mut all = of_softmax(scene, softmax.scale);
            all.extend(fitted_sums(scene, softmax.scale));
            all
        }
        Anatomy::Contraction(Contraction::Context(_)) => of_context(scene),
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => Vec::new(),
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => Vec::new(),
    }
}

/// The values of one key, which count not at all or twice: a plain rule goes before those of parts of the keys, which may say the same.
pub(super) fn ends<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    if !matches!(scene.node().op.anatomy(), Anatomy::Contraction(Contraction::Context(_))) {
        return Vec::new();
    }
    type Is = fn(usize, usize) -> bool;
    let keys: [(&str, Is); 2] = [("the last key", |k, n| k + 1 == n), ("key 0", |k, _| k == 0)];
    let of = |(key, is): (&str, Is)| {
        [(0.0, "missing from"), (2.0, "taken twice in")].map(|(count, verb)| {
            let taken: Taken = Rc::new(move |k, n| if is(k, n) { count } else { 1.0 });
            (format!("{key} is {verb} every sum"), taken, false)
        })
    };
    taken(scene, keys.into_iter().flat_map(of))
}

fn of_context<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    // Tiles of the keys that the last query of a part sees, and of those that each query sees itself.
    let own = ways("every sum").into_iter().map(|(what, taken, _)| (what, taken, false));
    let of_part = [4usize, 8, 16, 32, 64, 128].map(|t| {
        let what =
            format!("the keys after the last whole tile of {t} of all keys of the part are missing from every sum");
        let taken: Taken = Rc::new(move |k, n| if k >= n / t * t { 0.0 } else { 1.0 });
        (what, taken, true)
    });
    taken(scene, of_part.into_iter().chain(own).chain(of_prefix(scene)).chain(tails()))
}

/// Keys beside the end of a prefix that the sequence has from another one.
fn of_prefix(scene: &Scene<'_>) -> Vec<(String, Taken, bool)> {
    let prefix = Seats::of(scene.e.side.capture).received();
    let of = |t: usize| -> [(String, Taken, bool); 2] {
        let but =
            |keys: std::ops::Range<usize>| -> Taken { Rc::new(move |k, _| if keys.contains(&k) { 0.0 } else { 1.0 }) };
        let in_last = format!(
            "the keys which a prefix from another sequence has in its last page of {t}, which it does not fill, are missing from every sum"
        );
        let behind = format!(
            "the keys that lie behind a prefix from another sequence in the page of {t} in which it ends are missing from every sum"
        );
        [(in_last, but(prefix / t * t..prefix), false), (behind, but(prefix..prefix.next_multiple_of(t)), false)]
    };
    [4usize, 8, 16, 32, 64].into_iter().filter(|t| !prefix.is_multiple_of(*t)).flat_map(of).collect()
}

/// The context where keys are taken so often.
fn taken<'a>(scene: &'a Scene<'a>, ways: impl Iterator<Item = (String, Taken, bool)>) -> Vec<Law<'a>> {
    let Some(sums) = Sums::new(scene).map(Rc::new) else { return Vec::new() };
    let law = |(what, taken, of_part): (String, Taken, bool)| {
        let sums = sums.clone();
        Law::new(what, 1, move |row: &RowAt| {
            let (_, want, bound) = scene.e.row(row);
            let seen = row.place.position + 1;
            let n = if of_part { scene.e.side.capture.steps[row.step].keys() } else { seen };
            // Where all are taken once it is as it should be.
            let counts: Vec<f64> = (0..seen).map(|k| taken(k, n)).collect();
            if counts.iter().all(|count| *count == 1.0) {
                return Some(Row { value: want.to_vec(), bound: bound.to_vec() });
            }
            let value = |(i, want): (usize, &f64)| {
                let Some((a, b)) = sums.factors(row, i) else { return f64::NAN };
                let terms = counts.iter().zip(a.iter().zip(&b)).filter(|(count, _)| **count != 1.0);
                want + terms.map(|(count, (a, b))| (count - 1.0) * a * b).sum::<f64>()
            };
            Some(Row { value: want.iter().enumerate().map(value).collect(), bound: bound.to_vec() })
        })
    };
    ways.map(law).collect()
}

/// Tails of tiles in each of several parts of the keys, which are put together.
fn tails() -> Vec<(String, Taken, bool)> {
    let divided = |parts: &Parts| matches!(parts, Parts::Splits(_) | Parts::Cut { .. } | Parts::Least { .. });
    let parts = Parts::all().into_iter().filter(divided);
    let of = |parts: Parts| {
        [4usize, 8, 16].map(|t| {
            // Least lengths that are multiples of the tile leave the same over.
            let parts_told = match parts {
                Parts::Least { splits, .. } => format!("in {splits} splits of the keys where there are keys enough"),
                parts => parts.to_string(),
            };
            let what = format!(
                "the keys after the last whole tile of {t} of each part are missing from every sum, {parts_told}"
            );
            let taken: Taken = Rc::new(move |k, n| {
                let (mut begin, mut end) = (0, n);
                for at in parts.ends(n) {
                    if at > k {
                        end = at;
                        break;
                    }
                    begin = at;
                }
                if k - begin >= (end - begin) / t * t { 0.0 } else { 1.0 }
            });
            (what, taken, false)
        })
    };
    parts.flat_map(of).collect()
}

fn largest(s: &[f64]) -> f64 {
    s.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn of_softmax<'a>(scene: &'a Scene<'a>, scale: f64) -> Vec<Law<'a>> {
    let law = |what: String, taken: Taken, numerators: bool| {
        Law::new(what, 1, move |row: &RowAt| {
            attended::weights(scene, scale, row, |s, p, n| {
                let seen = &s[..(p + 1).min(n)];
                let (top, count) = (largest(seen), |k: usize| taken(k, seen.len()));
                let sum: f64 = seen.iter().enumerate().map(|(k, s)| count(k) * (s - top).exp()).sum();
                let weight = |k: usize| if numerators && count(k) == 0.0 { 0.0 } else { (seen[k] - top).exp() / sum };
                (0..n).map(|k| if k < seen.len() { weight(k) } else { 0.0 }).collect()
            })
        })
    };
    let whole = ways("the softmax").into_iter().filter(|(.., count)| *count == 0.0);
    let sums = ways("the sum of the softmax").into_iter();
    whole
        .map(|(what, taken, _)| law(what, taken, true))
        .chain(sums.map(|(what, taken, _)| law(what, taken, false)))
        .collect()
}

/// Groups of keys in the sum that weights are divided by, from what their common factor says it was.
fn fitted_sums<'a>(scene: &'a Scene<'a>, scale: f64) -> Vec<Law<'a>> {
    let exponentials = move |row: &RowAt| -> Option<Vec<f64>> {
        let mut all = attended::weights(scene, scale, row, |s, p, n| {
            let top = largest(&s[..(p + 1).min(n)]);
            s.iter().map(|s| (s - top).exp()).collect()
        })?;
        all.value.truncate(row.place.position + 1);
        Some(all.value)
    };
    let (mut products, mut errors, mut known) = (Vec::new(), Vec::new(), usize::MAX);
    for &(r, _) in &scene.fit {
        if r == known {
            continue;
        }
        known = r;
        let row = &scene.e.rows[r];
        let Some(e) = exponentials(row) else { return Vec::new() };
        let (got, ..) = scene.e.row(row);
        let best = (0..e.len()).max_by(|a, b| e[*a].total_cmp(&e[*b])).unwrap_or(0);
        let (sum, implied) = (e.iter().sum::<f64>(), e[best] / f64::from(got[best]));
        if !implied.is_finite() {
            return Vec::new();
        }
        errors.push((implied - sum, 1.0 / (16.0 * UNIT * sum)));
        products.push(e);
    }
    let longest = products.iter().map(Vec::len).max().unwrap_or(0);
    let seen = scene.rows.iter().map(|&r| scene.e.rows[r].place.position + 1).max().unwrap_or(0).max(longest);
    let mut kinds: Vec<Groups> = [2, 4, 8, 16, 32, 64].map(Groups::Lanes).into();
    kinds.extend((0..9).map(|b| Groups::Runs(1 << b)));
    kinds.extend([1, 2, 4, 8, 16].map(Groups::FromEnd));
    kinds.retain(|k| (2..=96).contains(&k.count(seen)) && k.count(seen) * 3 / 2 <= errors.len());
    kinds.sort_by_key(|k| k.count(seen));
    let mut all = Vec::new();
    for kind in kinds {
        let Some(taken) = fitted(&products, &errors, kind, seen) else { continue };
        let what = format!("of the sum of the softmax, {}", told(scene, kind, &taken, seen));
        let parameters = taken.iter().filter(|c| **c != 0.0).count();
        all.push(Law::new(
            what.replace(" in every sum", "").replace(" from every sum", ""),
            parameters,
            move |row: &RowAt| {
                let e = exponentials(row)?;
                let n = e.len();
                let sum: f64 = e.iter().enumerate().map(|(k, e)| (1.0 + taken[kind.of(k, n)]) * e).sum();
                let (_, want, bound) = scene.e.row(row);
                let value: Vec<f64> = (0..want.len()).map(|k| e.get(k).map_or(0.0, |e| e / sum)).collect();
                let bound = value.iter().zip(want).zip(bound);
                let bound =
                    bound.map(|((v, w), b)| if *w == 0.0 { *b } else { b * (v / w).abs().max(1.0) as f32 }).collect();
                Some(Row { value, bound })
            },
        ));
    }
    all
}
