//! The anatomy of an op: what an output is made of, which is all that anyone but the op's own file knows of it.
//!
//! There are seven anatomies, and who judges or explains stages matches on them exhaustively. An op is a [`Definition`](super::Definition);
//! what its anatomy says in full (a product with a weight, a choice, a sum) the definition need not write again: the
//! functions of this file evaluate it.

use super::{
    Attention, Context, KvCache, Real, RmsNorm, Rope, Softmax, TINY, Tensor, UNIT, attn_context, attn_scores, bias,
    collective, embed, linear, residual,
};
use crate::quant::SomeRows;
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
    /// Elements of a row of operand 0 `[T, n]`, by the integers of operand 1 `[T, k]` -> `[T, k]`.
    Elements,
    /// The same elements along the last axis of operand 0.
    Columns(Columns),
}

/// Elements of a row that stand in runs at equal distances: a part of what one product gave, such as the queries of each head
/// of which the gate stands beside them.
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

    /// Which element of a row stands at each place.
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

/// How integers are chosen from a row of operand 0: `[T, n]` -> `[T, picks]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// So many places of the largest values, the largest first.
    pub picks: usize,
}

/// What ranks give each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// The sum of all of them.
    Sum,
    /// One after the other.
    Concatenation,
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

    /// Whether an output is made of other tokens' values.
    pub fn crosses_tokens(&self) -> bool {
        match self {
            Self::State(_)
            | Self::Contraction(Contraction::Scores(_) | Contraction::Context(_))
            | Self::RowReduction(RowReduction::Exponentials(_) | RowReduction::Recurrent) => true,
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

/// The integer that a value stands for, if it is one below `count`.
pub fn index<F: Real>(value: F, count: usize) -> Option<usize> {
    value.to_usize().filter(|i| *i < count && F::of(*i as f64) == value)
}

impl Decision {
    /// The places of the largest values of each row, NaN last; equals in the order in which llama.cpp's CPU backend has them,
    /// that of libstdc++'s `std::sort` over the whole row (`ggml_compute_forward_argsort_f32`).
    pub fn choose<F: Real>(&self, x: &Tensor<F>) -> Tensor<F> {
        let mut chosen = Tensor::zeros(vec![x.rows(), self.picks]);
        for (row, out) in x.data.chunks(x.row_len().max(1)).zip(chosen.data.chunks_mut(self.picks.max(1))) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            sort(&mut order, |a, b| row[*a] > row[*b] || row[*b].is_nan() && !row[*a].is_nan());
            out.iter_mut().zip(order).for_each(|(out, i)| *out = F::of(i as f64));
        }
        chosen
    }

    /// Whether values that are each known to within its `reach` may have been chosen as they were: the places are different
    /// ones of the row, and no value left out is surely larger than one chosen, or one chosen later than one before.
    pub fn admits(&self, row: &[f64], reach: impl Fn(usize) -> f64, chosen: &[f64]) -> bool {
        let Some(places) = chosen.iter().map(|c| index(*c, row.len())).collect::<Option<Vec<usize>>>() else {
            return false;
        };
        places.len() == self.picks
            && (0..places.len()).all(|rank| {
                let (before, own) = (&places[..rank], places[rank]);
                let rest = (0..row.len()).filter(|i| !places[..=rank].contains(i));
                !before.contains(&own) && { rest }.all(|i| row[own] + reach(own) >= row[i] - reach(i))
            })
    }

    /// Whether values that are each known to within its `reach` leave no other choice than `chosen`.
    pub fn is_settled(&self, row: &[f64], reach: impl Fn(usize) -> f64, chosen: &[f64]) -> bool {
        let places: Vec<usize> = chosen.iter().filter_map(|c| index(*c, row.len())).collect();
        (0..places.len()).all(|rank| {
            let own = places[rank];
            let mut rest = (0..row.len()).filter(|i| !places[..=rank].contains(i));
            rest.all(|i| row[own] - reach(own) > row[i] + reach(i))
        })
    }
}

impl Picked {
    /// Of each group the lines, of all tokens, that picked it; what is no group was picked by none.
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

/// What the anatomy says in full.
///
/// # Panics
/// If it does not: then the definition says what is computed.
pub(super) fn forward<F: Real>(of: Anatomy<'_>, inputs: &[&Tensor<F>], c: &Context<'_>) -> Tensor<F> {
    match of {
        Anatomy::Gather(Gather::Rows) => embed::forward(c),
        Anatomy::Gather(Gather::Elements) => gathered(inputs[0], inputs[1]),
        Anatomy::Gather(Gather::Columns(columns)) => columns.of(inputs[0]),
        Anatomy::Contraction(Contraction::Weight(None)) => linear::forward(inputs[0], c),
        Anatomy::Contraction(Contraction::Weight(Some(picked))) => {
            by_group(picked, inputs[0], inputs[1], c, |x, c| linear::forward(x, c))
        }
        Anatomy::Contraction(Contraction::Rows(terms)) => combined(terms, inputs[0], inputs[1]),
        Anatomy::Contraction(Contraction::Scores(a)) => attn_scores::forward(a, inputs[0], inputs[1]),
        Anatomy::Contraction(Contraction::Context(a)) => attn_context::forward(a, inputs[0], inputs[1]),
        Anatomy::Elementwise(Elementwise::Sum) => {
            let [first, rest @ ..] = inputs else { unreachable!("a sum has an operand") };
            rest.iter().fold((*first).clone(), |sum, x| residual::forward(&sum, x))
        }
        Anatomy::Elementwise(Elementwise::Offset) => bias::forward(inputs[0], &c.vector::<F>(0)),
        Anatomy::Decision(decision) => decision.choose(inputs[0]),
        Anatomy::Collective(of) => collective::forward(of, inputs),
        Anatomy::RowReduction(_) | Anatomy::Elementwise(_) | Anatomy::State(_) => {
            unreachable!("the definition says what it computes: {of:?}")
        }
    }
}

/// The bound that follows from the anatomy: of a sum of products in any order, one rounding of a sum, none of what is
/// copied or chosen.
///
/// # Panics
/// As [`forward`].
pub(super) fn bound(of: Anatomy<'_>, inputs: &[&Tensor<f64>], y: &Tensor<f64>, c: &Context<'_>) -> Vec<f32> {
    let size = |x: &Tensor<f64>| x.map(f64::abs);
    match of {
        Anatomy::Gather(Gather::Rows) => embed::bound(y),
        Anatomy::Gather(Gather::Elements | Gather::Columns(_)) | Anatomy::Decision(_) => vec![0.0; y.data.len()],
        Anatomy::Contraction(Contraction::Weight(picked)) => {
            let bound = |x: &Tensor<f64>, c: &Context<'_>| {
                let (y, bound) = linear::forward_with_bound(x, c);
                Tensor { shape: y.shape, data: bound.into_iter().map(f64::from).collect() }
            };
            let all = match picked {
                None => bound(inputs[0], c),
                Some(picked) => by_group(picked, inputs[0], inputs[1], c, bound),
            };
            all.narrow().data
        }
        Anatomy::Contraction(Contraction::Rows(terms)) => {
            let reach = combined(terms, &size(inputs[0]), &size(inputs[1]));
            let factor = UNIT * (terms as f64).sqrt();
            reach.data.iter().map(|reach| (factor * reach + terms as f64 * TINY) as f32).collect()
        }
        Anatomy::Contraction(Contraction::Scores(a)) => attn_scores::bound(a, inputs[0], inputs[1]),
        Anatomy::Contraction(Contraction::Context(a)) => attn_context::bound(a, inputs[0], inputs[1]),
        Anatomy::Elementwise(Elementwise::Offset) => residual::bound(y),
        Anatomy::Elementwise(Elementwise::Sum) if inputs.len() < 3 => residual::bound(y),
        Anatomy::Elementwise(Elementwise::Sum) => {
            let reach = inputs.iter().map(|x| size(x)).reduce(|a, b| residual::forward(&a, &b));
            let terms = (inputs.len() as f64 * UNIT) as f32;
            reach.map_or_else(Vec::new, |sum| sum.data.iter().map(|v| terms * *v as f32).collect())
        }
        Anatomy::Collective(of) => collective::bound(of, inputs, y),
        Anatomy::RowReduction(_) | Anatomy::Elementwise(_) | Anatomy::State(_) => {
            unreachable!("the definition says how far f32 may be off: {of:?}")
        }
    }
}

/// How uncertain operands make the result, by the anatomy alone: a sum of products by their squares, a `function` of elements
/// by its values on both sides. No error is carried through a decision: where the operands leave another choice, the choice
/// is infinitely uncertain, and so is all that is picked by it.
///
/// # Panics
/// As [`forward`].
pub(super) fn propagate_error(
    of: Anatomy<'_>, inputs: &[&Tensor<f64>], deltas: &[Option<&[f32]>], y: &Tensor<f64>, c: &Context<'_>,
    function: &dyn Fn(&[&Tensor<f64>]) -> Tensor<f64>,
) -> Vec<f32> {
    let delta = |i: usize| -> Tensor<f32> {
        let data = deltas[i].map_or_else(|| vec![0.0; inputs[i].data.len()], <[f32]>::to_vec);
        Tensor { shape: inputs[i].shape.clone(), data }
    };
    match of {
        Anatomy::Gather(Gather::Rows) => vec![0.0; y.data.len()],
        Anatomy::Gather(Gather::Columns(columns)) => columns.of(&delta(0)).data,
        Anatomy::Gather(Gather::Elements) => by_choice(gathered(&delta(0), &inputs[1].narrow()).data, deltas[1], 1),
        Anatomy::Contraction(Contraction::Weight(None)) => linear::propagate_error(&delta(0), c),
        Anatomy::Contraction(Contraction::Weight(Some(picked))) => {
            let carried = by_group(picked, &delta(0), &inputs[1].narrow(), c, |dx, c| Tensor {
                shape: Vec::new(),
                data: linear::propagate_error(dx, c),
            });
            let width = carried.shape.last().copied().unwrap_or(1);
            by_choice(carried.data, deltas[1], width)
        }
        Anatomy::Contraction(Contraction::Rows(terms)) => {
            error_of_products(inputs, [&delta(0), &delta(1)], |a, b| combined(terms, a, b))
        }
        Anatomy::Contraction(Contraction::Scores(a)) => {
            error_of_products(inputs, [&delta(0), &delta(1)], |q, k| attn_scores::forward(a, q, k))
        }
        Anatomy::Contraction(Contraction::Context(a)) => {
            error_of_products(inputs, [&delta(0), &delta(1)], |w, v| attn_context::forward(a, w, v))
        }
        Anatomy::Elementwise(
            Elementwise::Sum | Elementwise::Offset | Elementwise::Gated(_) | Elementwise::Function(_),
        ) => {
            let mut sum = vec![0f64; y.data.len()];
            for i in (0..inputs.len()).filter(|i| deltas[*i].is_some()) {
                let delta = delta(i);
                let [up, down] = [1.0, -1.0].map(|sign| {
                    let moved = inputs[i].data.iter().zip(&delta.data).map(|(x, d)| x + sign * f64::from(*d));
                    let moved = Tensor { shape: inputs[i].shape.clone(), data: moved.collect() };
                    let all = (0..inputs.len()).map(|j| if j == i { &moved } else { inputs[j] });
                    function(&all.collect::<Vec<_>>())
                });
                let halves = up.data.iter().zip(&down.data).map(|(a, b)| (a - b) / 2.0);
                sum.iter_mut().zip(halves).for_each(|(sum, half)| *sum = sum.hypot(half));
            }
            sum.into_iter().map(|v| v as f32).collect()
        }
        Anatomy::Decision(decision) => {
            let (n, delta) = (inputs[0].row_len().max(1), delta(0));
            let rows = inputs[0].data.chunks(n).zip(delta.data.chunks(n)).zip(y.data.chunks(decision.picks.max(1)));
            let of_row = |((row, reach), chosen): ((&[f64], &[f32]), &[f64])| {
                let settled = decision.is_settled(row, |i| f64::from(reach[i]), chosen);
                vec![if settled { 0.0 } else { f32::INFINITY }; decision.picks]
            };
            rows.flat_map(of_row).collect()
        }
        Anatomy::Collective(of) => collective::propagate_error(of, inputs, deltas),
        Anatomy::RowReduction(_) | Anatomy::Elementwise(Elementwise::Rotation(_)) | Anatomy::State(_) => {
            unreachable!("the definition says how errors are carried through it: {of:?}")
        }
    }
}

/// How uncertain operands make sums of products of their elements, of which `sums` is the definition:
/// `√Σ (b·da)² + (a·db)²`.
fn error_of_products(
    inputs: &[&Tensor<f64>], deltas: [&Tensor<f32>; 2], sums: impl Fn(&Tensor<f64>, &Tensor<f64>) -> Tensor<f64>,
) -> Vec<f32> {
    let (square, of_delta) = (|i: usize| inputs[i].map(|v| v * v), |i: usize| deltas[i].map(|d| f64::from(d).powi(2)));
    let (of_a, of_b) = (sums(&of_delta(0), &square(1)), sums(&square(0), &of_delta(1)));
    of_a.data.iter().zip(&of_b.data).map(|(a, b)| (a + b).sqrt() as f32).collect()
}

/// Open where the choice is, of which each has `width` elements.
fn by_choice(mut carried: Vec<f32>, choice: Option<&[f32]>, width: usize) -> Vec<f32> {
    for (elements, delta) in carried.chunks_mut(width.max(1)).zip(choice.unwrap_or_default()) {
        if *delta != 0.0 {
            elements.fill(f32::INFINITY);
        }
    }
    carried
}

/// Elements of each row of `x` at the places that `chosen` says; NaN where it says none.
fn gathered<F: Real>(x: &Tensor<F>, chosen: &Tensor<F>) -> Tensor<F> {
    let (n, k) = (x.row_len().max(1), chosen.row_len().max(1));
    let rows = x.data.chunks(n).zip(chosen.data.chunks(k));
    let of_row = |(row, chosen): (&[F], &[F])| {
        chosen.iter().map(|at| index(*at, row.len()).map_or(F::nan(), |at| row[at])).collect::<Vec<F>>()
    };
    Tensor { shape: chosen.shape.clone(), data: rows.flat_map(of_row).collect() }
}

/// `Σ_k left[t, k] · right[t, k]`, over so many rows of the right operand for each token.
fn combined<F: Real>(terms: usize, left: &Tensor<F>, right: &Tensor<F>) -> Tensor<F> {
    let n = right.row_len() / terms.max(1);
    let mut y = Tensor::zeros(vec![left.rows(), n]);
    let rows = left.data.chunks(terms.max(1)).zip(right.data.chunks((terms * n).max(1)));
    for (out, (factors, rows)) in y.data.chunks_mut(n.max(1)).zip(rows) {
        for (factor, row) in factors.iter().zip(rows.chunks(n.max(1))) {
            F::axpy(*factor, row, out);
        }
    }
    y
}

/// What `of` gives of the lines of each group with its rows of the weight: `[T, l, m]`; NaN of what picked no group.
fn by_group<F: Real>(
    picked: Picked, x: &Tensor<F>, chosen: &Tensor<F>, c: &Context<'_>,
    of: impl Fn(&Tensor<F>, &Context<'_>) -> Tensor<F>,
) -> Tensor<F> {
    let (n, all) = c.extent(0);
    let (m, lines) = (all / picked.groups.max(1), chosen.data.len());
    let mut y = Tensor { shape: [chosen.shape.as_slice(), &[m]].concat(), data: vec![F::nan(); lines * m] };
    for (group, own) in picked.lines(&chosen.data).into_iter().enumerate().filter(|(_, own)| !own.is_empty()) {
        let rows = own.iter().flat_map(|&line| {
            let row = line_of(x.data.len(), n, line, lines);
            x.data[row * n..(row + 1) * n].iter().copied()
        });
        let some = SomeRows { source: c.source, rows: picked.rows(group, all) };
        let part = of(&Tensor { shape: vec![own.len(), n], data: rows.collect() }, &Context { source: &some, ..*c });
        for (line, value) in own.into_iter().zip(part.data.chunks(m.max(1))) {
            y.data[line * m..(line + 1) * m].copy_from_slice(value);
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Matrix;
    use proptest::prelude::*;

    const TWO: Decision = Decision { picks: 2 };

    /// A near tie was once a fault, and a choice that no rounding makes must stay one.
    #[test]
    fn a_choice_is_admitted_where_rounding_leaves_it() {
        let row = [0.5, 2.0, 1.0, 1.0 - 1e-6];
        let admitted = |chosen: [f64; 2], reach: f64| TWO.admits(&row, |_| reach, &chosen);
        assert!(admitted([1.0, 2.0], 0.0) && !admitted([1.0, 3.0], 0.0) && admitted([1.0, 3.0], 1e-6));
        // The order, one of them twice, and what is no place of the row.
        assert!(!admitted([2.0, 1.0], 1e-3) && !admitted([1.0, 1.0], 9.0));
        assert!(!admitted([1.0, 4.0], 9.0) && !admitted([1.0, f64::NAN], 9.0) && !admitted([1.0, 1.5], 9.0));
        assert!(TWO.is_settled(&row, |_| 1e-7, &[1.0, 2.0]) && !TWO.is_settled(&row, |_| 1e-6, &[1.0, 2.0]));
    }

    proptest! {
        /// What is chosen is admitted, and no other choice where the values are apart.
        #[test]
        fn the_largest_are_chosen(row in prop::collection::vec(-9f64..9.0, 2..9)) {
            let x = Tensor { shape: vec![1, row.len()], data: row.clone() };
            let chosen = TWO.choose(&x).data;
            prop_assert!(TWO.admits(&row, |_| 0.0, &chosen));
            let exchanged = [chosen[1], chosen[0]];
            let equal = row[chosen[0] as usize] == row[chosen[1] as usize];
            prop_assert_eq!(TWO.admits(&row, |_| 0.0, &exchanged), equal);
        }

        /// Each line meets the rows of the group that it picked, whether lines share the row of their token or not; what is
        /// no group is not known; and no error is carried through a choice that may be another.
        #[test]
        fn lines_meet_their_group(seed in 1u32..1000, own: bool, picks in prop::collection::vec(0usize..3, 4)) {
            let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 8e6 - 1.0;
            let (n, m) = (5, 2);
            let w = Matrix(n, 3 * m, (0..n * 3 * m).map(value).collect());
            let weights = [w.weight()];
            let c = Context { tokens: &[], positions: &[], source: &w, weights: &weights };
            let shape = if own { vec![2, 2, n] } else { vec![2, n] };
            let x = Tensor { data: (0..shape.iter().product()).map(|i| f64::from(value(i + 99))).collect(), shape };
            let mut chosen = Tensor { shape: vec![2, 2], data: picks.iter().map(|p| *p as f64).collect::<Vec<_>>() };
            chosen.data[3] = 3.0;
            let of = Anatomy::Contraction(Contraction::Weight(Some(Picked { groups: 3 })));
            let y = forward(of, &[&x, &chosen], &c);
            prop_assert_eq!(&y.shape, &[2, 2, m]);
            for (line, &pick) in picks.iter().enumerate().take(3) {
                let row = if own { line } else { line / 2 };
                for o in 0..m {
                    let weights = &w.2[(pick * m + o) * n..][..n];
                    let exact: f64 = weights.iter().zip(&x.data[row * n..]).map(|(w, x)| f64::from(*w) * x).sum();
                    prop_assert!((y.data[line * m + o] - exact).abs() < 1e-12);
                }
            }
            prop_assert!(y.data[3 * m..].iter().all(|v| v.is_nan()));
            let (exact, open) = (vec![0.0; x.data.len()], [0.0, f32::INFINITY, 0.0, 0.0]);
            let carried = propagate_error(of, &[&x, &chosen], &[Some(&exact), Some(&open)], &y, &c, &|_| unreachable!());
            prop_assert!(carried[..m].iter().all(|d| *d == 0.0) && carried[m..2 * m].iter().all(|d| *d == f32::INFINITY));
        }
    }
}
