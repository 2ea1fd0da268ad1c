//! What attention of a query is made of: its scores, captured or made of queries and keys, and the values of the keys.

use super::super::Row;
use super::super::rounded::Rounding;
use super::super::scene::{Layout, Scene};
use super::keys::{Seat, Seats};
use crate::verdict::RowAt;
use qdiff_engine::model::Node;
use qdiff_engine::ops::anatomy::{Contraction, RowReduction};
use qdiff_engine::ops::{Anatomy, Attention, Tensor, UNIT};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A query of a head, with its scores.
pub(super) struct Query {
    pub(super) seat: Seat,
    pub(super) head: usize,
    /// Query heads.
    pub(super) heads: usize,
    /// Scaled scores of all keys that its part sees, those after it too.
    pub(super) s: Vec<f64>,
    /// What a score may be off by.
    pub(super) off: f64,
    /// The same of keys after the query, where their scores were not captured.
    pub(super) later_off: f64,
    /// By what they are scaled.
    pub(super) scale: f64,
    /// The largest size of a score of a key that it sees.
    pub(super) size: f64,
}

impl Query {
    /// The scores of the keys that it sees.
    pub(super) fn seen(&self) -> &[f64] {
        &self.s[..=self.seat.position]
    }
}

/// What is made of an operand before it is multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Made {
    AsItIs,
    /// Rounded to this one of the halves; queries once they are scaled, or before.
    Queries(usize, bool),
    Keys(usize),
}

/// The head of the keys, and what is made of the operands.
type How = (usize, Made);
/// A sum for each key.
type SumsOfKeys = Option<Rc<Vec<f64>>>;
type Known = HashMap<(usize, usize, usize, How), Option<Rc<Query>>>;

/// The stages of an attention.
pub(super) struct Queries<'a> {
    pub(super) scene: &'a Scene<'a>,
    pub(super) scale: f64,
    /// The stage of scores.
    scores: &'a Node,
    /// How scores are made of queries and keys.
    attention: Attention,
    /// Whether the stage is that of the weights, and not of the context.
    pub(super) of_weights: bool,
    seats: Seats,
    known: RefCell<Known>,
    /// By step and head.
    sums: RefCell<HashMap<(usize, usize), SumsOfKeys>>,
}

impl<'a> Queries<'a> {
    /// `None` for a stage that is no attention.
    pub(super) fn of(scene: &'a Scene<'a>) -> Option<Rc<Self>> {
        let graph = &scene.e.oracle.graph;
        let of_weights = match scene.node().op.anatomy() {
            Anatomy::RowReduction(RowReduction::Exponentials(_)) => true,
            Anatomy::Contraction(Contraction::Context(_)) => false,
            _ => return None,
        };
        let weights = if of_weights { scene.node() } else { &graph.nodes[scene.node().inputs[0]] };
        let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = weights.op.anatomy() else { return None };
        let scores = &graph.nodes[*weights.inputs.first()?];
        let Anatomy::Contraction(Contraction::Scores(attention)) = scores.op.anatomy() else { return None };
        let (attention, seats) = (*attention, Seats::of(scene.e.side.capture));
        let (known, sums) = Default::default();
        Some(Rc::new(Self { scene, scale: softmax.scale, scores, attention, of_weights, seats, known, sums }))
    }

    /// Whether weights were captured from which the context is made.
    pub(super) fn has_weights(&self) -> bool {
        let of_weights = |step: usize| self.scene.operand(step, 0).is_some();
        !self.of_weights && self.scene.e.rows.first().is_some_and(|row| of_weights(row.step))
    }

    pub(super) fn heads(&self) -> (usize, usize) {
        (self.attention.n_heads, self.attention.n_kv_heads)
    }

    /// Elements of a head.
    pub(super) fn width(&self) -> usize {
        self.attention.head_dim
    }

    /// The head of the keys that belongs to one of the queries.
    pub(super) fn own(&self, head: usize) -> usize {
        self.attention.kv_head(head)
    }

    /// The heads of a row of the stage, each with the elements of the row that are its.
    pub(super) fn heads_of(&self, row: &RowAt) -> Vec<(usize, std::ops::Range<usize>)> {
        if self.of_weights {
            return row.place.head.map(|head| (head, 0..row.range.len())).into_iter().collect();
        }
        let (d, from) = (self.attention.head_dim, self.scene.token(row).1);
        let heads = from / d..(from + row.range.len()).div_ceil(d);
        heads.map(|h| (h, (h * d).max(from) - from..((h + 1) * d - from).min(row.range.len()))).collect()
    }

    /// The query of a row's head; its keys those of another head, or its operands otherwise.
    pub(super) fn query(&self, row: &RowAt, head: usize, how: How) -> Option<Rc<Query>> {
        self.query_at((row.step, self.scene.token(row).0, row.place.position), head, how)
    }

    /// The same of a token of a step, whose position is given.
    pub(super) fn query_at(
        &self, (step, token, position): (usize, usize, usize), head: usize, how: How,
    ) -> Option<Rc<Query>> {
        let at = (step, token, head, how);
        if let Some(known) = self.known.borrow().get(&at) {
            return known.clone();
        }
        let made = self.made((step, token, position), head, how).map(Rc::new);
        self.known.borrow_mut().insert(at, made.clone());
        made
    }

    /// For each key the sum of the exponentials of all queries of a step, each taken from its own largest score.
    pub(super) fn sums_over_queries(&self, step: usize, head: usize) -> SumsOfKeys {
        let made = || {
            let part = &self.scene.e.side.capture.steps[step];
            let mut sums = vec![0.0; part.keys()];
            for token in 0..part.rows() {
                let position = part.first + part.offset(token);
                let query = self.query_at((step, token, position), head, (self.own(head), Made::AsItIs))?;
                let seen = query.s.get(..=position)?;
                let top = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                sums.iter_mut().zip(seen).for_each(|(sum, s)| *sum += (s - top).exp());
            }
            Some(Rc::new(sums))
        };
        if let Some(known) = self.sums.borrow().get(&(step, head)) {
            return known.clone();
        }
        let made = made();
        self.sums.borrow_mut().insert((step, head), made.clone());
        made
    }

    fn made(&self, (step, token, position): (usize, usize, usize), head: usize, (group, made): How) -> Option<Query> {
        let (scene, a) = (self.scene, &self.attention);
        let of = |s: Vec<f64>, off: f64| {
            let seat = self.seats.at(position, s.len()).of_line(head, a.n_heads / a.n_kv_heads.max(1));
            let size = s.get(..=position)?.iter().fold(0f64, |most, s| most.max(s.abs()));
            Some(Query { size, seat, head, heads: a.n_heads, s, off, later_off: 0.0, scale: self.scale })
        };
        let plain = group == self.own(head) && made == Made::AsItIs;
        if let Some(scores) = scene.tensor(step, self.scores.id).filter(|_| plain) {
            let layout = Layout::of(self.scores);
            let (n, (tokens, ..)) = (*scores.shape.last()?, layout.extents(&scores.shape));
            let at = |k| self.scale * f64::from(scores.data[layout.at(&scores.shape, token, head * n + k)]);
            let mut s: Vec<f64> = (token < tokens).then(|| (0..n).map(at).collect())?;
            // Scores of keys after the query may not have been written, though weights were made of them.
            let later = s.get(position + 1..).is_some_and(|later| later.iter().any(|s| *s == 0.0 || !s.is_finite()));
            let all = if later { self.multiplied((step, token), head, (group, made)) } else { None };
            let mut later_off = 0.0;
            if let Some((all, off)) = all.filter(|(all, _)| all.len() >= n) {
                s[position + 1..].copy_from_slice(&all[position + 1..n]);
                later_off = off;
            }
            return of(s, 0.0).map(|query| Query { later_off, ..query });
        }
        let (s, off) = self.multiplied((step, token), head, (group, made))?;
        of(s, off)
    }

    /// Scaled scores made of the query and the keys, and what they may be off by.
    fn multiplied(&self, (step, token): (usize, usize), head: usize, (group, made): How) -> Option<(Vec<f64>, f64)> {
        let (scene, a) = (self.scene, &self.attention);
        let graph = &scene.e.oracle.graph;
        let [queries, keys] = [0, 1].map(|i| self.scores.inputs.get(i).map(|&i| &graph.nodes[i]));
        let (queries, keys) = (scene.tensor(step, queries?.id)?, scene.tensor(step, keys?.id)?);
        if token >= queries.shape[0] {
            return None;
        }
        let d = a.head_dim;
        let own: Vec<f64> = queries.row(token).get(head * d..(head + 1) * d)?.iter().map(|q| f64::from(*q)).collect();
        let rounding = |i: usize| super::super::rounded::HALVES[i].1;
        let own: Vec<f64> = match made {
            Made::Queries(i, false) => own.into_iter().map(rounding(i)).collect(),
            Made::Queries(i, true) => own.into_iter().map(|q| rounding(i)(q * self.scale) / self.scale).collect(),
            _ => own,
        };
        let n = keys.data.len() / (a.n_kv_heads * d);
        scene.count(2 * n * d);
        let mut off = 0f64;
        let score = |k: usize| {
            let key = &keys.data[(k * a.n_kv_heads + group) * d..][..d];
            let round = if let Made::Keys(i) = made { rounding(i) } else { |x| x };
            let (mut sum, mut size) = (0.0, 0.0);
            for (q, k) in own.iter().zip(key) {
                let product = q * round(f64::from(*k));
                sum += product;
                size += product.abs();
            }
            off = off.max(UNIT * size * self.scale);
            self.scale * sum
        };
        let s = (0..n).map(score).collect();
        Some((s, off))
    }

    /// The values that make an element of a row, of all keys: of weights that of its own key is 1.
    pub(super) fn values(&self, row: &RowAt, i: usize, (head, group): (usize, usize), keys: usize) -> Option<Vec<f64>> {
        if self.of_weights {
            return Some((0..keys).map(|k| f64::from(u8::from(k == i))).collect());
        }
        let (a, cache) = (&self.attention, self.scene.operand(row.step, 1)?);
        let column = (self.scene.token(row).1 + i).checked_sub(head * a.head_dim)?;
        self.scene.count(64 + 8 * keys);
        self.column(&cache, group, column, keys)
    }

    fn column(&self, cache: &Tensor<f32>, group: usize, column: usize, keys: usize) -> Option<Vec<f64>> {
        let a = &self.attention;
        let of_keys = cache.data.get(group * a.head_dim + column..)?.iter().step_by(a.n_kv_heads * a.head_dim);
        (of_keys.len() >= keys).then(|| of_keys.take(keys).map(|v| f64::from(*v)).collect())
    }
}

/// The halves by name.
pub(super) fn half(i: usize) -> Rounding {
    super::super::rounded::HALVES[i]
}

/// A row of a stage of weights from its captured scores, scaled: `f(scores, position, keys)`.
pub(in super::super) fn weights(
    scene: &Scene<'_>, scale: f64, row: &RowAt, f: impl Fn(&[f64], usize, usize) -> Vec<f64>,
) -> Option<Row> {
    let from = &scene.e.oracle.graph.nodes[*scene.node().inputs.first()?];
    let (layout, scores, head) = (Layout::of(from), scene.tensor(row.step, from.id)?, row.place.head?);
    let (token, n) = (scene.token(row).0, *scores.shape.last()?);
    let at = |k| scale * f64::from(scores.data[layout.at(&scores.shape, token, head * n + k)]);
    let s: Vec<f64> = (token < layout.extents(&scores.shape).0).then(|| (0..n).map(at).collect())?;
    let value = f(&s, row.place.position, n);
    let bound = value.iter().zip(&s).map(|(v, s)| (UNIT * v * (8.0 + s.abs())) as f32).collect();
    (value.len() >= row.range.len()).then_some(Row { value, bound })
}

/// The softmax over chosen keys; zero for all others.
pub(super) fn over(s: &[f64], taken: impl Fn(usize) -> bool) -> Vec<f64> {
    let chosen = || (0..s.len()).filter(|&k| taken(k));
    let top = chosen().map(|k| s[k]).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = chosen().map(|k| (s[k] - top).exp()).sum();
    // A row that sees no key has no weights.
    let each = |k: usize| {
        if sum == 0.0 {
            f64::NAN
        } else if taken(k) {
            (s[k] - top).exp() / sum
        } else {
            0.0
        }
    };
    (0..s.len()).map(each).collect()
}
