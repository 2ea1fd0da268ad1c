//! The evaluation of what an anatomy says in full: values, bounds, and carried errors.

use super::anatomy::{Anatomy, Contraction, Elementwise, Gather, Picked, index, line_of};
use super::{Context, Real, TINY, Tensor, UNIT, attn_context, attn_scores, bias, collective, embed, linear, residual};
use crate::quant::SomeRows;

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
        Anatomy::Decision(decision) => decision.choose(inputs[0], c.positions),
        Anatomy::Collective(of) => collective::forward(of, inputs),
        Anatomy::Gather(Gather::Hashed) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) | Anatomy::State(_) => {
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
        Anatomy::Gather(Gather::Rows | Gather::Hashed) => embed::bound(y),
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
        Anatomy::Gather(Gather::Rows | Gather::Hashed) => vec![0.0; y.data.len()],
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
            let width = decision.width(inputs[0].row_len());
            let rows = inputs[0].data.chunks(n).zip(delta.data.chunks(n)).zip(y.data.chunks(width.max(1)));
            let of_row = |(t, ((row, reach), chosen))| {
                let (row, reach): (&[f64], &[f32]) = (row, reach);
                let position = c.positions.get(t).copied().unwrap_or(0);
                let settled = decision.is_settled(row, position, |i| f64::from(reach[i]), chosen);
                vec![if settled { 0.0 } else { f32::INFINITY }; width]
            };
            rows.enumerate().flat_map(of_row).collect()
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

    proptest! {
        /// Each line meets the rows of the group that it picked, whether lines share the row of their token or not; what is
        /// no group is not known; and no error is carried through a choice that may be another.
        #[test]
        fn lines_meet_their_group(seed in 1u32..1000, own: bool, picks in prop::collection::vec(0usize..3, 4)) {
            let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 8e6 - 1.0;
            let (n, m) = (5, 2);
            let w = Matrix(n, 3 * m, (0..n * 3 * m).map(value).collect());
            let weights = [w.weight()];
            let c = Context { tokens: &[], positions: &[], history: &[], source: &w, weights: &weights };
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
