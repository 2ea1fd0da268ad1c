//! Through a segment: stages that were not captured are computed otherwise, and must give the captured values at its
//! end.
//!
//! Every mutation is tried on all stages of the segment together that it concerns, as whoever wrote them made the same
//! mistake in each, and then on each alone. Beside the mutations stand ways to be otherwise that `solve` reads off the
//! values of a stage that was captured, and that must be guessed here: windows, soft caps, activations, scales.
//! What fits some wrong rows is evaluated on all. It must give every wrong element within its bound, leave an eighth of
//! the residual at most, and say [`BITS`] more of the wrong elements than that they are wrong. What else of the same kind
//! does so too is listed beside it: values at the end of a segment may not separate its stages.

#[cfg(test)]
mod tests;

use super::fit::{Fit, Scope, fit};
use super::golden::least;
use super::searcher::{Searcher, named};
use super::solve::{ACTIVATIONS, BITS, Keys, Reading, Seats, alike, exponents};
use crate::mutations::{CauseId, Explains, FaultSite, Mutation, catalogue, find, to_digits};
use crate::verdict::{
    Evidence, Expected, Inside, Otherwise, RowAt, Rows, Valued, right, settle_all, tolerance::ELEMENT_FACTOR,
};
use qdiff_engine::model::{Axis, Graph, Node, Role, StageId, WeightSource as _};
use qdiff_engine::ops::anatomy::{Activation, Elementwise, RowReduction};
use qdiff_engine::ops::{self, Anatomy, Softmax, Tensor, UNIT};
use std::ops::Range;

/// The share of the residual that may be left.
const LEFT: f64 = 0.125;

/// Wrong rows that a way is tried on first.
const FEW: usize = 3;

/// Ways that are evaluated together on one of them, and the columns of it that are looked at first.
const AT_ONCE: usize = 64;
const COLUMNS: usize = 64;

/// Steps in which a number is looked for: coarsely from one end of its range to the other, then ever closer.
const COARSE: usize = 24;
const CLOSE: usize = 32;

/// The share of the squared distance that must be gone before a number is looked for closely.
const LITTLE: f64 = 0.5;

/// Values of a mutation that are tried on stages alone.
const ALONE: usize = 4;

/// Digits in which a number is reported if it explains as much.
const DIGITS: [usize; 4] = [1, 2, 4, 8];

/// The mutation whose number is a factor of the scores.
const SCALE: &str = "attn-scale-wrong";

/// The mutation whose number is the base of the rotation.
const BASE: &str = "rope-base";

/// A way to be otherwise.
#[derive(Clone)]
struct Way {
    what: What,
    others: Otherwise,
    reads: Option<Reading>,
}

#[derive(Clone)]
enum What {
    Known(&'static Mutation, Vec<f64>),
    Else(String),
}

/// A way as it is looked for in other segments: its description, the names of its stages, and how they read weights where
/// that is what a law says of another stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    what: String,
    stages: Vec<&'static str>,
    reads: Option<Reading>,
}

/// How weights are read, in words.
pub(super) type Reads = (String, Reading);

/// A way that gives the captured values.
pub(super) struct Found {
    pub(super) key: Key,
    /// Where it is otherwise.
    pub(super) stages: Vec<StageId>,
    /// What it is.
    pub(super) story: String,
    pub(super) remedy: String,
    /// Its name in the catalogue, if it has one.
    pub(super) known: Option<(CauseId, Explains)>,
    pub(super) fit: Fit,
    /// Wrong elements, and those of rows that nothing was fitted on.
    pub(super) elements: (usize, usize),
}

/// What gives all that is wrong at the end of a segment; that which was found before first.
pub(super) fn through(searcher: &Searcher<'_>, e: &Evidence<'_>, known: &[Key]) -> Option<Found> {
    tried(searcher, e, |segment, all| {
        let again = |way: &&Way| known.contains(&way.key(&e.oracle.graph));
        let (first, rest): (Vec<&Way>, Vec<&Way>) = all.iter().partition(again);
        let known = first.into_iter().find_map(|way| segment.told(way, &[], true));
        let looked =
            || rest.chunks(AT_ONCE).find_map(|ways| segment.likely(ways).find_map(|way| segment.told(way, all, false)));
        if let Some(found) = known.or_else(looked) {
            return Some(found);
        }
        fitted(e, segment.inside)
            .iter()
            .flat_map(|range| segment.best(range))
            .find_map(|way| segment.told(&way, &[], false))
    })
}

/// What gives all that is wrong at the end of a segment if its weights are read as a law says of others.
pub(super) fn by_reading(searcher: &Searcher<'_>, e: &Evidence<'_>, readings: &[Reads]) -> Option<Found> {
    if readings.is_empty() {
        return None;
    }
    tried(searcher, e, |segment, _| {
        readings
            .iter()
            .filter_map(|reads| Way::reading(e, segment.inside, reads))
            .find_map(|way| segment.told(&way, &[], true))
    })
}

/// What was found at the end of the segment in another run, if it gives all that is wrong in this one.
pub(super) fn again(searcher: &Searcher<'_>, e: &Evidence<'_>, key: &Key) -> Option<Found> {
    tried(searcher, e, |segment, all| {
        let graph = &e.oracle.graph;
        if let Some(reads) = &key.reads {
            let way = Way::reading(e, segment.inside, &(key.what.clone(), reads.clone()))?;
            return segment.told(&way, &[], true);
        }
        if let Some(way) = all.iter().find(|way| way.key(graph) == *key) {
            return segment.told(way, &[], true);
        }
        let near = |way: &Way| {
            let own = way.key(graph);
            own.stages == key.stages && alike(&own.what, &key.what)
        };
        let all = fitted(e, segment.inside);
        all.iter().flat_map(|range| segment.best(range)).filter(near).find_map(|way| segment.told(&way, &[], true))
    })
}

/// What `look` finds in a segment, given its ways that have no number to be fitted.
fn tried(
    searcher: &Searcher<'_>, e: &Evidence<'_>, look: impl FnOnce(&Tried<'_>, &[Way]) -> Option<Found>,
) -> Option<Found> {
    if !e.misshapen.is_empty() || e.rule.is_some() {
        return None;
    }
    let inside = Inside::of(e.node, e.oracle, e.side)?;
    let finite = |row: &&RowAt| e.row(row).0.iter().all(|v| v.is_finite());
    // A cache also holds rows of earlier steps, whose operands are in those steps.
    let own = |row: &&RowAt| (e.side.capture.steps[row.step].first..).contains(&row.place.position);
    let bad: Vec<&RowAt> = e.bad_rows().filter(finite).filter(own).collect();
    let some: [&RowAt; FEW] = [bad.len() / 2, bad.len() / 4, bad.len().checked_sub(1)?].map(|i| bad[i]);
    let rows = inside.rows(&some.iter().map(|row| row.place.position).collect());
    let few = e.of_rows(&rows);
    let (one, step) = (some[0], &e.side.capture.steps[some[0].step]);
    let at = (one.step, (0..step.rows()).find(|&r| step.first + step.offset(r) == one.place.position)?);
    let segment = Tried { searcher, e, few: &few, rows: &rows, inside: &inside, one, at };
    look(&segment, &ways(e, &inside))
}

impl Way {
    fn known(mutation: &'static Mutation, values: &[f64], nodes: &[usize], graph: &Graph) -> Option<Self> {
        let other = |&i: &usize| {
            let node = mutation.applied(&graph.nodes[i], values, graph)?;
            (node.faults.write.is_none() && node.faults.hold.is_none()).then_some((i, node))
        };
        let others: Otherwise = nodes.iter().filter_map(other).collect();
        (!others.is_empty()).then(|| Self { what: What::Known(mutation, values.to_vec()), others, reads: None })
    }

    /// All weights of the segment read otherwise, of which this changes any.
    fn reading(e: &Evidence<'_>, inside: &Inside<'_>, (what, reading): &Reads) -> Option<Self> {
        let other = |i: usize| {
            let read = reading.0.clone();
            let node = e.oracle.graph.nodes[i].reading(move |source, name, row, out| read(source, name, row, out));
            (!node.weights.is_empty() && reads_otherwise(e, &node)).then_some((i, node))
        };
        let others: Otherwise = inside.nodes().filter_map(other).collect();
        let (what, reads) = (What::Else(what.clone()), Some(reading.clone()));
        (!others.is_empty()).then_some(Self { what, others, reads })
    }

    fn key(&self, graph: &Graph) -> Key {
        let what = match &self.what {
            What::Known(m, values) => CauseId::new(m, values).to_string(),
            What::Else(what) => what.clone(),
        };
        let stages = self.others.keys().map(|&i| graph.nodes[i].id.name).collect();
        Key { what, stages, reads: self.reads.clone() }
    }

    fn stages(&self, graph: &Graph) -> Vec<StageId> {
        self.others.keys().map(|&i| graph.nodes[i].id).collect()
    }
}

/// Every way that has no number to be fitted, those first that are mistakes in stages together, and those last that read
/// a weight otherwise.
fn ways(e: &Evidence<'_>, inside: &Inside<'_>) -> Vec<Way> {
    let graph = &e.oracle.graph;
    let (mut together, mut alone, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
    for m in catalogue().filter(|m| m.site() == FaultSite::Stage && m.recurs && m.explains == Explains::Value) {
        let nodes: Vec<usize> = inside.nodes().filter(|&i| m.concerns(graph, &graph.nodes[i])).collect();
        let Some(&first) = nodes.first() else { continue };
        for (order, values) in m.guesses(graph, &graph.nodes[first]).into_iter().enumerate() {
            let mut all = Way::known(m, &values, &nodes, graph);
            if let Some(way) = all.as_mut().filter(|way| way.others.values().any(|node| node.faults.read.is_some())) {
                way.others.retain(|_, node| reads_otherwise(e, node));
                decoded.extend(all.filter(|way| !way.others.is_empty()));
                continue;
            }
            let several = all.as_ref().is_some_and(|way| way.others.len() > 1);
            if several && order < ALONE {
                alone.extend(nodes.iter().filter_map(|i| Way::known(m, &values, &[*i], graph)));
            }
            together.extend(all);
        }
    }
    let guessed = inside.nodes().flat_map(|i| otherwise(e, &graph.nodes[i]).map(move |(what, node)| (i, what, node)));
    together.extend(guessed.map(|(i, what, node)| Way {
        what: What::Else(what),
        others: [(i, node)].into(),
        reads: None,
    }));
    together.extend(alone);
    together.extend(decoded);
    together
}

/// Whether a fault of reading changes the first rows of a weight: not every format has what it gets wrong.
fn reads_otherwise(e: &Evidence<'_>, node: &Node) -> bool {
    let (Some(read), source) = (&node.faults.read, &e.oracle.weights) else { return true };
    node.weights.iter().any(|w| {
        let (n, m) = source.extent(&w.name);
        let (mut right, mut other) = (vec![0f32; n], vec![0f32; n]);
        (0..m.min(FEW)).any(|row| {
            source.rows(&w.name, row, &mut right);
            read(source, &w.name, row, &mut other);
            right.iter().zip(&other).any(|(a, b)| a.to_bits() != b.to_bits())
        })
    })
}

/// Ways of a stage that are no mutations.
fn otherwise(e: &Evidence<'_>, node: &Node) -> impl Iterator<Item = (String, Node)> + use<> {
    let (mut all, graph) = (other_heads(e, node), &e.oracle.graph);
    if let Some(base) = find(BASE).filter(|base| base.concerns(graph, node)) {
        // The same planes as with another base.
        let half = graph.config.head_dim as f64 / 2.0;
        let planes = |by: f64| base.applied(node, &[graph.config.rope_base.powf(half / by)], graph);
        all.extend([half - 1.0, half + 1.0].into_iter().filter_map(|by| Some((exponents(by, half), planes(by)?))));
    }
    match node.op.anatomy() {
        Anatomy::RowReduction(RowReduction::Exponentials(_)) => {
            let mut choices = Keys::usual(e.side.capture);
            // Behind a window of w keys the first w positions are right; the next one may lack a key of little weight.
            let first = e.bad_rows().map(|row| row.place.position).min().unwrap_or(0);
            let windows = (first.saturating_sub(2)..=first).rev().filter(|window| *window > 0);
            choices.extend(windows.map(Keys::Window));
            let seats = Seats::of(e.side.capture);
            // Single tokens have kernels of their own.
            let each = choices.into_iter().flat_map(|keys| [(keys, false), (keys, true)]);
            all.extend(each.map(|(keys, prefill)| {
                let where_ = if prefill { ", in the prefill only" } else { "" };
                (format!("the softmax is over {keys}{where_}"), choosing(node, keys, (seats.clone(), prefill)))
            }));
        }
        Anatomy::Elementwise(Elementwise::Gated(Activation::Silu)) => {
            all.extend(ACTIVATIONS.iter().map(|(what, f)| (format!("the stage computes {what}"), activated(node, *f))));
        }
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => {}
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => {}
    }
    all.into_iter()
}

/// Heads of the values in another order, where they were not captured.
fn other_heads(e: &Evidence<'_>, node: &Node) -> Vec<(String, Node)> {
    let d = e.oracle.graph.config.head_dim;
    let fixed = |axis: &Axis| if let Axis::Fixed(n) = axis { Some(*n) } else { None };
    let heads = node.shape.iter().filter_map(fixed).product::<usize>() / d.max(1);
    if node.role != Role::Value || node.has_state() || heads < 2 {
        return Vec::new();
    }
    let exchanged = (0..heads.min(MOST_HEADS)).flat_map(|a| (a + 1..heads.min(MOST_HEADS)).map(move |b| (a, b)));
    let mut orders: Vec<Vec<usize>> = exchanged
        .map(|(a, b)| {
            let mut order: Vec<usize> = (0..heads).collect();
            order.swap(a, b);
            order
        })
        .collect();
    orders.push((0..heads).rev().collect());
    orders.push((0..heads).map(|h| (h + 1) % heads).collect());
    orders.push((0..heads).map(|h| (h + heads - 1) % heads).collect());
    orders.push((0..heads).map(|h| (h ^ 1).min(heads - 1)).collect());
    orders.sort();
    orders.dedup();
    let other = |order: Vec<usize>| {
        let list: Vec<String> = order.iter().map(ToString::to_string).collect();
        let op = node.op.clone();
        let node = node.clone().computing(move |inputs, c| {
            let (value, bound) = ops::forward_with_bound(&op, inputs, c);
            let from = |at: usize| at / (heads * d) * heads * d + order[at / d % heads] * d + at % d;
            let data = (0..value.data.len()).map(|at| value.data[from(at)]).collect();
            let bound = (0..bound.len()).map(|at| bound[from(at)]).collect();
            (Tensor { shape: value.shape, data }, bound)
        });
        (format!("the heads of the values are in the order {}", list.join(" ")), node)
    };
    orders.into_iter().map(other).collect()
}

/// Heads of which any two may be exchanged.
const MOST_HEADS: usize = 8;

/// A number that is looked for in a range, and the way with that number.
struct Number<'a> {
    way: Box<dyn Fn(f64) -> Option<Way> + 'a>,
    range: (f64, f64),
}

/// Ways with a number.
fn fitted<'a>(e: &'a Evidence<'a>, inside: &Inside<'_>) -> Vec<Number<'a>> {
    let graph = &e.oracle.graph;
    let mut all: Vec<Number<'a>> = Vec::new();
    if let Some(m) = find(BASE) {
        let rotations: Vec<usize> = inside.nodes().filter(|&i| m.concerns(graph, &graph.nodes[i])).collect();
        let base = graph.config.rope_base;
        let way = Box::new(move |base: f64| Way::known(m, &[base], &rotations, graph));
        all.push(Number { way, range: (base / 1e3, base * 1e3) });
    }
    for index in inside.nodes() {
        let node = &graph.nodes[index];
        let Anatomy::RowReduction(RowReduction::Exponentials(&Softmax { scale })) = node.op.anatomy() else { continue };
        if let Some(m) = find(SCALE) {
            let way = Box::new(move |scale: f64| Way::known(m, &[scale], &[index], graph));
            all.push(Number { way, range: (scale / 64.0, scale * 64.0) });
        }
        let capped = move |cap: f64| {
            let what = format!("a soft cap is applied to the scaled scores: c·tanh(x/c) with c = {cap}");
            Some(Way { what: What::Else(what), others: [(index, capped(node, scale, cap))].into(), reads: None })
        };
        all.push(Number { way: Box::new(capped), range: (1.0, 1e3) });
    }
    all
}

/// A softmax over chosen keys.
fn choosing(node: &Node, chosen: Keys, (seats, prefill): (Seats, bool)) -> Node {
    let op = node.op.clone();
    node.computing(move |inputs, c| {
        let mut scores = inputs[0].clone();
        let (tokens, keys) = (scores.shape[1], scores.shape[2].max(1));
        for (row, s) in scores.data.chunks_mut(keys).enumerate() {
            let position = c.positions[row % tokens] as usize;
            let seat = seats.at(position, keys);
            let taken = |key: usize| if prefill && seat.decodes() { key <= position } else { chosen.has(key, seat) };
            for (key, score) in s.iter_mut().enumerate().filter(|(key, _)| !taken(*key)) {
                *score = if key <= position { -1e30 } else { *score };
            }
        }
        ops::forward_with_bound(&op, &[&scores], c)
    })
}

/// A softmax of scores below a soft cap.
fn capped(node: &Node, scale: f64, cap: f64) -> Node {
    let op = node.op.clone();
    node.computing(move |inputs, c| {
        let scores = inputs[0].map(|s| cap * (s * scale / cap).tanh() / scale);
        ops::forward_with_bound(&op, &[&scores], c)
    })
}

/// Another function of gate and up, as uncertain as SwiGLU of values of this size.
fn activated(node: &Node, f: fn(f64, f64) -> f64) -> Node {
    node.computing(move |inputs, _| {
        let pairs = || inputs[0].data.iter().zip(&inputs[1].data);
        let data: Vec<f64> = pairs().map(|(g, u)| f(*g, *u)).collect();
        let size = |(v, (g, u)): (&f64, (&f64, &f64))| (8.0 * UNIT * v.abs().max((g * u).abs())) as f32;
        let bound = data.iter().zip(pairs()).map(size).collect();
        (Tensor { shape: inputs[0].shape.clone(), data }, bound)
    })
}

/// A segment in which ways are tried.
struct Tried<'a> {
    searcher: &'a Searcher<'a>,
    e: &'a Evidence<'a>,
    few: &'a Evidence<'a>,
    rows: &'a Rows,
    inside: &'a Inside<'a>,
    /// A wrong row, and where it is in the step's tensors: its step, and its row among the tokens.
    one: &'a RowAt,
    at: (usize, usize),
}

impl Tried<'_> {
    /// Those of some ways that give the wrong elements of one row, as far as this is soon told.
    fn likely<'w>(&self, ways: &[&'w Way]) -> impl Iterator<Item = &'w Way> + use<'w> {
        let (early, late): (Vec<&Way>, Vec<&Way>) = ways.iter().partition(|way| self.inside.is_early(&way.others));
        let ways: Vec<&Way> = early.into_iter().chain(late).collect();
        let (got, want, bound) = self.e.row(self.one);
        let is_wrong = |i: &usize| !right(got[*i], want[*i], bound[*i]);
        let wrong = |columns: Range<usize>| columns.filter(is_wrong);
        let runs = (0..got.len()).step_by(COLUMNS).map(|first| first..got.len().min(first + COLUMNS));
        let some = runs.max_by_key(|run| wrong(run.clone()).count()).unwrap_or(0..got.len());
        let given = self.of_one(&ways, Some(&some)).unwrap_or_else(|| vec![None; ways.len()]);
        let grain = self.e.grain;
        let gives = |(value, reach): &Valued| {
            // For these columns, or for all; nodes of another extent have no quick way.
            let from = if value.data.len() == some.len() { some.start } else { 0 };
            value.data.len() + from < some.end
                || wrong(some.clone())
                    .all(|i| right(got[i], grain.settle(got[i], value.data[i - from]), reach[i - from]))
        };
        let likely = ways.into_iter().zip(given).filter(|(_, given)| given.as_ref().is_none_or(gives));
        likely.map(|(way, _)| way).collect::<Vec<_>>().into_iter()
    }

    /// What each of some ways gives in one row; in some columns, where these are soon told alone.
    fn of_one(&self, ways: &[&Way], some: Option<&Range<usize>>) -> Option<Vec<Option<Valued>>> {
        // A row that is a head's is part of its token's.
        let by_token = self.inside.ends_token_by_token() && self.one.place.head.is_none();
        if !by_token || self.searcher.meter.over() {
            return None;
        }
        let ways = self.searcher.meter.affordable(ways, |way| self.inside.work_of_one(&way.others));
        self.searcher.meter.count_tried(ways.len());
        let others: Vec<&Otherwise> = ways.iter().map(|way| &way.others).collect();
        Some(self.inside.many(&others, self.at, some))
    }

    /// What the way leaves of all rows, if it explains them.
    fn fits(&self, way: &Way, again: bool) -> Option<Fit> {
        if self.searcher.meter.over() && !again {
            return None;
        }
        self.searcher.meter.count_tried(1);
        let work = self.inside.work(&way.others);
        self.searcher.meter.count(work / (self.e.rows.len() / FEW).max(1) as u64);
        let explains = |fit: &Fit| fit.whole && fit.explains() && fit.after <= LEFT * fit.before;
        let settled = |e: &Evidence<'_>, mut assumed: Expected| {
            settle_all(e.node, &e.oracle.graph, e.side, &mut assumed);
            assumed
        };
        let few = settled(self.few, self.inside.with(&way.others, Some(self.rows)));
        fit(self.few, &few, Scope::Rows).filter(explains)?;
        self.searcher.meter.count(work);
        let whole = settled(self.e, self.inside.with(&way.others, None));
        let fit = fit(self.e, &whole, Scope::Rows).filter(explains)?;
        (bits(self.e, &whole) >= BITS).then_some(fit)
    }

    /// The way in words, and others of its kind that give the same.
    fn told(&self, way: &Way, all: &[Way], again: bool) -> Option<Found> {
        let graph = &self.e.oracle.graph;
        let fit = self.fits(way, again)?;
        let stages = way.stages(graph);
        let at = &graph.nodes[*way.others.keys().next()?];
        let (mut story, remedy, known) = match &way.what {
            What::Known(m, values) => {
                let (story, remedy) = m.told(values, (at, stages.len() == 1), graph);
                (story, remedy, Some((named(m, values, &fit), m.explains)))
            }
            What::Else(what) => (what.clone(), String::new(), None),
        };
        let alike = |other: &&Way| match (&way.what, &other.what) {
            (What::Known(a, _), What::Known(b, _)) => a.name == b.name && way.key(graph) != other.key(graph),
            _ => false,
        };
        for other in all.iter().filter(alike).filter(|other| self.fits(other, false).is_some()) {
            let key = other.key(graph);
            story += &format!("; {} in {} gives the same", key.what, list(&other.stages(graph)));
        }
        let wrong = self.e.wrong();
        let fitted = |r: usize| self.few.rows.iter().any(|row| row.place == self.e.rows[r].place);
        let held_out = wrong.iter().filter(|w| !fitted(w.row)).count();
        Some(Found { key: way.key(graph), stages, story, remedy, known, fit, elements: (wrong.len(), held_out) })
    }

    /// The ways with the number that leaves least of one row, in few digits first.
    fn best(&self, range: &Number<'_>) -> Vec<Way> {
        let (low, high) = (range.range.0.ln(), range.range.1.ln());
        let at = |i: usize| low + (high - low) * i as f64 / COARSE as f64;
        // The right number is no way to be otherwise.
        let coarse: Vec<(usize, Way)> = (0..=COARSE).filter_map(|i| Some((i, (range.way)(at(i).exp())?))).collect();
        let left = self.distances(&coarse.iter().map(|(_, way)| way).collect::<Vec<_>>());
        let (_, want, bound) = self.e.row(self.one);
        let far = LITTLE * self.distance(want, bound);
        let nearest = coarse.iter().zip(&left).filter(|(_, left)| **left < far).min_by(|a, b| a.1.total_cmp(b.1));
        let Some(((best, _), _)) = nearest else { return Vec::new() };
        let left = |x: f64| (range.way)(x.exp()).and_then(|way| self.distances(&[&way]).pop()).unwrap_or(f64::INFINITY);
        let x = least((at(best.saturating_sub(1)), at((best + 1).min(COARSE))), CLOSE, left).exp();
        DIGITS.iter().filter_map(|&digits| (range.way)(to_digits(x, digits))).collect()
    }

    /// How far each of some ways is from one row; of as many as there is time for.
    fn distances(&self, ways: &[&Way]) -> Vec<f64> {
        if !self.inside.ends_token_by_token() {
            return ways.iter().map_while(|way| self.distance_of_late(way)).collect();
        }
        let given = self.of_one(ways, None).unwrap_or_default();
        let far = |given: &Option<Valued>| given.as_ref().map_or(f64::INFINITY, |(v, b)| self.distance(&v.data, b));
        given.iter().map(far).collect()
    }

    /// That of a way in a segment that ends in what sees other tokens: all rows are evaluated for one.
    fn distance_of_late(&self, way: &Way) -> Option<f64> {
        if self.searcher.meter.over() {
            return None;
        }
        self.searcher.meter.count_tried(1);
        self.searcher.meter.count(self.inside.work(&way.others));
        let all = self.inside.with(&way.others, None);
        let (value, reach) = all[self.one.step].as_ref()?;
        let range = self.one.range.clone();
        Some(self.distance(&value.data[range.clone()], &reach[range]))
    }

    /// Squared distance of one row from what is assumed of it, in units of the bounds.
    fn distance(&self, assumed: &[f64], reach: &[f32]) -> f64 {
        let (got, ..) = self.e.row(self.one);
        let off =
            |((g, o), b): ((&f32, &f64), &f32)| ((f64::from(*g) - o) / f64::from(b.max(f32::MIN_POSITIVE))).powi(2);
        got.iter().zip(assumed).zip(reach).map(off).sum()
    }
}

/// Bits that what is assumed says of the wrong elements beyond that they are wrong.
pub(super) fn bits(e: &Evidence<'_>, assumed: &Expected) -> f64 {
    let of_row = |row: &RowAt| {
        let (got, want, bound) = e.row(row);
        let Some((_, reach)) = &assumed[row.step] else { return 0.0 };
        let reach = &reach[row.range.clone()];
        let wrong = (0..got.len()).filter(|&i| !right(got[i], want[i], bound[i]));
        let of = |i: usize| {
            let allowed = ELEMENT_FACTOR * f64::from(reach[i].max(f32::MIN_POSITIVE));
            ((f64::from(got[i]) - want[i]).abs() / allowed).max(1.0).log2()
        };
        wrong.map(of).sum::<f64>()
    };
    e.bad_rows().map(of_row).sum()
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list(stages: &[StageId]) -> String {
    match stages {
        [] => String::new(),
        [one] => one.to_string(),
        [all @ .., last] => {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!("{} and {last}", all.join(", "))
        }
    }
}
