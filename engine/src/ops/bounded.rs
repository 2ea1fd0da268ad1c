//! Inner products of a few rows of weights with many vectors: in f64, and of their magnitudes in f32, in one pass.
//!
//! Vectors stand side by side, so that a register holds an element of each and no sum is ever added up across lanes. What
//! a pass reads (a piece of all vectors, and four rows) fits the first cache.

use super::Tensor;
use crate::isa::{Isa, by_isa, isa};

/// Rows of weights that are multiplied together.
pub(super) const ROWS: usize = 4;

/// Elements of rows and vectors that are multiplied before the next rows take their turn.
const DEPTH: usize = 64;

/// Vectors side by side.
pub(super) struct Columns {
    groups: Vec<Group>,
    /// How many there are.
    count: usize,
}

/// Some of them, filled up with zeros.
enum Group {
    /// Where a register holds eight f32.
    Eight(Packed<8, 1>),
    /// Where it holds sixteen.
    Sixteen(Packed<16, 1>),
    ThirtyTwo(Packed<16, 2>),
}

/// `S` times `L` vectors: element by element the values of all, and their magnitudes.
struct Packed<const L: usize, const S: usize> {
    values: Vec<[[f64; L]; S]>,
    magnitudes: Vec<[[f32; L]; S]>,
}

/// Sums of rows with `S` times `L` vectors: of products in f64, and of their magnitudes in f32.
#[derive(Clone)]
struct Sums<const L: usize, const S: usize> {
    products: [[[f64; L]; S]; ROWS],
    magnitudes: [[[f32; L]; S]; ROWS],
}

impl Columns {
    /// The rows of `x`, if they are enough to be worth it.
    pub(super) fn new(x: &Tensor<f64>) -> Option<Self> {
        let (count, lanes) = (x.rows(), if isa() == Isa::Avx512 { 16 } else { 8 });
        if count * 3 < lanes {
            return None;
        }
        let (mut groups, mut first) = (Vec::new(), 0);
        while first < count {
            let group = match count - first {
                17.. if lanes == 16 => Group::ThirtyTwo(Packed::new(x, first)),
                _ if lanes == 16 => Group::Sixteen(Packed::new(x, first)),
                _ => Group::Eight(Packed::new(x, first)),
            };
            first += group.width();
            groups.push(group);
        }
        Some(Self { groups, count })
    }

    /// Multiplies `rows`, of the vectors' length `n` each, with every vector; `put(row, vector, product, of magnitudes)`.
    pub(super) fn multiply(&self, rows: &[f32], n: usize, mut put: impl FnMut(usize, usize, f64, f32)) {
        let mut first = 0;
        for group in &self.groups {
            let mut put = |row, column, product, magnitude| {
                if first + column < self.count {
                    put(row, first + column, product, magnitude);
                }
            };
            match group {
                Group::Eight(packed) => packed.multiply(rows, n, &mut put, |rows, x, m, sums| {
                    by_isa!(avx2::add(rows, x, m, sums), avx2::add(rows, x, m, sums), add(rows, x, m, sums));
                }),
                Group::Sixteen(packed) => packed.multiply(rows, n, &mut put, |rows, x, m, sums| {
                    by_isa!(avx512::add(rows, x, m, sums), add(rows, x, m, sums), add(rows, x, m, sums));
                }),
                Group::ThirtyTwo(packed) => packed.multiply(rows, n, &mut put, |rows, x, m, sums| {
                    by_isa!(avx512::add(rows, x, m, sums), add(rows, x, m, sums), add(rows, x, m, sums));
                }),
            }
            first += group.width();
        }
    }
}

impl Group {
    fn width(&self) -> usize {
        match self {
            Self::Eight(_) => 8,
            Self::Sixteen(_) => 16,
            Self::ThirtyTwo(_) => 32,
        }
    }
}

impl<const L: usize, const S: usize> Packed<L, S> {
    /// The rows of `x` from `first` on.
    fn new(x: &Tensor<f64>, first: usize) -> Self {
        let n = x.row_len();
        let (mut values, mut magnitudes) = (vec![[[0f64; L]; S]; n], vec![[[0f32; L]; S]; n]);
        for column in 0..(L * S).min(x.rows() - first) {
            let at = |(value, magnitude): (&mut [[f64; L]; S], &mut [[f32; L]; S]), x: f64| {
                value.as_flattened_mut()[column] = x;
                magnitude.as_flattened_mut()[column] = x.abs() as f32;
            };
            values.iter_mut().zip(&mut magnitudes).zip(x.row(first + column)).for_each(|(to, x)| at(to, *x));
        }
        Self { values, magnitudes }
    }

    /// As [`Columns::multiply`], piece by piece with `add`.
    fn multiply(
        &self, rows: &[f32], n: usize, put: &mut impl FnMut(usize, usize, f64, f32),
        add: impl Fn([&[f32]; ROWS], &[[[f64; L]; S]], &[[[f32; L]; S]], &mut Sums<L, S>),
    ) {
        let zero = Sums { products: [[[0.0; L]; S]; ROWS], magnitudes: [[[0.0; L]; S]; ROWS] };
        let mut sums = vec![zero; (rows.len() / n).div_ceil(ROWS)];
        for from in (0..n).step_by(DEPTH) {
            let piece = from..n.min(from + DEPTH);
            let (values, magnitudes) = (&self.values[piece.clone()], &self.magnitudes[piece.clone()]);
            for (rows, sums) in rows.chunks(ROWS * n).zip(&mut sums) {
                // Of rows that are not there the sums are not looked at.
                let row = |r: usize| &rows[(r * n).min(rows.len() - n)..][piece.clone()];
                add(std::array::from_fn(row), values, magnitudes, sums);
            }
        }
        for row in 0..rows.len() / n {
            let (of_row, r) = (&sums[row / ROWS], row % ROWS);
            let both = of_row.products[r].as_flattened().iter().zip(of_row.magnitudes[r].as_flattened());
            both.enumerate().for_each(|(column, (product, magnitude))| put(row, column, *product, *magnitude));
        }
    }
}

/// Rows in both types, the second of their magnitudes.
#[inline(always)]
fn widened(rows: [&[f32]; ROWS]) -> ([[f64; DEPTH]; ROWS], [[f32; DEPTH]; ROWS]) {
    let (mut wide, mut magnitudes) = ([[0f64; DEPTH]; ROWS], [[0f32; DEPTH]; ROWS]);
    for ((row, wide), magnitudes) in rows.iter().zip(&mut wide).zip(&mut magnitudes) {
        for ((w, wide), magnitude) in row.iter().zip(wide).zip(magnitudes) {
            (*wide, *magnitude) = (f64::from(*w), w.abs());
        }
    }
    (wide, magnitudes)
}

/// Adds the products of at most [`DEPTH`] elements.
fn add<const L: usize, const S: usize>(
    rows: [&[f32]; ROWS], values: &[[[f64; L]; S]], magnitudes: &[[[f32; L]; S]], sums: &mut Sums<L, S>,
) {
    let (wide, reach) = widened(rows);
    for (k, (x, m)) in values.iter().zip(magnitudes).enumerate() {
        for r in 0..ROWS {
            let (products, magnitudes) = (&mut sums.products[r], &mut sums.magnitudes[r]);
            products.as_flattened_mut().iter_mut().zip(x.as_flattened()).for_each(|(sum, x)| *sum += wide[r][k] * x);
            magnitudes.as_flattened_mut().iter_mut().zip(m.as_flattened()).for_each(|(sum, m)| *sum += reach[r][k] * m);
        }
    }
}

/// The same with every sum in a register. Written in intrinsics because the optimiser does not keep them there by itself.
macro_rules! vectorised {
    ($name:ident, $feature:literal, f64: $wide:literal, $load_pd:ident, $store_pd:ident, $set_pd:ident, $fma_pd:ident,
     f32: $narrow:literal, $load_ps:ident, $store_ps:ident, $set_ps:ident, $fma_ps:ident) => {
        #[cfg(target_arch = "x86_64")]
        mod $name {
            use super::{DEPTH, ROWS, Sums, widened};
            use std::arch::x86_64::*;

            /// Two vectors of f64, and one of f32.
            type Lanes<T> = [T; $narrow];

            #[target_feature(enable = $feature)]
            pub fn add<const S: usize>(
                rows: [&[f32]; ROWS], values: &[[Lanes<f64>; S]], magnitudes: &[[Lanes<f32>; S]],
                sums: &mut Sums<$narrow, S>,
            ) {
                let (wide, reach) = widened(rows);
                // SAFETY: an array of lanes is two vectors of f64.
                let load = |from: &Lanes<f64>| unsafe { [$load_pd(from.as_ptr()), $load_pd(from[$wide..].as_ptr())] };
                // SAFETY: one of f32.
                let load_narrow = |from: &Lanes<f32>| unsafe { $load_ps(from.as_ptr()) };
                let mut of_products = [[[$set_pd(0.0); 2]; S]; ROWS];
                let mut of_magnitudes = [[$set_ps(0.0); S]; ROWS];
                for r in 0..ROWS {
                    for s in 0..S {
                        of_products[r][s] = load(&sums.products[r][s]);
                        of_magnitudes[r][s] = load_narrow(&sums.magnitudes[r][s]);
                    }
                }
                for (k, (values, magnitudes)) in values.iter().zip(magnitudes).enumerate().take(DEPTH) {
                    let (mut x, mut m) = ([[$set_pd(0.0); 2]; S], [$set_ps(0.0); S]);
                    for s in 0..S {
                        (x[s], m[s]) = (load(&values[s]), load_narrow(&magnitudes[s]));
                    }
                    for r in 0..ROWS {
                        let (w, of_w) = ($set_pd(wide[r][k]), $set_ps(reach[r][k]));
                        for s in 0..S {
                            of_products[r][s][0] = $fma_pd(w, x[s][0], of_products[r][s][0]);
                            of_products[r][s][1] = $fma_pd(w, x[s][1], of_products[r][s][1]);
                            of_magnitudes[r][s] = $fma_ps(of_w, m[s], of_magnitudes[r][s]);
                        }
                    }
                }
                for r in 0..ROWS {
                    for s in 0..S {
                        let to = &mut sums.products[r][s];
                        // SAFETY: an array of lanes is two vectors of f64, and one of f32.
                        unsafe {
                            $store_pd(to.as_mut_ptr(), of_products[r][s][0]);
                            $store_pd(to[$wide..].as_mut_ptr(), of_products[r][s][1]);
                            $store_ps(sums.magnitudes[r][s].as_mut_ptr(), of_magnitudes[r][s]);
                        }
                    }
                }
            }
        }
    };
}

vectorised! { avx512, "avx512f,avx2,fma",
f64: 8, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_set1_pd, _mm512_fmadd_pd,
f32: 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps }
vectorised! { avx2, "avx2,fma",
f64: 4, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_set1_pd, _mm256_fmadd_pd,
f32: 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps }
