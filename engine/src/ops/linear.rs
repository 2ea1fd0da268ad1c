//! Linear layer: `y[t, o] = Σ_i W[o, i] · x[t, i]`.
//!
//! x `[T, n]`, W `[m, n]` as GGUF stores it (a row of n contiguous weights per output) -> `[T, m]`. Weights are
//! dequantised row by row as they are used; no full copy of a matrix exists.

use super::bounded::Columns;
use super::{Context, Real, Tensor, UNIT};
use rayon::prelude::*;
use std::borrow::Cow;

/// Output rows that one task computes: large enough to amortise the task,
/// small enough to balance two cores on the smallest matrices.
const ROWS_PER_TASK: usize = 32;

/// Applies the layer to every row of `x`.
pub fn forward<F: Real>(x: &Tensor<F>, c: &Context<'_>) -> Tensor<F> {
    let shape = vec![x.rows(), c.extent(0).1];
    Tensor { shape, data: products(&columns(x), c, F::wide) }
}

/// In f64, with `u·√n·Σ|W·x|` per element: the probabilistic bound of an
/// inner product of n terms in any order of summation (Higham & Mary 2019).
pub fn forward_with_bound(x: &Tensor<f64>, c: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    let ((n, m), tokens) = (c.extent(0), x.rows());
    let factor = bound_factor(n);
    let (mut y, mut bound) = (Tensor::zeros(vec![tokens, m]), vec![0f32; tokens * m]);
    let (columns, by_row) = (Columns::new(x), x.map(|v| v.abs() as f32));
    let room = || vec![0f32; n * ROWS_PER_TASK];
    let both = tasks(&mut y.data, m).into_par_iter().zip(tasks(&mut bound, m));
    both.enumerate().for_each_init(room, |rows, (task, (mut y, mut bound))| {
        let rows = &mut rows[..n * y.first().map_or(0, |part| part.len())];
        c.rows(0, task * ROWS_PER_TASK, rows);
        let mut put = |row: usize, token: usize, value: f64, reach: f32| {
            (y[token][row], bound[token][row]) = (value, factor * reach);
        };
        match &columns {
            Some(columns) => columns.multiply(rows, n, put),
            None => {
                let (mut wide, mut reach) = (vec![0f64; n], vec![0f32; n]);
                for (r, row) in rows.chunks_exact(n).enumerate() {
                    f64::widen(row, &mut wide);
                    reach.iter_mut().zip(row).for_each(|(reach, w)| *reach = w.abs());
                    (0..tokens).for_each(|t| put(r, t, f64::dot(&wide, x.row(t)), f32::dot(&reach, by_row.row(t))));
                }
            }
        }
    });
    (y, bound)
}

/// What the bound of a sum of n products takes of `Σ|W·x|`.
pub fn bound_factor(n: usize) -> f32 {
    (UNIT * (n as f64).sqrt()) as f32
}

/// How uncertain operands `dx` `[T, n]` make the result: `dy² = Σ (W·dx)²`.
pub fn propagate_error(dx: &Tensor<f32>, c: &Context<'_>) -> Vec<f32> {
    let (n, m) = c.extent(0);
    let mut squares = dx.clone();
    let mut largest = Vec::with_capacity(dx.rows());
    for row in squares.data.chunks_mut(n.max(1)) {
        // In units of the row's largest, so that no square is lost in f32. A row without one is zeros and NaN.
        let unit = row.iter().fold(0f32, |m, d| m.max(d.abs()));
        row.iter_mut().filter(|_| unit > 0.0).for_each(|d| *d = (*d / unit).powi(2));
        largest.push(unit);
    }
    let sums = products(&columns(&squares), c, |rows| rows.iter().map(|w| w * w).collect());
    let rows = sums.chunks(m.max(1)).zip(largest);
    rows.flat_map(|(row, unit)| row.iter().map(move |v| unit * v.sqrt())).collect()
}

fn columns<F: Real>(x: &Tensor<F>) -> Vec<&[F]> {
    (0..x.rows()).map(|t| x.row(t)).collect()
}

/// What each task fills in of each row of `y` `[T, m]`.
fn tasks<S>(y: &mut [S], m: usize) -> Vec<Vec<&mut [S]>> {
    let mut tasks: Vec<Vec<&mut [S]>> = Vec::new();
    tasks.resize_with(m.div_ceil(ROWS_PER_TASK), || Vec::with_capacity(y.len() / m.max(1)));
    for row in y.chunks_mut(m.max(1)) {
        tasks.iter_mut().zip(row.chunks_mut(ROWS_PER_TASK)).for_each(|(task, part)| task.push(part));
    }
    tasks
}

/// Inner products of every column with every row of the weights as `read` gives them, in parallel: `[T, m]`.
fn products<F: Real>(columns: &[&[F]], c: &Context<'_>, read: impl Fn(&[f32]) -> Cow<'_, [F]> + Sync) -> Vec<F> {
    let (n, m) = c.extent(0);
    let mut y = vec![F::zero(); columns.len() * m];
    let room = || vec![0f32; n * TILE];
    tasks(&mut y, m).into_par_iter().enumerate().for_each_init(room, |rows, (task, mut out)| {
        let count = out.first().map_or(0, |part| part.len());
        for first in (0..count).step_by(TILE) {
            let rows = &mut rows[..n * TILE.min(count - first)];
            c.rows(0, task * ROWS_PER_TASK + first, rows);
            dots(&read(rows), columns, |row, token, value| out[token][first + row] = value);
        }
    });
    y
}

/// Rows and columns of a tile.
const TILE: usize = 4;

/// Inner product of every row of `w` with every column, in tiles where both
/// sides have four left; `put(row, column, value)`.
fn dots<F: Real>(w: &[F], columns: &[&[F]], mut put: impl FnMut(usize, usize, F)) {
    let Some(n) = columns.first().map(|c| c.len()) else {
        return;
    };
    let rows: Vec<&[F]> = w.chunks_exact(n).collect();
    let mut done = 0;
    if let [a, b, c, d] = rows[..] {
        for four in columns.chunks_exact(TILE) {
            let tile = F::tile([a, b, c, d], [four[0], four[1], four[2], four[3]]);
            for (r, values) in tile.into_iter().enumerate() {
                for (t, v) in values.into_iter().enumerate() {
                    put(r, done + t, v);
                }
            }
            done += TILE;
        }
    }
    for (t, column) in columns.iter().enumerate().skip(done) {
        for (r, row) in rows.iter().enumerate() {
            put(r, t, F::dot(row, column));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Matrix;
    use proptest::prelude::*;

    /// What is not a number is no error of zero.
    #[test]
    fn an_unknown_error_stays_unknown() {
        let w = Matrix(2, 1, vec![1.0, 1.0]);
        let weights = [w.weight()];
        let c = Context { tokens: &[], positions: &[], history: &[], source: &w, weights: &weights };
        let of = |dx: [f32; 2]| propagate_error(&Tensor { shape: vec![1, 2], data: dx.to_vec() }, &c)[0];
        assert_eq!((of([0.0, 0.0]), of([-3.0, -4.0])), (0.0, 5.0));
        for dx in [[f32::NAN, f32::NAN], [f32::NAN, 0.0], [f32::NAN, -1.0], [f32::NEG_INFINITY, 1.0]] {
            assert!(!of(dx).is_finite(), "{dx:?}");
        }
    }

    proptest! {
        /// The definition, for any shape; and the bound holds for the f32 evaluation.
        #[test]
        fn is_the_definition(n in 1usize..140, m in 1usize..80, tokens in 1usize..42, seed in 1u32..1000) {
            let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 8e6 - 1.0;
            let w = Matrix(n, m, (0..n * m).map(value).collect());
            let x: Vec<f64> = (0..n * tokens).map(|i| f64::from(value(i + 7777))).collect();
            let x = Tensor { shape: vec![tokens, n], data: x };
            let weights = [w.weight()];
            let c = Context { tokens: &[], positions: &[], history: &[], source: &w, weights: &weights };
            let exact = |o: usize, t: usize| (0..n).map(|i| f64::from(w.2[o * n + i]) * x.row(t)[i]).sum::<f64>();
            let (y, bound) = forward_with_bound(&x, &c);
            for t in 0..tokens {
                for o in 0..m {
                    prop_assert!((y.row(t)[o] - exact(o, t)).abs() < 1e-9);
                }
            }
            let f = forward(&x.narrow(), &c);
            for ((f, y), b) in f.data.iter().zip(&y.data).zip(&bound) {
                prop_assert!((f64::from(*f) - y).abs() <= 4.0 * f64::from(*b));
            }
            // An error says how far, and not to which side.
            let dx = Tensor { shape: vec![tokens, n], data: x.data.iter().map(|v| v.abs() as f32).collect() };
            let either = dx.map(|d| if seed % 3 == 0 { -d } else { d });
            let carried = propagate_error(&dx, &c);
            prop_assert_eq!(&propagate_error(&either, &c), &carried);
            let squares = |o: usize, t: usize| (0..n).map(|i| (f64::from(w.2[o * n + i]) * x.row(t)[i]).powi(2)).sum::<f64>();
            for (at, error) in carried.iter().enumerate() {
                let exact = squares(at % m, at / m).sqrt();
                prop_assert!((f64::from(*error) - exact).abs() <= 1e-5 * exact);
            }
        }
    }
}
