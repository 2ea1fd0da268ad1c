//! Linear layer: `y[t, o] = Σ_i W[o, i] · x[t, i]`.
//!
//! x `[T, n]`, W `[m, n]` as GGUF stores it (a row of n contiguous weights
//! per output) -> `[T, m]`. Weights are dequantised row by row as they are
//! used; no full copy of a matrix exists.

use super::{Context, Real, Tensor, UNIT};
use rayon::prelude::*;

/// How the weight's memory is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Output o owns the n contiguous values from o·n.
    Rows,
    /// The memory is taken for `[n, m]`: weight (o, i) is read at i·m + o.
    /// For a square matrix this is the transpose, otherwise a scramble.
    Transposed,
    /// Output o is read from o·(n + d), for the extra leading dimension d;
    /// beyond the end stands zero.
    Strided(i32),
}

/// Parameters of the layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Reading order of the weight.
    pub layout: Layout,
}

impl Default for Linear {
    fn default() -> Self {
        Self { layout: Layout::Rows }
    }
}

/// Output rows that one task computes: large enough to amortise the task,
/// small enough to balance two cores on the smallest matrices.
const ROWS_PER_TASK: usize = 32;

/// Applies the layer to every row of `x`.
pub fn forward<F: Real>(linear: &Linear, x: &Tensor<F>, c: &Context<'_>) -> Tensor<F> {
    match linear.layout {
        Layout::Rows => {
            let columns: Vec<&[F]> = (0..x.rows()).map(|t| x.row(t)).collect();
            let (n, m) = c.weights.extent(c.weight);
            let by_output = products(&columns, n, m, c, |rows, columns, out| {
                let mut wide = vec![F::zero(); rows.len()];
                F::widen(rows, &mut wide);
                dots(&wide, columns, |r, t, v| out[r * columns.len() + t] = v);
            });
            transpose(by_output, x.rows(), m)
        }
        Layout::Transposed => scrambled(x, c, |w| w),
        Layout::Strided(extra) => strided(x, c, extra, |w| w),
    }
}

/// In f64, with `u·√n·Σ|W·x|` per element: the probabilistic bound of an
/// inner product of n terms in any order of summation (Higham & Mary 2019).
pub fn forward_with_bound(linear: &Linear, x: &Tensor<f64>, c: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    let (n, m) = c.weights.extent(c.weight);
    let factor = (UNIT * (n as f64).sqrt()) as f32;
    if linear.layout != Layout::Rows {
        let y = forward(linear, x, c);
        let magnitudes = Tensor { shape: x.shape.clone(), data: x.data.iter().map(|v| v.abs() as f32).collect() };
        let reach = match linear.layout {
            Layout::Strided(extra) => strided(&magnitudes, c, extra, f32::abs),
            _ => scrambled(&magnitudes, c, f32::abs),
        };
        return (y, reach.data.iter().map(|v| factor * v).collect());
    }
    let columns: Vec<&[f64]> = (0..x.rows()).map(|t| x.row(t)).collect();
    let magnitudes: Vec<Vec<f32>> = columns.iter().map(|x| x.iter().map(|v| v.abs() as f32).collect()).collect();
    let magnitudes: Vec<&[f32]> = magnitudes.iter().map(Vec::as_slice).collect();
    let tokens = x.rows();
    let both = products(&columns, n, m, c, |rows, columns, out: &mut [(f64, f32)]| {
        let mut wide = vec![0f64; rows.len()];
        f64::widen(rows, &mut wide);
        dots(&wide, columns, |r, t, v| out[r * tokens + t].0 = v);
        let reach: Vec<f32> = rows.iter().map(|w| w.abs()).collect();
        dots(&reach, &magnitudes, |r, t, v| out[r * tokens + t].1 = factor * v);
    });
    let both = transpose(both, x.rows(), m);
    let (y, bound) = both.data.into_iter().unzip();
    (Tensor { shape: vec![x.rows(), m], data: y }, bound)
}

/// How uncertain operands `dx` `[T, n]` make the result: `dy² = Σ (W·dx)²`.
pub fn spread(linear: &Linear, dx: &Tensor<f32>, c: &Context<'_>) -> Vec<f32> {
    let n = dx.row_len().max(1);
    let mut squares = dx.clone();
    let mut largest = Vec::with_capacity(dx.rows());
    for row in squares.data.chunks_mut(n) {
        // In units of the row's largest, so that no square is lost in f32.
        let unit = row.iter().fold(0f32, |m, d| m.max(*d));
        row.iter_mut().for_each(|d| *d = if unit > 0.0 { (*d / unit).powi(2) } else { 0.0 });
        largest.push(unit);
    }
    let sums = match linear.layout {
        Layout::Rows => {
            let columns: Vec<&[f32]> = (0..dx.rows()).map(|t| squares.row(t)).collect();
            let (n, m) = c.weights.extent(c.weight);
            let by_output = products(&columns, n, m, c, |rows, columns, out| {
                let wide: Vec<f32> = rows.iter().map(|w| w * w).collect();
                dots(&wide, columns, |r, t, v| out[r * columns.len() + t] = v);
            });
            transpose(by_output, dx.rows(), m)
        }
        Layout::Transposed => scrambled(&squares, c, |w| w * w),
        Layout::Strided(extra) => strided(&squares, c, extra, |w| w * w),
    };
    let m = sums.row_len().max(1);
    sums.data.chunks(m).zip(largest).flat_map(|(row, unit)| row.iter().map(move |v| unit * v.sqrt())).collect()
}

/// Runs `f(weight rows, columns, out)` for up to four outputs at a time, in
/// parallel. Gives `[m, T]`.
fn products<F: Real, S: Copy + Default + Send>(
    columns: &[&[F]],
    n: usize,
    m: usize,
    c: &Context<'_>,
    f: impl Fn(&[f32], &[&[F]], &mut [S]) + Sync,
) -> Vec<S> {
    let tokens = columns.len().max(1);
    let mut out = vec![S::default(); m * tokens];
    out.par_chunks_mut(tokens * ROWS_PER_TASK).enumerate().for_each(|(task, out)| {
        let mut rows = vec![0f32; n * TILE];
        for (i, out) in out.chunks_mut(tokens * TILE).enumerate() {
            let rows = &mut rows[..out.len() / tokens * n];
            c.weights.rows(c.weight, task * ROWS_PER_TASK + i * TILE, rows);
            f(rows, columns, out);
        }
    });
    out
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

fn transpose<S: Copy>(by_output: Vec<S>, tokens: usize, m: usize) -> Tensor<S> {
    let data = if tokens == 1 {
        by_output
    } else {
        let mut data = Vec::with_capacity(by_output.len());
        for t in 0..tokens {
            data.extend((0..m).map(|o| by_output[o * tokens + t]));
        }
        data
    };
    Tensor { shape: vec![tokens, m], data }
}

/// The memory read as `[n, m]`: walks it in order and once for all tokens, so
/// that even the output projection needs no copy. Flat index f belongs to
/// input f / m, output f % m. `seen` is applied to every weight.
fn scrambled<F: Real>(x: &Tensor<F>, c: &Context<'_>, seen: fn(f32) -> f32) -> Tensor<F> {
    let (n, m) = c.weights.extent(c.weight);
    let zeros = || Tensor::zeros(vec![x.rows(), m]);
    let parts = rayon::current_num_threads().max(1);
    let share = m.div_ceil(parts).max(1);
    let part = |first: usize| {
        let mut y = zeros();
        let mut narrow = vec![0f32; n];
        let mut row = vec![F::zero(); n];
        for r in first..m.min(first + share) {
            c.weights.rows(c.weight, r, &mut narrow);
            narrow.iter_mut().for_each(|w| *w = seen(*w));
            F::widen(&narrow, &mut row);
            let mut at = 0;
            while at < n {
                let flat = r * n + at;
                let (i, o) = (flat / m, flat % m);
                let run = (m - o).min(n - at);
                for (t, y) in y.data.chunks_mut(m).enumerate() {
                    F::axpy(x.row(t)[i], &row[at..at + run], &mut y[o..o + run]);
                }
                at += run;
            }
        }
        y
    };
    let firsts: Vec<usize> = (0..m).step_by(share).collect();
    let sum = |mut a: Tensor<F>, b: Tensor<F>| {
        a.data.iter_mut().zip(b.data).for_each(|(a, b)| *a = *a + b);
        a
    };
    firsts.into_par_iter().map(part).reduce(zeros, sum)
}

/// Rows taken at another distance than they were written with.
fn strided<F: Real>(x: &Tensor<F>, c: &Context<'_>, extra: i32, seen: fn(f32) -> f32) -> Tensor<F> {
    let (n, m) = c.weights.extent(c.weight);
    let stride = (n as i64 + i64::from(extra)).max(0) as usize;
    let mut by_output = vec![F::zero(); m * x.rows()];
    by_output.par_chunks_mut(x.rows().max(1)).enumerate().for_each(|(o, out)| {
        // A row of n from there touches two stored rows at most.
        let (row, at) = (o * stride / n, o * stride % n);
        let stored = m.saturating_sub(row).min(2);
        let mut narrow = vec![0f32; 2 * n];
        c.weights.rows(c.weight, row.min(m - 1), &mut narrow[..stored * n]);
        let mut wide = vec![F::zero(); n];
        for (w, v) in wide.iter_mut().zip(&narrow[at..at + n]) {
            *w = F::of(f64::from(seen(*v)));
        }
        for (t, y) in out.iter_mut().enumerate() {
            *y = F::dot(&wide, x.row(t));
        }
    });
    transpose(by_output, x.rows(), m)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Matrix;
    use proptest::prelude::*;

    proptest! {
        /// Both layouts against the definition, for any shape; and the bound
        /// holds for the f32 evaluation.
        #[test]
        fn is_the_definition(n in 1usize..40, m in 1usize..80, tokens in 1usize..7, seed in 1u32..1000) {
            let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 8e6 - 1.0;
            let w = Matrix(n, m, (0..n * m).map(value).collect());
            let x: Vec<f64> = (0..n * tokens).map(|i| f64::from(value(i + 7777))).collect();
            let x = Tensor { shape: vec![tokens, n], data: x };
            let c = Context { tokens: &[], positions: &[], weights: &w, weight: "w" };
            let exact = |o: usize, t: usize, layout| (0..n).map(|i| {
                let at = match layout {
                    Layout::Rows => o * n + i,
                    Layout::Transposed => i * m + o,
                    Layout::Strided(d) => o * (n as i32 + d).max(0) as usize + i,
                };
                w.2.get(at).map_or(0.0, |&w| f64::from(w) * x.row(t)[i])
            }).sum::<f64>();
            for layout in [Layout::Rows, Layout::Transposed, Layout::Strided(1), Layout::Strided(-1), Layout::Strided(3)] {
                let y = forward(&Linear { layout }, &x, &c);
                for t in 0..tokens {
                    for o in 0..m {
                        prop_assert!((y.row(t)[o] - exact(o, t, layout)).abs() < 1e-9);
                    }
                }
            }
            let narrow = Tensor { shape: x.shape.clone(), data: x.data.iter().map(|&v| v as f32).collect() };
            let f = forward(&Linear::default(), &narrow, &c);
            let (y, bound) = forward_with_bound(&Linear::default(), &x, &c);
            for ((f, y), b) in f.data.iter().zip(&y.data).zip(&bound) {
                prop_assert!((f64::from(*f) - y).abs() <= 4.0 * f64::from(*b));
            }
        }
    }
}
