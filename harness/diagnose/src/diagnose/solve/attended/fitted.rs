//! Numbers of an attention that are read off its wrong elements.

use super::super::heads::HeadOf;
use super::queries::{Made, Queries};
use super::{Attended, Keys, Operand, Probe, Small, allowed, largest, probes};
use crate::diagnose::golden::least;
use crate::mutations::to_digits;
use std::collections::{BTreeMap, BTreeSet};

/// Digits of a printed number, if it gives as much.
const DIGITS: [usize; 4] = [1, 2, 4, 8];

/// Elements that a number is fitted to.
const FITTED: usize = 24;

/// Steps in which a number is looked for: coarsely from one end of its range to the other, then ever closer.
const COARSE: usize = 64;
const CLOSE: usize = 48;

/// A window as wide as given weights show, and the position from which on the stage is wrong.
pub(super) fn reach(queries: &Queries<'_>) -> Vec<usize> {
    let scene = queries.scene;
    let rows: BTreeSet<usize> = scene.fit.iter().map(|(r, _)| *r).collect();
    let of = |r: &usize| {
        let (row, (got, ..)) = (&scene.e.rows[*r], scene.e.row(&scene.e.rows[*r]));
        let far = got.iter().take(row.place.position + 1).position(|g| *g != 0.0);
        far.map_or(1, |k| row.place.position - k + 1)
    };
    let window = rows.iter().map(of).max().filter(|_| queries.of_weights);
    // The first so many.
    let seen = |r: &usize| scene.e.row(&scene.e.rows[*r]).0.iter().rposition(|g| *g != 0.0).map(|k| k + 1);
    let ahead: BTreeSet<usize> = rows.iter().filter_map(seen).collect();
    let ahead = ahead.first().copied().filter(|_| queries.of_weights && ahead.len() == 1);
    let first = scene.e.bad_rows().map(|row| row.place.position).min().filter(|p| *p > 0);
    window.into_iter().chain(ahead).chain(first).collect()
}

/// Weights of a stage: exponents that are cut off, or whose exponentials are 0, below a limit: the one that lies between
/// what is so and what is not, in as few digits as may be.
pub(super) fn clipped(queries: &Queries<'_>) -> Vec<Attended> {
    if !queries.of_weights {
        return Vec::new();
    }
    let scene = queries.scene;
    // Distances from the largest score of keys that weigh nothing, and of those that do; limits that weights say.
    let (mut zero, mut some, mut limits) = (f64::NEG_INFINITY, f64::INFINITY, Vec::new());
    for &(r, _) in &scene.fit {
        let (row, (got, ..)) = (&scene.e.rows[r], scene.e.row(&scene.e.rows[r]));
        let query = row.place.head.and_then(|head| queries.query(row, head, (queries.own(head), Made::AsItIs)));
        let Some(query) = query else { return Vec::new() };
        let s = &query.s[..=query.seat.position];
        let top = largest(s);
        let largest_weight = got.iter().fold(0f32, |m, g| m.max(*g));
        for (g, s) in got.iter().zip(s) {
            if *g == 0.0 {
                zero = zero.max(s - top);
            } else {
                some = some.min(s - top);
            }
            let by = f64::from(*g / largest_weight).ln();
            if by.is_finite() && by > s - top + 0.01 {
                limits.push(by);
            }
        }
    }
    let mut all = Vec::new();
    if zero < some && zero > -80.0 {
        all.push(Attended::Below { limit: shortest(zero, some), zero: true });
    }
    if let Some(limit) = limits.first().filter(|first| limits.iter().all(|l| (l - **first).abs() < 1e-4)) {
        all.push(Attended::Below { limit: shortest(limit - 1e-5, limit + 1e-5), zero: false });
    }
    all
}

/// The number with the fewest digits between two.
fn shortest(low: f64, high: f64) -> f64 {
    let middle = f64::midpoint(low, high);
    let rounded = |digits: i32| (middle * 10f64.powi(digits)).round() / 10f64.powi(digits);
    (0..9).map(rounded).find(|v| (low..=high).contains(v)).unwrap_or(middle)
}

/// Heads of the cache that give what each query head has.
pub(super) fn heads(queries: &Queries<'_>) -> Vec<Attended> {
    let (heads, n) = queries.heads();
    if n < 2 {
        return Vec::new();
    }
    let mut by_head: BTreeMap<usize, Vec<Probe>> = BTreeMap::new();
    for probe in probes(queries, 8 * heads) {
        let of = by_head.entry(probe.head).or_default();
        if of.len() < 4 {
            of.push(probe);
        }
    }
    let list_of = |of: Operand| -> Option<Vec<usize>> {
        let mut list: Vec<usize> = (0..heads).map(|head| queries.own(head)).collect();
        for (&head, wrong) in &by_head {
            let gives = |&g: &usize| {
                let mut all = list.clone();
                all[head] = g;
                Attended::Heads { of, heads: HeadOf::Listed(all) }.gives(queries, wrong)
            };
            list[head] = (0..n).filter(|g| *g != queries.own(head)).find(gives)?;
        }
        Some(list)
    };
    let named = |list: Vec<usize>| {
        let known = [HeadOf::Mod, HeadOf::Shifted, HeadOf::AtMost, HeadOf::Next, HeadOf::Before, HeadOf::Mirrored];
        let rare = HeadOf::rare(heads, n);
        let known = (0..n).map(HeadOf::Is).chain(known);
        let agrees = |map: &HeadOf| (0..heads).all(|h| map.of(h, (heads, n)) == list[h]);
        let of_wrong = |map: &HeadOf| by_head.keys().all(|&h| map.of(h, (heads, n)) == list[h]);
        let mut all: Vec<HeadOf> = known.clone().filter(agrees).take(1).collect();
        if all.is_empty() {
            let mut fitting: Vec<HeadOf> = rare.into_iter().filter(agrees).collect();
            all.extend(if fitting.len() > 1 { Some(HeadOf::Either(fitting)) } else { fitting.pop() });
        }
        if all.is_empty() {
            all.extend(known.filter(of_wrong).take(1));
            all.push(HeadOf::Listed(list));
        }
        all
    };
    let of = |of: Operand| {
        let list = if queries.of_weights && of != Operand::Keys { None } else { list_of(of) };
        list.map(named).unwrap_or_default().into_iter().map(move |heads| Attended::Heads { of, heads })
    };
    Operand::ALL.into_iter().flat_map(of).collect()
}

/// Laws with a number.
pub(super) fn numbers(queries: &Queries<'_>) -> Vec<Attended> {
    let all = probes(queries, FITTED);
    if all.is_empty() {
        return Vec::new();
    }
    let mut found = counted(queries, &all);
    found.extend(dropped(queries, &all));
    let scale = queries.scale;
    found.extend(looked_for(queries, &all, (scale / 256.0, scale * 256.0), &|by| Attended::Scaled {
        by,
        instead: scale,
    }));
    found.extend(looked_for(queries, &all, (0.25, 1e3), &Attended::Capped));
    found.push(Attended::Slope(None));
    for sign in [1.0, -1.0] {
        found.extend(looked_for(queries, &all, (1e-5, 8.0), &|slope| Attended::Slope(Some(sign * slope))));
    }
    found
}

/// Groups of keys that count more or less than once, and keys that are let in with a number: how many times they count is
/// read off the element that tells it best, of `o = (A + x·B) / (a + x·b)`.
fn counted(queries: &Queries<'_>, all: &[Probe]) -> Vec<Attended> {
    let mut found = Vec::new();
    let in_digits = |x: f64, of: &dyn Fn(f64) -> Attended| DIGITS.map(|digits| of(to_digits(x, digits)));
    let mut groups =
        vec![Keys::ButFirst(1), Keys::ButLast(1), Keys::ButLastCached, Keys::ButFirstOfPart, Keys::OwnPart];
    groups.extend([Keys::Prompt(0), Keys::ButFirst(4), Keys::ButLast(4)]);
    for m in super::keys::TILES {
        groups.extend([
            Keys::ButFirst(m),
            Keys::BeforeBlock(m),
            Keys::WholeTiles(m),
            Keys::WholeTilesOfPart(m),
            Keys::First(m),
        ]);
        groups.extend([Keys::ButRest(0, m), Keys::ButRest(m - 1, m), Keys::ButLast(m)]);
    }
    for but in groups {
        let of = |k: usize, probe: &Probed| if but.has(k, probe.seat) { None } else { Some(probe.e[k]) };
        if let Some(x) = mass(queries, all, |k, probe| if k <= probe.seat.position { of(k, probe) } else { None })
            && (x - 1.0).abs() > 1e-3
        {
            found.extend(in_digits(x, &|by| Attended::Times { but, by }));
        }
    }
    let mut regions = vec![Keys::All, Keys::Next];
    for m in super::keys::TILES {
        regions.extend([Keys::ToBlockEnd(m), Keys::ToQueriesEnd(m)]);
        regions.extend(super::keys::TILES.map(|queries| Keys::TilesToQueriesEnd { keys: m, queries }));
    }
    for keys in regions {
        let within = |k: usize, probe: &Probed| k > probe.seat.position && keys.has(k, probe.seat);
        if let Some(x) = mass(queries, all, |k, probe| within(k, probe).then(|| probe.e[k])) {
            found.extend(in_digits(whole(x.ln()), &|by| Attended::LetIn { keys, by, added: true }));
        }
        // e^(c − top), which differs from row to row.
        if let Some(x) = mass(queries, all, |k, probe| within(k, probe).then(|| (-probe.top).exp())) {
            found.extend(in_digits(whole(x.ln()), &|by| Attended::LetIn { keys, by, added: false }));
        }
    }
    // A sum that has something more.
    let sink = all.iter().filter_map(|probe| {
        let probed = Probed::of(queries, probe)?;
        let (a, sum) = (0..=probed.seat.position)
            .fold((0.0, 0.0), |(a, sum), k| (a + probed.e[k] * probed.v[k], sum + probed.e[k]));
        let more = a / probe.got - sum;
        (more > 1e-9 * sum).then(|| (probed.size(probe), more.ln() + probed.top))
    });
    if let Some((_, score)) = sink.max_by(|a, b| a.0.total_cmp(&b.0)) {
        found.extend(in_digits(score, &Attended::Sink));
    }
    found
}

/// A number as near a whole one as rounding may leave it, as that.
fn whole(x: f64) -> f64 {
    if (x - x.round()).abs() < 1e-4 { x.round() + 0.0 } else { x }
}

/// What an element is made of.
struct Probed {
    seat: super::keys::Seat,
    top: f64,
    e: Vec<f64>,
    v: Vec<f64>,
}

impl Probed {
    fn of(queries: &Queries<'_>, probe: &Probe) -> Option<Self> {
        let row = &queries.scene.e.rows[probe.at.0];
        let own = queries.own(probe.head);
        let query = queries.query(row, probe.head, (own, Made::AsItIs))?;
        let v = queries.values(row, probe.at.1, (probe.head, own), query.s.len())?;
        let top = largest(&query.s[..=query.seat.position]);
        let e = query.s.iter().map(|s| (s - top).exp()).collect();
        Some(Self { seat: query.seat, top, e, v })
    }

    /// How much of the error is more than rounding.
    fn size(&self, probe: &Probe) -> f64 {
        (probe.got - probe.want).abs() / probe.bound.max(f64::MIN_POSITIVE)
    }
}

/// How many times a group of keys counts, of which `of` gives the exponential where a key is one of them.
fn mass(queries: &Queries<'_>, all: &[Probe], of: impl Fn(usize, &Probed) -> Option<f64>) -> Option<f64> {
    let mut best: Option<(f64, f64)> = None;
    for probe in all {
        let probed = Probed::of(queries, probe)?;
        let [mut own, mut group] = [(0.0, 0.0); 2];
        for k in 0..probed.e.len() {
            match of(k, &probed) {
                Some(e) => group = (group.0 + e * probed.v[k], group.1 + e),
                None if k <= probed.seat.position => {
                    own = (own.0 + probed.e[k] * probed.v[k], own.1 + probed.e[k]);
                }
                None => {}
            }
        }
        // A wrong element that such a group is no part of is not of this law.
        if group.1 == 0.0 {
            return None;
        }
        let (above, below) = (own.0 - probe.got * own.1, probe.got * group.1 - group.0);
        let telling = below.abs() / group.1.max(f64::MIN_POSITIVE) * probed.size(probe);
        if best.is_none_or(|(known, _)| telling > known) {
            best = Some((telling, above / below));
        }
    }
    best.map(|(_, x)| x).filter(|x| x.is_finite() && *x > 0.0)
}

/// Keys that weigh little and are left out: the limit lies between the largest that is, and the smallest that is not.
fn dropped(queries: &Queries<'_>, all: &[Probe]) -> Vec<Attended> {
    let mut found = Vec::new();
    for normed in [false, true] {
        // Between which limits each measure may be.
        let mut limits = [(f64::NEG_INFINITY, f64::INFINITY); 3];
        for probe in all {
            let Some(probed) = Probed::of(queries, probe) else { return Vec::new() };
            let n = probed.seat.position + 1;
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|a, b| probed.e[*a].total_cmp(&probed.e[*b]));
            let sum: f64 = probed.e[..n].iter().sum();
            let (mut result, mut left) = ((0..n).map(|k| probed.e[k] * probed.v[k]).sum::<f64>(), sum);
            let mut near: Option<(f64, usize)> = None;
            for (number, &k) in order.iter().enumerate() {
                let value = result / if normed { left } else { sum };
                let share = (probe.got - value).abs() / (allowed(value, probe.bound as f32) + probe.grain);
                if near.is_none_or(|(least, _)| share < least) {
                    near = Some((share, number));
                }
                result -= probed.e[k] * probed.v[k];
                left -= probed.e[k];
            }
            // As many are left out as the element shows.
            let Some((_, number)) = near.filter(|(share, number)| *share <= 4.0 && *number > 0) else {
                limits = [(f64::INFINITY, f64::NEG_INFINITY); 3];
                break;
            };
            let (last, next) = (probed.e[order[number - 1]], probed.e[order[number]]);
            let kept = (n - number) as f64;
            for (limit, (low, high)) in limits.iter_mut().zip([(last / sum, next / sum), (last, next), (kept, kept)]) {
                *limit = (limit.0.max(low), limit.1.min(high));
            }
        }
        for (what, (low, high)) in [Small::Weight, Small::Exponential, Small::Rank].into_iter().zip(limits) {
            if low <= high && high.is_finite() {
                let limit = if what == Small::Rank { low } else { shortest_log(low, high) };
                found.push(Attended::Dropped { what, limit, normed });
            }
        }
    }
    found
}

/// The number with the fewest significant digits between two that are positive.
fn shortest_log(low: f64, high: f64) -> f64 {
    let middle = (low.max(f64::MIN_POSITIVE) * high).sqrt();
    let power = 10f64.powf(middle.log10().round());
    let rounded = (1..9).map(|digits| to_digits(middle, digits));
    [power].into_iter().chain(rounded).find(|v| *v > low && *v <= high).unwrap_or(middle)
}

/// A number that leaves least of some elements, in a range that is looked through by factors, in few digits first.
fn looked_for(
    queries: &Queries<'_>, all: &[Probe], (low, high): (f64, f64), of: &dyn Fn(f64) -> Attended,
) -> Vec<Attended> {
    let left = |x: f64| -> f64 {
        let attended = of(x.exp());
        let each = all.iter().map(|probe| {
            let row = &queries.scene.e.rows[probe.at.0];
            let weights = attended.weights(queries, row, probe.head)?;
            let (value, _) = attended.element(queries, row, (probe.at.1, probe.head), &weights)?;
            Some(((probe.got - value) / probe.bound.max(f64::MIN_POSITIVE)).powi(2))
        });
        each.sum::<Option<f64>>().filter(|d| !d.is_nan()).unwrap_or(f64::INFINITY)
    };
    queries.scene.count(all.len() * 256 * (COARSE + CLOSE));
    let far: f64 = all.iter().map(|p| ((p.got - p.want) / p.bound.max(f64::MIN_POSITIVE)).powi(2)).sum();
    let (low, high) = (low.ln(), high.ln());
    let at = |i: usize| low + (high - low) * i as f64 / COARSE as f64;
    let coarse: Vec<f64> = (0..=COARSE).map(|i| left(at(i))).collect();
    let Some(best) = (0..=COARSE).min_by(|a, b| coarse[*a].total_cmp(&coarse[*b])).filter(|i| coarse[*i] < far) else {
        return Vec::new();
    };
    let x = least((at(best.saturating_sub(1)), at((best + 1).min(COARSE))), CLOSE, left).exp();
    // A power of two is a number of a few digits as well.
    let power = x.log2().round().exp2();
    let all = DIGITS.map(|digits| of(to_digits(x, digits)));
    all.into_iter().chain((x / power - 1.0).abs().lt(&1e-5).then(|| of(power))).collect()
}
