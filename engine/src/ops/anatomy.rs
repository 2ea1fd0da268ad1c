//! The anatomy of an op: what an output is made of, which is all that anyone but the op's own file knows of it.
//!
//! There are seven anatomies, and who judges or explains stages matches on them exhaustively. An op is a [`Definition`](super::Definition);
//! what its anatomy says in full (a product with a weight, a choice, a sum) the definition need not write again: the
//! functions of `by_anatomy` evaluate it.

use super::attn_scores::causal;
pub use super::collective::Collective;
use super::{Attention, KvCache, Real, RmsNorm, Rope, Softmax, Tensor};
use crate::sort::sort;
use std::ops::Range;

/// What an output is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Anatomy<'a> {
    /// Values picked by integers.
    Gather(Gather),
    /// Sums over k of products of a left and a right operand.
    Contraction(Contraction<'a>),
    /// Values of a row with a statistic of the row.
    RowReduction(RowReduction<'a>),
    /// Functions of the elements at one place.
    Elementwise(Elementwise<'a>),
    /// What a step before left, and the rows of this step.
    State(State<'a>),
    /// Integers chosen from values.
    Decision(Decision),
    /// Values of all ranks.
    Collective(Collective),
}

/// What a gather picks from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// Rows of weight 0, by the tokens of the step.
    Rows,
    /// Rows of weight 0, by the token and those before it in its sequence, as the definition says.
    Hashed,
    /// Elements of a row of operand 0 `[T, n]`, by the integers of operand 1 `[T, k]` -> `[T, k]`.
    Elements,
    /// The same elements along the last axis of operand 0.
    Columns(Columns),
}

/// Elements of a row in runs at equal distances: a part of one product's result, such as the queries of each head
/// with the gate beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The first of them.
    pub first: usize,
    /// Elements of a run.
    pub run: usize,
    /// From the beginning of a run to that of the next.
    pub stride: usize,
    /// Runs.
    pub runs: usize,
}

impl Columns {
    /// One run.
    pub fn range(first: usize, run: usize) -> Self {
        Self { first, run, stride: run, runs: 1 }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.run * self.runs
    }

    /// The element of a row at each place.
    pub fn places(self) -> impl Iterator<Item = usize> {
        (0..self.runs).flat_map(move |run| (0..self.run).map(move |i| self.first + run * self.stride + i))
    }

    /// They of every row, along the last axis.
    pub fn of<F: Real>(&self, x: &Tensor<F>) -> Tensor<F> {
        let (n, mut shape) = (x.shape.last().copied().unwrap_or(1), x.shape.clone());
        shape.pop();
        shape.push(self.count());
        let data = x.data.chunks(n.max(1)).flat_map(|row| self.places().map(|at| row[at]));
        Tensor { shape, data: data.collect() }
    }
}

/// What operand 0 of a contraction is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Contraction<'a> {
    /// Rows of weight 0, along k: a linear layer `[T, n]` -> `[T, m]`. Where rows are picked: those of the groups that
    /// operand 1 `[T, l]` picks, `[T, n]` or `[T, l, n]` -> `[T, l, m]`.
    Weight(Option<Picked>),
    /// The rows of operand 1 `[T, k, n]` at the same token: `[T, k]` -> `[T, n]`. Of so many terms.
    Rows(usize),
    /// The cached rows of operand 1 that a token sees, head by head, along their elements: a value for each of them.
    Scores(&'a Attention),
    /// The same along the rows: a row for each head.
    Context(&'a Attention),
}

/// Rows of a weight in groups of one size, one after the other: experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// How many groups there are.
    pub groups: usize,
}

/// What of a row a row reduction needs to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowReduction<'a> {
    /// The root of its mean square, run by run.
    MeanSquare(&'a RmsNorm),
    /// The largest score and the sum of exponentials, of the keys that a token sees.
    Exponentials(&'a Softmax),
    /// What the row is together with those before it, from the state on that the last operand was before the step: zeros
    /// before the first. The definition computes it, of all rows of a step.
    Recurrent,
    /// What the row is together with what the token sees: cached rows of operand 1, or a choice among them. The definition computes
    /// it.
    Seen,
    /// Something else, which the definition computes.
    Other,
}

/// What is done with the elements at one place, of operands of one shape. Functions may call exponentials and the like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Elementwise<'a> {
    /// The sum of the operands.
    Sum,
    /// Operand 0 plus the vector that weight 0 is, the same for all tokens.
    Offset,
    /// Pairs are turned by an angle that grows with the position.
    Rotation(&'a Rope),
    /// A function of operand 0 times operand 1.
    Gated(Activation),
    /// A function of so many operands.
    Function(usize),
}

/// Functions that gates go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x·σ(x)`.
    Silu,
    /// Another, which the definition computes.
    Other,
}

/// What a state keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    /// The rows of every step.
    Rows(&'a KvCache),
    /// What the definition makes of the operands and, as one more operand, of what it was before the step: zeros before the
    /// first.
    Own,
}

/// How integers are chosen from a row of operand 0: `[T, n]` -> `[T, picks]`, or of blocks `[T, N]` -> `[T, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// So many places of the largest values, the largest first.
    pub picks: usize,
    /// Of blocks of so many keys, each with its value at its last key: 1 at all keys of the blocks of the largest values, of those
    /// that the token sees whole, and at the keys that it sees behind these; 0 elsewhere.
    pub block: Option<usize>,
}

impl Anatomy<'_> {
    /// Products in the sum that each output is, where it is one: with weights whose rows have `row` elements, in a step that
    /// ends with `keys` tokens.
    pub fn terms(&self, row: impl FnOnce() -> usize, keys: usize) -> Option<usize> {
        let Self::Contraction(of) = self else { return None };
        Some(match of {
            Contraction::Weight(_) => row(),
            Contraction::Rows(terms) => *terms,
            Contraction::Scores(a) => a.head_dim,
            Contraction::Context(_) => keys,
        })
    }

    /// Whether it is a linear layer: a product with every row of a weight.
    pub fn is_layer(&self) -> bool {
        *self == Self::Contraction(Contraction::Weight(None))
    }

    /// Whether it is a product with rows of a weight, all or picked ones.
    pub fn multiplies_weights(&self) -> bool {
        matches!(self, Self::Contraction(Contraction::Weight(_)))
    }

    /// Whether an output is a row of a table that weight 0 is.
    pub fn looks_up(&self) -> bool {
        matches!(self, Self::Gather(Gather::Rows | Gather::Hashed))
    }

    /// Whether an output is made of other tokens' values.
    pub fn crosses_tokens(&self) -> bool {
        match self {
            Self::State(_)
            | Self::Contraction(Contraction::Scores(_) | Contraction::Context(_))
            | Self::RowReduction(RowReduction::Exponentials(_) | RowReduction::Recurrent | RowReduction::Seen) => true,
            Self::Contraction(Contraction::Weight(_) | Contraction::Rows(_))
            | Self::RowReduction(RowReduction::MeanSquare(_) | RowReduction::Other)
            | Self::Gather(_)
            | Self::Elementwise(_)
            | Self::Decision(_)
            | Self::Collective(_) => false,
        }
    }

    /// Whether its last operand is what that was before the step.
    pub fn looks_back(&self) -> bool {
        *self == Self::RowReduction(RowReduction::Recurrent)
    }

    /// Whether engines compute it with roots, exponentials, sines or the like.
    pub fn calls_functions(&self) -> bool {
        match self {
            Self::RowReduction(_)
            | Self::Elementwise(Elementwise::Rotation(_) | Elementwise::Gated(_) | Elementwise::Function(_)) => true,
            Self::Gather(_)
            | Self::Contraction(_)
            | Self::Elementwise(Elementwise::Sum | Elementwise::Offset)
            | Self::State(_)
            | Self::Decision(_)
            | Self::Collective(_) => false,
        }
    }
}

/// The integer that a value encodes, if it is below `count`.
pub fn index<F: Real>(value: F, count: usize) -> Option<usize> {
    value.to_usize().filter(|i| *i < count && F::of(*i as f64) == value)
}

impl Decision {
    /// So many places of the largest values.
    pub fn top(picks: usize) -> Self {
        Self { picks, block: None }
    }

    /// Integers that are chosen from a row of so many values.
    pub fn width(&self, values: usize) -> usize {
        if self.block.is_some() { values } else { self.picks }
    }

    /// The places of the largest values of each row, NaN last; equals in the order in which llama.cpp's CPU backend has them,
    /// that of libstdc++'s `std::sort` over the whole row (`ggml_compute_forward_argsort_f32`); of blocks the first ones.
    pub fn choose<F: Real>(&self, x: &Tensor<F>, positions: &[u32]) -> Tensor<F> {
        let n = x.row_len().max(1);
        let width = self.width(x.row_len());
        let mut chosen = Tensor::zeros(vec![x.rows(), width]);
        for (t, (row, out)) in x.data.chunks(n).zip(chosen.data.chunks_mut(width.max(1))).enumerate() {
            let before = |a: usize, b: usize| row[a] > row[b] || row[b].is_nan() && !row[a].is_nan();
            let Some(block) = self.block else {
                let mut order: Vec<usize> = (0..row.len()).collect();
                sort(&mut order, |a, b| before(*a, *b));
                out.iter_mut().zip(order).for_each(|(out, i)| *out = F::of(i as f64));
                continue;
            };
            let (ends, seen) = blocks(block, positions[t], row.len());
            let mut order = ends.clone();
            order.sort_by(|a, b| before(*b, *a).cmp(&before(*a, *b)));
            out[ends.len() * block..seen].fill(F::one());
            order.iter().take(self.picks).for_each(|end| out[end + 1 - block..=*end].fill(F::one()));
        }
        chosen
    }

    /// The places of values that were chosen, those that were not, and whether those chosen are in an order; `None` if the choice
    /// is not one that could be made of any values.
    fn sides(&self, n: usize, position: u32, chosen: &[f64]) -> Option<(Vec<usize>, Vec<usize>)> {
        let Some(block) = self.block else {
            let places = chosen.iter().map(|c| index(*c, n)).collect::<Option<Vec<usize>>>()?;
            let once = (0..places.len()).all(|rank| !places[..rank].contains(&places[rank]));
            let rest = (0..n).filter(|i| !places.contains(i)).collect();
            return (once && places.len() == self.picks).then_some((places, rest));
        };
        let (ends, seen) = blocks(block, position, n);
        let whole = ends.len() * block;
        let is = |at: usize| chosen.get(at) == Some(&1.0);
        let alike = ends.iter().all(|end| (end + 1 - block..=*end).all(|at| is(at) == is(*end)));
        let (taken, rest): (Vec<usize>, Vec<usize>) = ends.into_iter().partition(|end| is(*end));
        let integers = chosen.len() == n && chosen.iter().all(|v| *v == 0.0 || *v == 1.0);
        let tail = (whole..seen).all(is) && !(seen..n).any(is);
        let count = taken.len() == self.picks.min(whole / block);
        (integers && alike && tail && count).then_some((taken, rest))
    }

    /// The places, of a row of so many values, that `chosen` names: of each block, that of its last key. `None` if no values lead to
    /// that choice.
    pub fn places(&self, values: usize, position: u32, chosen: &[f32]) -> Option<Vec<usize>> {
        let chosen: Vec<f64> = chosen.iter().map(|v| f64::from(*v)).collect();
        self.sides(values, position, &chosen).map(|(places, _)| places)
    }

    /// Whether values that are each known to within its `reach` may have been chosen as they were: the places are different
    /// ones of the row, and no value left out is surely larger than one chosen, or one chosen later than one before.
    pub fn admits(&self, row: &[f64], position: u32, reach: impl Fn(usize) -> f64, chosen: &[f64]) -> bool {
        let Some((places, rest)) = self.sides(row.len(), position, chosen) else { return false };
        let may = |own: usize, i: usize| row[own] + reach(own) >= row[i] - reach(i);
        (0..places.len()).all(|rank| {
            let later = places[rank + 1..].iter().filter(|_| self.block.is_none());
            later.chain(&rest).all(|i| may(places[rank], *i))
        })
    }

    /// Whether values that are each known to within its `reach` leave no other choice than `chosen`.
    pub fn is_settled(&self, row: &[f64], position: u32, reach: impl Fn(usize) -> f64, chosen: &[f64]) -> bool {
        let Some((places, rest)) = self.sides(row.len(), position, chosen) else { return false };
        let must = |own: usize, i: usize| row[own] - reach(own) > row[i] + reach(i);
        (0..places.len()).all(|rank| {
            let later = places[rank + 1..].iter().filter(|_| self.block.is_none());
            later.chain(&rest).all(|i| must(places[rank], *i))
        })
    }
}

/// The last keys of the blocks of so many that a token at `position` sees whole, of `keys`, and the number of keys that it sees.
fn blocks(block: usize, position: u32, keys: usize) -> (Vec<usize>, usize) {
    let seen = causal(position, keys);
    ((1..=seen / block.max(1)).map(|count| count * block - 1).collect(), seen)
}

impl Picked {
    /// The lines, of all tokens, that picked each group; a number of no group is ignored.
    pub fn lines<F: Real>(&self, chosen: &[F]) -> Vec<Vec<usize>> {
        let mut lines = vec![Vec::new(); self.groups];
        for (line, value) in chosen.iter().enumerate() {
            if let Some(group) = index(*value, self.groups) {
                lines[group].push(line);
            }
        }
        lines
    }

    /// The rows of the weight that belong to a group, of so many.
    pub fn rows(&self, group: usize, of: usize) -> Range<usize> {
        let each = of / self.groups.max(1);
        group * each..(group + 1) * each
    }
}

/// The row of `x` that line `line` of `lines` of all tokens is made of: its own, or the one of its token.
pub fn line_of(x_len: usize, n: usize, line: usize, lines: usize) -> usize {
    if x_len == lines * n { line } else { line / (lines * n / x_len.max(1)).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: Decision = Decision { picks: 2, block: None };

    /// A near tie was once a fault, and a choice that no rounding makes must stay one.
    #[test]
    fn a_choice_is_admitted_where_rounding_leaves_it() {
        let row = [0.5, 2.0, 1.0, 1.0 - 1e-6];
        let admitted = |chosen: [f64; 2], reach: f64| TWO.admits(&row, 0, |_| reach, &chosen);
        assert!(admitted([1.0, 2.0], 0.0) && !admitted([1.0, 3.0], 0.0) && admitted([1.0, 3.0], 1e-6));
        // The order, one of them twice, and what is no place of the row.
        assert!(!admitted([2.0, 1.0], 1e-3) && !admitted([1.0, 1.0], 9.0));
        assert!(!admitted([1.0, 4.0], 9.0) && !admitted([1.0, f64::NAN], 9.0) && !admitted([1.0, 1.5], 9.0));
        assert!(TWO.is_settled(&row, 0, |_| 1e-7, &[1.0, 2.0]) && !TWO.is_settled(&row, 0, |_| 1e-6, &[1.0, 2.0]));
    }

    /// Blocks of three, of which two are taken: those of the largest values, and what is seen behind the last whole one.
    #[test]
    fn blocks_are_chosen_with_all_their_keys() {
        let of = Decision { picks: 2, block: Some(3) };
        let mut row = vec![0.0; 12];
        (row[2], row[5], row[8], row[11]) = (1.0, 3.0, 2.0, 9.0);
        let chosen = |position: u32| of.choose(&Tensor { shape: vec![1, 12], data: row.clone() }, &[position]).data;
        let keys = |position| {
            chosen(position).iter().enumerate().filter(|(_, v)| **v == 1.0).map(|(i, _)| i).collect::<Vec<_>>()
        };
        assert_eq!(keys(1), [0, 1]);
        assert_eq!(keys(6), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(keys(9), [3, 4, 5, 6, 7, 8, 9]);
        assert!(of.admits(&row, 9, |_| 0.0, &chosen(9)) && !of.admits(&row, 9, |_| 0.0, &chosen(6)));
        // The first block in place of the third: only if the values may be so.
        let mut other = chosen(9);
        other[..3].fill(1.0);
        other[6..9].fill(0.0);
        assert!(!of.admits(&row, 9, |_| 0.4, &other) && of.admits(&row, 9, |_| 0.5, &other));
        assert!(of.is_settled(&row, 9, |_| 0.4, &chosen(9)) && !of.is_settled(&row, 9, |_| 0.5, &chosen(9)));
        other[1] = 0.0;
        assert!(!of.admits(&row, 9, |_| 9.0, &other));
    }

    proptest! {
        /// What is chosen is admitted, and no other choice where the values are apart.
        #[test]
        fn the_largest_are_chosen(row in prop::collection::vec(-9f64..9.0, 2..9)) {
            let x = Tensor { shape: vec![1, row.len()], data: row.clone() };
            let chosen = TWO.choose(&x, &[]).data;
            prop_assert!(TWO.admits(&row, 0, |_| 0.0, &chosen));
            let exchanged = [chosen[1], chosen[0]];
            let equal = row[chosen[0] as usize] == row[chosen[1] as usize];
            prop_assert_eq!(TWO.admits(&row, 0, |_| 0.0, &exchanged), equal);
        }
    }
}
