//! Keys of other sequences that count in a softmax. A sequence alone does not tell: of its own keys each weight is too small by
//! one factor, and whose keys make up for the rest, the keys of the other sequences say.

use super::siblings::Runs;
use super::spots::{Shown, Told};
use crate::capture::{Capture, Step};
use crate::verdict::{Evidence, RowAt, right};
use qdiff_engine::model::{Node, StageId};
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, Attention, Tensor, UNIT};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// How to mend it.
const REMEDY: &str = "mask keys by the sequence that wrote them, not by position alone; take the slots of rejected tokens out of what a \
                      sequence sees; mask what pads a block table";

/// Wrong rows that there must be: fewer may agree by chance.
const ROWS: usize = 4;

/// Sequences whose keys are tried together.
const TOGETHER: usize = 4;

/// A row, and by how much the sum of its exponentials is more than it should be, in units of that sum.
struct Excess<'a> {
    row: &'a RowAt,
    more: f64,
    off: f64,
    /// What each key of each run adds, summed up from the first key on that is not the row's own.
    sums: Vec<Vec<f64>>,
    /// What one more of the first key of each run adds.
    firsts: Vec<f64>,
}

/// The keys of a run.
struct Keys<'a> {
    cache: Cow<'a, Tensor<f32>>,
    whose: String,
    /// Rows that the run which is looked at has in common with it.
    shared: usize,
    /// Keys after each step.
    ends: Vec<usize>,
}

/// Which keys count beside a row's own.
enum Also {
    /// Those of these runs; up to the query's own position, or all.
    Of { runs: Vec<usize>, causal: bool },
    /// All of these runs, which it goes on from, up to the query's own position.
    Left(Vec<usize>),
    /// Copies of the first key of a run.
    First(usize),
}

/// The last value of a stage in a run.
fn last(capture: &Capture, id: StageId) -> Option<Cow<'_, Tensor<f32>>> {
    capture.steps.iter().rev().find_map(|step| step.get(id))
}

/// Whose keys count in a softmax.
pub(super) fn words(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<Told> {
    let searcher = runs[run].0;
    let nodes = &searcher.oracle.graph.nodes;
    let scores = &nodes[*e.node.inputs.first()?];
    let Anatomy::Contraction(Contraction::Scores(attention)) = scores.op.anatomy() else { return None };
    let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = e.node.op.anatomy() else { return None };
    let [query, key] = [0, 1].map(|i| scores.inputs.get(i).map(|input| &nodes[*input]));
    let (query, key) = (query?, key?);
    let capture = searcher.subject.capture;
    let keys = runs.iter().map(|(other, _)| keys_of(other.subject.capture, key.id, capture));
    let mut others: Vec<Keys<'_>> = keys.collect::<Option<_>>()?;
    if let Some(told) = hidden(e, &others, run) {
        return Some(told);
    }
    others[run].shared = 0;
    let excess = |row| excess(e, row, (query, key, attention, softmax.scale), &others);
    let all: Vec<Excess<'_>> = e.bad_rows().map(excess).collect::<Option<_>>()?;
    if all.len() < ROWS {
        return None;
    }
    let mut tried: Vec<Also> = Vec::new();
    let alone: Vec<usize> = (0..others.len()).filter(|other| *other != run).collect();
    for causal in [true, false] {
        tried.extend(alone.iter().map(|other| Also::Of { runs: vec![*other], causal }));
        if (2..=TOGETHER).contains(&alone.len()) {
            tried.push(Also::Of { runs: alone.clone(), causal });
        }
    }
    let left: Vec<usize> = (0..run).filter(|other| others[*other].shared > 0).collect();
    tried.extend((left.len() > 1).then_some(Also::Left(left)));
    tried.extend((0..others.len()).map(Also::First));
    tried.into_iter().find_map(|also| {
        let words = also.told(e, &all, &others)?;
        Some(Told {
            words,
            remedy: REMEDY,
            shown: Shown { what: also.of_any_run(&others), links: Vec::new(), ..Shown::default() },
        })
    })
}

/// Keys that a sequence shares with others, where all wrong rows leave out just these: the others weigh as without them.
fn hidden(e: &Evidence<'_>, others: &[Keys<'_>], run: usize) -> Option<Told> {
    let mut rows = e.bad_rows().peekable();
    rows.peek()?;
    let mut first: Option<usize> = None;
    let mut count = 0;
    for row in rows {
        let (got, want, bound) = e.row(row);
        let from = got.iter().position(|g| *g != 0.0)?;
        if from == 0 || *first.get_or_insert(from) != from {
            return None;
        }
        let rest: f64 = want.get(from..=row.place.position)?.iter().sum();
        let gives = |k: usize| {
            right(got[k], if k < from { 0.0 } else { want[k] / rest }, 4.0 * bound[k].max((UNIT / rest) as f32))
        };
        if !(0..=row.place.position).all(gives) {
            return None;
        }
        count += 1;
    }
    let first = first.filter(|_| count >= ROWS)?;
    let sharing = others.iter().enumerate().filter(|(other, keys)| *other != run && keys.shared == first);
    let whose: Vec<String> = sharing.map(|(_, keys)| keys.whose.clone()).collect();
    (!whose.is_empty()).then(|| {
        let whose = whose.join(" and ");
        let words = format!("its first {first} keys, which it shares with {whose}, are not seen: they weigh nothing");
        Told {
            words,
            remedy: REMEDY,
            shown: Shown { what: format!("shared with {whose}"), links: Vec::new(), ..Shown::default() },
        }
    })
}

/// The keys of a run, and how many of them the one that is looked at has in common with it.
fn keys_of<'a>(capture: &'a Capture, key: StageId, own: &Capture) -> Option<Keys<'a>> {
    let cache = last(capture, key)?;
    let ends = capture.steps.iter().map(Step::keys).collect();
    let whose = capture.steps.last()?.whose.beside(own.steps.last()?.whose);
    Some(Keys { cache, whose, shared: in_common(capture, own), ends })
}

/// Tokens that two runs have in common: one of them goes on from the other, or both from a third.
pub(super) fn in_common(a: &Capture, b: &Capture) -> usize {
    let mut shared = 0;
    for (a, b) in a.steps.iter().zip(&b.steps) {
        if (a.run, a.first) != (b.run, b.first) {
            break;
        }
        shared += a.tokens.len().min(b.tokens.len());
        if a.tokens.len() != b.tokens.len() {
            break;
        }
    }
    shared
}

/// How much the sum of a row's exponentials is too large; nothing where it is not all that is wrong.
fn excess<'a>(
    e: &Evidence<'_>, row: &'a RowAt, (query, key, a, scale): (&Node, &Node, &Attention, f64), others: &[Keys<'_>],
) -> Option<Excess<'a>> {
    let (got, want, bound) = e.row(row);
    let best = (0..want.len()).max_by(|a, b| want[*a].total_cmp(&want[*b]))?;
    let factor = f64::from(got[best]) / want[best];
    let ratios = (0..want.len()).all(|i| right(got[i], want[i] * factor, 4.0 * bound[i]));
    let more = 1.0 / factor - 1.0;
    if !ratios || !more.is_finite() || more <= 0.0 {
        return None;
    }
    let (step, head) = (&e.side.capture.steps[row.step], row.place.head?);
    let token = (0..step.rows()).find(|&r| step.first + step.offset(r) == row.place.position)?;
    let q = step.get(query.id)?;
    let q = q.row(token).get(head * a.head_dim..(head + 1) * a.head_dim)?.to_vec();
    let from = a.kv_head(head) * a.head_dim;
    let score = |cache: &Tensor<f32>, at: usize| -> Option<f64> {
        let k = cache.data.get(at * cache.row_len() + from..)?.get(..a.head_dim)?;
        Some(scale * q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>())
    };
    let own = step.get(key.id)?;
    let most = score(&own, best)?;
    let share = |cache: &Tensor<f32>, at: usize| Some(want[best] * (score(cache, at)? - most).exp());
    let sums = |other: &Keys<'_>| {
        let mut sum = vec![0.0; other.shared + 1];
        for at in other.shared..other.cache.rows() {
            sum.push(sum[at] + share(&other.cache, at)?);
        }
        Some(sum)
    };
    Some(Excess {
        row,
        more,
        // Scores are products of f32, and an exponential is as much off as its argument.
        off: 8.0 * f64::from(bound[best]) / want[best] * (1.0 + more) + 64.0 * UNIT * (1.0 + most.abs()) * (1.0 + more),
        sums: others.iter().map(sums).collect::<Option<_>>()?,
        firsts: others.iter().map(|other| share(&other.cache, 0)).collect::<Option<_>>()?,
    })
}

/// The keys of a run that are not those of the one that is looked at, in words.
fn of(run: &usize, others: &[Keys<'_>]) -> String {
    match others[*run].shared {
        0 => others[*run].whose.clone(),
        from => format!("{} from position {from} on", others[*run].whose),
    }
}

impl Also {
    /// What it is, but for positions and numbers of one run.
    fn of_any_run(&self, others: &[Keys<'_>]) -> String {
        let (what, runs) = match self {
            Self::Of { runs, causal: true } => ("causal", &runs[..]),
            Self::Of { runs, causal: false } => ("all", &runs[..]),
            Self::Left(runs) => ("left", &runs[..]),
            Self::First(run) => ("first", std::slice::from_ref(run)),
        };
        let whose: Vec<String> = runs.iter().map(|run| others[*run].whose.clone()).collect();
        format!("{what} {}", whose.join(" "))
    }

    /// What it is called, if it gives every wrong row.
    fn told(&self, e: &Evidence<'_>, all: &[Excess<'_>], others: &[Keys<'_>]) -> Option<String> {
        let gives = |row: &Excess<'_>, more: f64| {
            let (got, want, bound) = e.row(row.row);
            (more - row.more).abs() <= row.off
                && (0..want.len()).all(|i| right(got[i], want[i] / (1.0 + more), 4.0 * bound[i]))
        };
        match self {
            Self::Of { runs, causal } => all
                .iter()
                .all(|row| choices(runs, *causal, row, others).into_iter().any(|more| gives(row, more)))
                .then(|| {
                    let whose: Vec<String> = runs.iter().map(|run| of(run, others)).collect();
                    let until = if *causal { "up to the query's own position" } else { "at any position" };
                    format!("keys of {} count in the softmax, too, {until}", whose.join(" and of "))
                }),
            Self::Left(runs) => {
                let more = |row: &Excess<'_>| -> f64 {
                    let of = |run: &usize| row.sums[*run].get(row.row.place.position + 1).or(row.sums[*run].last());
                    runs.iter().filter_map(of).sum()
                };
                let whose: Vec<String> = runs.iter().map(|run| of(run, others)).collect();
                all.iter().all(|row| gives(row, more(row))).then(|| {
                    format!(
                        "keys of {} count in the softmax, too, up to the query's own position",
                        whose.join(" and of ")
                    )
                })
            }
            Self::First(run) => {
                // As often in all heads of a row.
                let mut times: BTreeMap<(usize, usize), f64> = BTreeMap::new();
                for row in all {
                    let count = (row.more / row.firsts[*run]).round();
                    let known = *times.entry((row.row.step, row.row.place.position)).or_insert(count);
                    if count < 1.0 || known != count || !gives(row, count * row.firsts[*run]) {
                        return None;
                    }
                }
                let (least, most) = times.values().fold((f64::MAX, 0f64), |(l, m), n| (l.min(*n), m.max(*n)));
                let often = match (least as u64, most as u64) {
                    (1, 1) => "once more".to_owned(),
                    (least, most) if least == most => format!("{least} more times"),
                    (least, most) => format!("{least} to {most} more times"),
                };
                Some(format!("the key of token 0 of {} counts {often} in the softmax", others[*run].whose))
            }
        }
    }
}

/// What the keys of these runs may add to a row, each as far as it was after some step.
fn choices(runs: &[usize], causal: bool, row: &Excess<'_>, others: &[Keys<'_>]) -> Vec<f64> {
    let mut all = vec![0.0];
    for &run in runs {
        let (sums, shared) = (&row.sums[run], others[run].shared);
        let until = |end: &usize| if causal { (*end).min(row.row.place.position + 1) } else { *end };
        let mut ends: Vec<usize> = others[run].ends.iter().map(until).filter(|end| *end > shared).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut added: Vec<f64> = ends.iter().filter_map(|end| sums.get(*end).copied()).collect();
        // Of several, one may have no keys yet.
        added.extend((runs.len() > 1).then_some(0.0));
        all = all.iter().flat_map(|sum| added.iter().map(move |more| sum + more)).collect();
    }
    all
}
