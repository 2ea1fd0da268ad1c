//! The elements of a stage, as kernels go through them.

use crate::score::faults::{Spoil, Spot};
use qdiff_engine::model::{Graph, Model, Node, WeightSource as _};
use rayon::prelude::*;

/// A bug of a kernel as it can be planted.
pub struct KernelFault {
    /// Its name, in kebab case.
    pub name: &'static str,
    /// What the kernel computes instead, where and when.
    pub what: &'static str,
    /// Stages of a model that it can be planted in.
    pub places: Places,
    /// Does it.
    pub spoil: Spoil,
}

pub(super) type Places = fn(&Graph, &Node, &Model) -> bool;

pub(super) const fn bug(name: &'static str, what: &'static str, places: Places, spoil: Spoil) -> KernelFault {
    KernelFault { name, what, places, spoil }
}

/// An element of a stage with a row per token.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    /// Row, of so many, and the token's position.
    pub(super) t: usize,
    pub(super) tokens: usize,
    pub(super) p: usize,
    /// Column, of so many.
    pub(super) o: usize,
    pub(super) width: usize,
}

impl Cell {
    /// Whether the step is one token that follows others.
    pub(super) fn decodes(self) -> bool {
        self.tokens == 1 && self.p > 0
    }

    /// Whether it is the last row of a step of several.
    pub(super) fn last(self) -> bool {
        self.tokens > 1 && self.t + 1 == self.tokens
    }

    /// Whether it lies beyond the last whole tile of columns.
    pub(super) fn tail(self, tile: usize) -> bool {
        self.o >= self.width / tile * tile
    }
}

/// The element at `at` of a tensor with a row of `width` columns per position.
pub(super) fn cell(positions: &[u32], width: usize, at: usize) -> Cell {
    let t = at / width;
    Cell { t, tokens: positions.len(), p: positions[t] as usize, o: at % width, width }
}

/// Makes `f` of every element: its place, its index and its right value.
pub(super) fn patch(s: &mut Spot<'_>, f: impl Fn(Cell, usize, f32) -> f32) {
    let (positions, width) = (s.positions, s.width());
    for (at, v) in s.out.iter_mut().enumerate() {
        *v = f(cell(positions, width, at), at, *v);
    }
}

/// Puts the right value of another row and column where `from` names one.
pub(super) fn moved(s: &mut Spot<'_>, from: impl Fn(Cell) -> Option<(usize, usize)>) {
    let right = s.out.clone();
    patch(s, |c, _, v| from(c).map_or(v, |(t, o)| right[t * c.width + o]));
}

/// The value of a column after the step before, in its last row.
pub(super) fn stale(s: &mut Spot<'_>, here: impl Fn(Cell) -> bool) {
    let Some(old) = s.old else { return };
    let width = s.width();
    let row = &old[old.len() - width..];
    patch(s, |c, _, v| if here(c) { row[c.o] } else { v });
}

/// What the first stage of `layer` that `is` it gave in this step.
pub(super) fn given<'a>(s: &Spot<'a>, layer: Option<u16>, is: impl Fn(&Node) -> bool) -> Option<&'a [f32]> {
    let (graph, others) = (s.graph, s.others);
    let node = graph.nodes.iter().find(|n| n.id.layer == layer && is(n))?;
    others.get(&node.id).map(Vec::as_slice)
}

/// The layer before the stage's own.
pub(super) fn layer_before(s: &Spot<'_>) -> Option<u16> {
    s.node.id.layer.and_then(|l| l.checked_sub(1))
}

/// `out[t][o] = f(x[t], w[row(o)])` where `here`, with x of the width of the weight's rows.
pub(super) fn product_of(
    s: &mut Spot<'_>, (x, weight, row): (&[f32], &str, impl Fn(usize) -> usize + Sync),
    here: impl Fn(Cell) -> bool + Sync, f: impl Fn(Cell, &[f32], &[f32]) -> f64 + Sync,
) {
    let (n, _) = s.extent(weight);
    let (model, positions, width) = (s.model, s.positions, s.width());
    let column = |w: &mut Vec<f32>, o: usize| -> Vec<(usize, f32)> {
        let cells = (0..positions.len()).map(|t| cell(positions, width, t * width + o));
        let wrong: Vec<Cell> = cells.filter(|c| here(*c)).collect();
        if !wrong.is_empty() {
            model.rows(weight, row(o), w);
        }
        wrong.into_iter().map(|c| (c.t * width + o, f(c, &x[c.t * n..(c.t + 1) * n], w) as f32)).collect()
    };
    let wrong: Vec<_> = (0..width).into_par_iter().map_init(|| vec![0f32; n], column).collect();
    for (at, value) in wrong.into_iter().flatten() {
        s.out[at] = value;
    }
}

/// As [`product_of`], of the stage's own input and weight.
pub(super) fn product(
    s: &mut Spot<'_>, here: impl Fn(Cell) -> bool + Sync, f: impl Fn(Cell, &[f32], &[f32]) -> f64 + Sync,
) {
    let (inputs, node) = (s.inputs, s.node);
    product_of(s, (&inputs[0].data, &node.weights[0].name, |o| o), here, f);
}

/// The product with every term taken `times(i, n)` times.
pub(super) fn counted(
    s: &mut Spot<'_>, here: impl Fn(Cell) -> bool + Sync, times: impl Fn(usize, usize) -> f64 + Sync,
) {
    product(s, here, |_, x, w| {
        let mut sum = 0.0;
        for i in 0..x.len() {
            sum += times(i, x.len()) * f64::from(x[i]) * f64::from(w[i]);
        }
        sum
    });
}

pub(super) fn dot(x: &[f32], w: &[f32]) -> f64 {
    x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
}

/// An element of scores or weights, `[H, T, N]`.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) h: usize,
    pub(super) heads: usize,
    pub(super) t: usize,
    pub(super) tokens: usize,
    pub(super) p: usize,
    pub(super) n: usize,
    pub(super) keys: usize,
}

impl Pair {
    pub(super) fn at(s: &Spot<'_>, at: usize) -> Self {
        let (tokens, heads) = (s.positions.len(), s.config.n_heads);
        let keys = s.shape[2];
        let t = at / keys % tokens;
        Self { h: at / (keys * tokens), heads, t, tokens, p: s.positions[t] as usize, n: at % keys, keys }
    }

    pub(super) fn decodes(self) -> bool {
        self.tokens == 1 && self.p > 0
    }
}

/// Puts the right score or weight of another head, row and key where `from` names one.
pub(super) fn moved_pairs(s: &mut Spot<'_>, from: impl Fn(Pair) -> Option<(usize, usize, usize)>) {
    let right = s.out.clone();
    for at in 0..right.len() {
        let pair = Pair::at(s, at);
        if let Some((h, t, n)) = from(pair) {
            s.out[at] = right[(h * pair.tokens + t) * pair.keys + n];
        }
    }
}
