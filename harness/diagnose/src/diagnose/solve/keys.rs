//! Softmax over other keys, or divided by the sum over other keys: which keys, by their place and their distance from
//! the query; and other ways to make weights of scores.

use super::scene::{Layout, Scene};
use super::{Law, Row, short};
use crate::capture::{Capture, Step};
use crate::verdict::RowAt;
use qdiff_engine::model::Node;
use qdiff_engine::ops::anatomy::RowReduction;
use qdiff_engine::ops::{Anatomy, UNIT};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Whether a key is taken: `(key, position of the query, keys there are)`.
pub(in super::super) type Taken = Arc<dyn Fn(usize, usize, usize) -> bool + Send + Sync>;

/// Choices of keys that kernels make most often, where they make a wrong one.
pub(in super::super) fn usual(capture: &Capture) -> Vec<(String, Taken)> {
    let mut all: Vec<(String, Taken)> = vec![
        ("the keys before the query's own, which is not seen".to_owned(), Arc::new(|k, p, _| k < p)),
        ("one key too many: the next token is seen".to_owned(), Arc::new(|k, p, _| k <= p + 1)),
        ("all keys of the part: nothing is masked".to_owned(), Arc::new(|_, _, _| true)),
        ("all keys but the first".to_owned(), Arc::new(|k, p, _| k <= p && k > 0)),
        ("the query's own key alone".to_owned(), Arc::new(|k, p, _| k == p)),
    ];
    all.extend(by_parts(capture));
    all
}

/// Those that go by the parts of the prompt, and by what is decoded after it; none of a run in one part, nor of several
/// sequences, whose positions are not told apart here.
fn by_parts(capture: &Capture) -> Vec<(String, Taken)> {
    let parts: Arc<[usize]> = capture.steps.iter().map(|step| step.first).collect();
    let prompt = capture.steps.iter().filter(|step| step.index == 0).map(Step::keys).max().unwrap_or(0);
    let first = move |p: usize| parts.iter().copied().filter(|first| *first <= p).max().unwrap_or(0);
    if capture.steps.len() < 2 || capture.steps.iter().any(|step| step.sequence != capture.steps[0].sequence) {
        return Vec::new();
    }
    let [own, rows, cached] = [first.clone(), first.clone(), first];
    vec![
        (
            "the keys of the query's own part alone: those in the cache are not seen".to_owned(),
            Arc::new(move |k, p, _| k <= p && k >= own(p)),
        ),
        (
            "the keys up to the query's row in its part, which is taken for its position".to_owned(),
            Arc::new(move |k, p, _| k <= p - rows(p)),
        ),
        (
            "the keys that were in the cache before the part: those of the part itself are not seen".to_owned(),
            Arc::new(move |k, p, _| k < cached(p) || cached(p) == 0 && k <= p),
        ),
        (
            "the keys of the prompt alone: those of decoded tokens are not seen".to_owned(),
            Arc::new(move |k, p, _| k <= p && k < prompt),
        ),
    ]
}

/// The same where the prompt alone is read so: single tokens have kernels of their own.
pub(in super::super) fn in_prefill(capture: &Capture, (name, taken): &(String, Taken)) -> (String, Taken) {
    let prompt = capture.steps.iter().filter(|step| step.index == 0).map(Step::keys).max().unwrap_or(0);
    let taken = taken.clone();
    let other = move |k, p, n| if p < prompt { taken(k, p, n) } else { k <= p };
    (format!("{name}, in the prefill only"), Arc::new(other))
}

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = scene.node().op.anatomy() else {
        return Vec::new();
    };
    let scale = softmax.scale;
    let mut all = Vec::new();
    for (name, taken) in choices(scene) {
        let (numerators, sums) = (taken.clone(), taken);
        let law = move |row: &RowAt| weights(scene, scale, row, |s, p, n| over(s, |k| numerators(k, p, n)));
        all.push(Law::new(format!("the softmax is over {name}"), 1, law));
        let law = move |row: &RowAt| {
            weights(scene, scale, row, |s, p, n| {
                let (top, causal) = (largest(&s[..=p.min(n - 1)]), p.min(n - 1) + 1);
                let sum: f64 = (0..n).filter(|&k| sums(k, p, n)).map(|k| (s[k] - top).exp()).sum();
                (0..n).map(|k| if k < causal { (s[k] - top).exp() / sum } else { 0.0 }).collect()
            })
        };
        all.push(Law::new(format!("the sum that weights are divided by is over {name}"), 1, law));
    }
    all.extend(others(scene, scale));
    all
}

/// Choices of keys that are not the right one.
fn choices(scene: &Scene<'_>) -> Vec<(String, Taken)> {
    let mut all = usual(scene.e.side.capture);
    // Windows as wide as the given values show.
    let mut reach = 0;
    let rows: BTreeSet<usize> = scene.fit.iter().map(|(r, _)| *r).collect();
    for r in rows {
        let (row, (got, ..)) = (&scene.e.rows[r], scene.e.row(&scene.e.rows[r]));
        let far = got.iter().take(row.place.position + 1).position(|g| *g != 0.0);
        reach = reach.max(far.map_or(0, |k| row.place.position - k));
    }
    for window in [reach + 1, 4, 8, 16, 32, 64, 128, 256, 512, 1024] {
        all.push((
            format!("keys less than {window} before the query: a sliding window"),
            Arc::new(move |k, p, _| k <= p && p - k < window),
        ));
        all.push((format!("the first {window} keys alone"), Arc::new(move |k, p, _| k <= p && k < window)));
        let block = format!("the keys of the query's own block of {window}");
        all.push((block, Arc::new(move |k, p, _| k <= p && k / window == p / window)));
        let block = format!("all keys up to the end of the query's own {window}: later ones are not masked");
        all.push((block, Arc::new(move |k, p, n| k < (p + 1).next_multiple_of(window).min(n))));
        let block = format!("the keys before the query's own {window}");
        all.push((block, Arc::new(move |k, p, _| k < p / window * window)));
        all.push((
            format!("the keys before the query's own {window}, and its own key"),
            Arc::new(move |k, p, _| k < p / window * window || k == p),
        ));
        let last = format!("the last {window} keys and the first");
        all.push((last, Arc::new(move |k, p, _| k <= p && (p - k < window || k == 0))));
        if window > 1 {
            all.push((
                format!("whole tiles of {window} keys: the tail is left out"),
                Arc::new(move |k, p, _| k <= p && k < (p + 1) / window * window),
            ));
        }
    }
    for m in [2usize, 4, 8, 16, 32] {
        for r in 0..m {
            all.push((format!("the keys but those ≡ {r} mod {m}"), Arc::new(move |k, p, _| k <= p && k % m != r)));
        }
        all.push((
            format!("the keys but the last where (keys mod {m}) = 1"),
            Arc::new(move |k, p, _| k <= p && !(k == p && (p + 1) % m == 1)),
        ));
    }
    for lost in 1..=4usize {
        all.push((format!("all keys but the last {lost}"), Arc::new(move |k, p, _| k + lost <= p)));
        all.push((format!("all keys but the first {lost}"), Arc::new(move |k, p, _| k <= p && k >= lost)));
    }
    all
}

fn largest(s: &[f64]) -> f64 {
    s.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The softmax over chosen keys; zero for all others.
fn over(s: &[f64], taken: impl Fn(usize) -> bool) -> Vec<f64> {
    let chosen = || (0..s.len()).filter(|&k| taken(k));
    let top = chosen().map(|k| s[k]).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = chosen().map(|k| (s[k] - top).exp()).sum();
    (0..s.len()).map(|k| if taken(k) { (s[k] - top).exp() / sum } else { 0.0 }).collect()
}

/// A row of weights from its scaled scores: `f(scores, position, keys)`.
pub(super) fn weights(
    scene: &Scene<'_>, scale: f64, row: &RowAt, f: impl Fn(&[f64], usize, usize) -> Vec<f64>,
) -> Option<Row> {
    let s = scores(scene, scale, row.step, scene.token(row).0, row.place.head?)?;
    let value = f(&s, row.place.position, s.len());
    let bound = value.iter().zip(&s).map(|(v, s)| (UNIT * v * (8.0 + s.abs())) as f32).collect();
    (value.len() >= row.range.len()).then_some(Row { value, bound })
}

fn others<'a>(scene: &'a Scene<'a>, scale: f64) -> Vec<Law<'a>> {
    type Make = fn(&[f64], usize) -> Vec<f64>;
    let causal = |s: &[f64], p: usize| s[..=p.min(s.len() - 1)].to_vec();
    let makes: [(&str, Make); 5] = [
        ("weights are not divided by their sum", |s, _| {
            let top = largest(s);
            s.iter().map(|s| (s - top).exp()).collect()
        }),
        ("1 is added to the sum that weights are divided by", |s, _| {
            let top = largest(s);
            let sum: f64 = 1.0 + s.iter().map(|s| (s - top).exp()).sum::<f64>();
            s.iter().map(|s| (s - top).exp() / sum).collect()
        }),
        ("a key with score 0 is added to the sum: softmax off by one", |s, _| {
            let top = largest(s).max(0.0);
            let sum: f64 = (-top).exp() + s.iter().map(|s| (s - top).exp()).sum::<f64>();
            s.iter().map(|s| (s - top).exp() / sum).collect()
        }),
        ("all keys weigh the same", |s, _| vec![1.0 / s.len() as f64; s.len()]),
        ("powers of two instead of e", |s, _| {
            let top = largest(s);
            let sum: f64 = s.iter().map(|s| (s - top).exp2()).sum();
            s.iter().map(|s| (s - top).exp2() / sum).collect()
        }),
    ];
    let padded = move |row: &RowAt, make: &dyn Fn(&[f64], usize) -> Vec<f64>| {
        weights(scene, scale, row, |s, p, n| {
            let mut all = make(&causal(s, p), p);
            all.resize(n, 0.0);
            all
        })
    };
    let mut all: Vec<Law<'a>> =
        makes.into_iter().map(|(what, make)| Law::new(what, 0, move |row: &RowAt| padded(row, &make))).collect();
    for tile in [2usize, 4, 8, 16, 32, 64, 128, 256] {
        let make = move |s: &[f64], _: usize| {
            let (top, padding) = (largest(s).max(0.0), s.len().next_multiple_of(tile) - s.len());
            let sum = padding as f64 * (-top).exp() + s.iter().map(|s| (s - top).exp()).sum::<f64>();
            s.iter().map(|s| (s - top).exp() / sum).collect()
        };
        let what = format!("the keys that fill up the last {tile} are in the sum with score 0");
        all.push(Law::new(what, 1, move |row: &RowAt| padded(row, &make)));
        let make = move |s: &[f64], _: usize| {
            let (top, padding) = (largest(s), s.len().next_multiple_of(tile) - s.len());
            let sum = padding as f64 + s.iter().map(|s| (s - top).exp()).sum::<f64>();
            s.iter().map(|s| (s - top).exp() / sum).collect()
        };
        let what = format!("the keys that fill up the last {tile} are in the sum with the largest score");
        all.push(Law::new(what, 1, move |row: &RowAt| padded(row, &make)));
        let make = move |s: &[f64], _: usize| {
            let (top, padding) = (largest(s), s.len().next_multiple_of(tile) - s.len());
            let last = s.last().map_or(0.0, |s| (s - top).exp());
            let sum = padding as f64 * last + s.iter().map(|s| (s - top).exp()).sum::<f64>();
            s.iter().map(|s| (s - top).exp() / sum).collect()
        };
        let what = format!("the keys that fill up the last {tile} are in the sum with the score of the last key");
        all.push(Law::new(what, 1, move |row: &RowAt| padded(row, &make)));
    }
    all.extend(clipped(scene, scale));
    all.extend(divisors(scene, scale));
    all.extend(slopes(scene, scale));
    // The sum of an online softmax whose part so far is not rescaled when the maximum moves.
    for tile in [1usize, 2, 4, 8, 16, 32, 64, 128] {
        let make = move |s: &[f64], _: usize| {
            let (mut top, mut sum) = (f64::NEG_INFINITY, 0.0);
            for part in s.chunks(tile) {
                top = top.max(largest(part));
                sum += part.iter().map(|s| (s - top).exp()).sum::<f64>();
            }
            s.iter().map(|s| (s - top).exp() / sum).collect()
        };
        let what = format!(
            "the sum so far is not rescaled when the maximum moves, in tiles of {tile}: the factor e^(m_old − m_new) is missing"
        );
        all.push(Law::new(what, 1, move |row: &RowAt| padded(row, &make)));
    }
    if let Some(by) = factor(scene, scale) {
        let make = move |s: &[f64], _: usize| {
            let scaled: Vec<f64> = s.iter().map(|s| s * by).collect();
            over(&scaled, |_| true)
        };
        let what = format!("scores are multiplied by {} instead of {}", short(scale * by), short(scale));
        let law = Law::new(what, 1, move |row: &RowAt| padded(row, &make));
        all.push(law.of_model("factor of the scores", scale * by));
    }
    all
}

/// Exponents that are cut off, or whose exponentials are 0, below a limit: the one that lies between what is so and what is
/// not, in as few digits as may be.
fn clipped<'a>(scene: &'a Scene<'a>, scale: f64) -> Vec<Law<'a>> {
    // Distances from the largest score of keys that weigh nothing, and of those that do; limits that weights say.
    let (mut zero, mut some, mut limits) = (f64::NEG_INFINITY, f64::INFINITY, Vec::new());
    for &(r, _) in &scene.fit {
        let (row, (got, ..)) = (&scene.e.rows[r], scene.e.row(&scene.e.rows[r]));
        let Some(s) = row.place.head.and_then(|head| scores(scene, scale, row.step, scene.token(row).0, head)) else {
            return Vec::new();
        };
        let seen = ..(row.place.position + 1).min(s.len());
        let (s, top) = (&s[seen], largest(&s[seen]));
        let largest_weight = got.iter().fold(0f32, |m, g| m.max(*g));
        for (g, s) in got.iter().zip(s) {
            if *g == 0.0 {
                zero = zero.max(s - top)
            } else {
                some = some.min(s - top)
            }
            let by = f64::from(*g / largest_weight).ln();
            if by.is_finite() && by > s - top + 0.01 {
                limits.push(by);
            }
        }
    }
    let mut all = Vec::new();
    if zero < some && zero > -80.0 {
        let limit = shortest(zero, some);
        all.push((format!("the exponential is 0 where the exponent is below {limit}"), limit, true));
    }
    if let Some(limit) = limits.first().filter(|first| limits.iter().all(|l| (l - **first).abs() < 1e-4)) {
        let limit = shortest(limit - 1e-5, limit + 1e-5);
        all.push((format!("exponents are cut off at {limit} from below"), limit, false));
    }
    let law = |(what, limit, zero): (String, f64, bool)| {
        Law::new(what, 1, move |row: &RowAt| {
            weights(scene, scale, row, |s, p, n| {
                let seen = &s[..(p + 1).min(n)];
                let top = largest(seen);
                let of = |s: &f64| match s - top < limit {
                    true if zero => 0.0,
                    true => limit.exp(),
                    false => (s - top).exp(),
                };
                let e: Vec<f64> = seen.iter().map(of).collect();
                let sum: f64 = e.iter().sum();
                e.iter().map(|e| e / sum).chain(std::iter::repeat(0.0)).take(n).collect()
            })
        })
    };
    all.into_iter().map(law).collect()
}

/// The number with the fewest digits between two.
fn shortest(low: f64, high: f64) -> f64 {
    let middle = f64::midpoint(low, high);
    let rounded = |digits: i32| (middle * 10f64.powi(digits)).round() / 10f64.powi(digits);
    (0..7).map(rounded).find(|v| (low..=high).contains(v)).unwrap_or(middle)
}

/// Scores with something added that grows with the distance of the key, as ALiBi does; its slope read off the row that shows
/// it best, or that of ALiBi for its head.
fn slopes<'a>(scene: &'a Scene<'a>, scale: f64) -> Vec<Law<'a>> {
    let heads = scene.e.rows.iter().filter_map(|r| r.place.head).max().unwrap_or(0) + 1;
    let of_row = |row: &RowAt| -> Option<f64> {
        let s = scores(scene, scale, row.step, scene.token(row).0, row.place.head?)?;
        let (got, ..) = scene.e.row(row);
        let seen = got.iter().zip(&s).take(row.place.position + 1).enumerate().filter(|(_, (g, _))| **g > 1e-12);
        let points: Vec<(f64, f64)> = seen.map(|(k, (g, s))| (k as f64, f64::from(*g).ln() - s)).collect();
        let (first, last) = (points.first()?, points.last()?);
        (last.0 > first.0).then(|| (last.1 - first.1) / (last.0 - first.0))
    };
    let added = |what: String, slope: Box<dyn Fn(usize) -> f64>| {
        Law::new(what, 1, move |row: &RowAt| {
            let slope = slope(row.place.head?);
            weights(scene, scale, row, |s, p, n| {
                let mut all = over(&(0..=p.min(n - 1)).map(|k| s[k] + slope * k as f64).collect::<Vec<_>>(), |_| true);
                all.resize(n, 0.0);
                all
            })
        })
    };
    let fitted =
        scene.fit.iter().filter_map(|&(r, _)| of_row(&scene.e.rows[r])).max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let mut all = Vec::new();
    if let Some(slope) = fitted.filter(|s| s.is_finite() && s.abs() > 1e-6) {
        let exact = [1.0, 2.0, 4.0, 8.0, 10.0, 100.0, 1000.0].iter().flat_map(|d| [1.0 / d, -1.0 / d]);
        let exact = (1..12).map(|b| 0.5f64.powi(b)).flat_map(|s| [s, -s]).chain(exact);
        let slope = exact
            .min_by(|a, b| (a - slope).abs().total_cmp(&(b - slope).abs()))
            .filter(|e| (e - slope).abs() < 1e-3 * slope.abs())
            .unwrap_or(slope);
        let verb = if slope > 0.0 { "taken off" } else { "added to" };
        let what = format!("{} times the key's distance is {verb} its score", short(slope.abs()));
        all.push(added(what, Box::new(move |_| slope)));
    }
    let what = "the key's distance times 2^(−8h/H) is taken off its score, as ALiBi does".to_owned();
    all.push(added(what, Box::new(move |head| 2f64.powf(-8.0 * (head + 1) as f64 / heads as f64))));
    all
}

/// Weights divided by the sum of another row.
fn divisors<'a>(scene: &'a Scene<'a>, scale: f64) -> impl Iterator<Item = Law<'a>> {
    let heads = scene.e.rows.iter().filter_map(|r| r.place.head).max().unwrap_or(0) + 1;
    let side = |by: i64| if by < 0 { "before" } else { "after" };
    let of_token = [-1i64, 1].map(|by| (format!("of the token {} in the part", side(by)), by, 0));
    let of_head = (1..heads).map(|by| (format!("of the head {by} further on, round the end"), 0, by));
    of_token.into_iter().chain(of_head).map(move |(of, token_by, head_by)| {
        Law::new(format!("weights are divided by the sum {of}"), 1, move |row: &RowAt| {
            let (token, head) = (scene.token(row).0 as i64 + token_by, (row.place.head? + head_by) % heads);
            let other = scores(scene, scale, row.step, usize::try_from(token).ok()?, head)?;
            let position = usize::try_from(row.place.position as i64 + token_by).ok()?;
            let seen = other.get(..=position)?;
            let sum: f64 = seen.iter().map(|s| (s - largest(seen)).exp()).sum();
            weights(scene, scale, row, |s, p, n| {
                let top = largest(&s[..(p + 1).min(n)]);
                (0..n).map(|k| if k <= p { (s[k] - top).exp() / sum } else { 0.0 }).collect()
            })
        })
    })
}

/// The scaled scores of a head of a token, of this stage of weights.
fn scores(scene: &Scene<'_>, scale: f64, step: usize, token: usize, head: usize) -> Option<Vec<f64>> {
    of_weights(scene, scene.node(), scale, step, token, head)
}

/// The scaled scores of a head of a token that a stage of weights is made of.
pub(super) fn of_weights(
    scene: &Scene<'_>, weights: &Node, scale: f64, step: usize, token: usize, head: usize,
) -> Option<Vec<f64>> {
    let from = &scene.e.oracle.graph.nodes[weights.inputs[0]];
    let (layout, scores) = (Layout::of(from), scene.tensor(step, from.id)?);
    let (n, (tokens, ..)) = (*scores.shape.last()?, layout.extents(&scores.shape));
    let at = |k| scale * f64::from(scores.data[layout.at(&scores.shape, token, head * n + k)]);
    (token < tokens).then(|| (0..n).map(at).collect())
}

/// The slope of the logarithm of the given values over the scaled scores, in the row that shows it best.
fn factor(scene: &Scene<'_>, scale: f64) -> Option<f64> {
    let mut best: Option<(f64, f64)> = None;
    for &(r, _) in &scene.fit {
        let row = &scene.e.rows[r];
        let (got, ..) = scene.e.row(row);
        let s = weights(scene, scale, row, |s, _, _| s.to_vec())?.value;
        let pairs = got.iter().zip(&s).take(row.place.position + 1).filter(|(g, _)| **g > 1e-20);
        type Ends = (Option<(f64, f64)>, Option<(f64, f64)>);
        let (low, high) = pairs.fold((None, None), |(low, high): Ends, (g, s)| {
            let pair = (*s, f64::from(*g).ln());
            (Some(low.filter(|l| l.0 <= pair.0).unwrap_or(pair)), Some(high.filter(|h| h.0 >= pair.0).unwrap_or(pair)))
        });
        let (Some(low), Some(high)) = (low, high) else { continue };
        let spread = high.0 - low.0;
        if spread > 1e-3 && best.is_none_or(|(known, _)| spread > known) {
            best = Some((spread, (high.1 - low.1) / spread));
        }
    }
    best.map(|(_, slope)| slope)
}
