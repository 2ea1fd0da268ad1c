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

/// `S` times `L` vectors, element by element.
struct Packed<const L: usize, const S: usize>(Vec<Elements<L, S>>);

/// An element of each of `S` times `L` vectors, and its magnitude.
#[derive(Clone)]
struct Elements<const L: usize, const S: usize> {
    values: [[f64; L]; S],
    magnitudes: [[f32; L]; S],
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
                Group::Eight(packed) => packed.multiply(rows, n, &mut put, |rows, piece, x, sums| {
                    by_isa!(
                        avx2::add(rows, piece, x, sums),
                        avx2::add(rows, piece, x, sums),
                        add(rows, piece, x, sums)
                    );
                }),
                Group::Sixteen(packed) => packed.multiply(rows, n, &mut put, |rows, piece, x, sums| {
                    by_isa!(avx512::add(rows, piece, x, sums), add(rows, piece, x, sums), add(rows, piece, x, sums));
                }),
                Group::ThirtyTwo(packed) => packed.multiply(rows, n, &mut put, |rows, piece, x, sums| {
                    by_isa!(avx512::add(rows, piece, x, sums), add(rows, piece, x, sums), add(rows, piece, x, sums));
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
        let zero = Elements { values: [[0.0; L]; S], magnitudes: [[0.0; L]; S] };
        let mut all = vec![zero; x.row_len()];
        for column in 0..(L * S).min(x.rows() - first) {
            for (elements, &x) in all.iter_mut().zip(x.row(first + column)) {
                elements.values.as_flattened_mut()[column] = x;
                elements.magnitudes.as_flattened_mut()[column] = x.abs() as f32;
            }
        }
        Self(all)
    }

    /// As [`Columns::multiply`], piece by piece with `add`.
    fn multiply(
        &self, rows: &[f32], n: usize, put: &mut impl FnMut(usize, usize, f64, f32),
        add: impl Fn([&[f32]; ROWS], &mut Piece, &[Elements<L, S>], &mut Sums<L, S>),
    ) {
        let zero = Sums { products: [[[0.0; L]; S]; ROWS], magnitudes: [[[0.0; L]; S]; ROWS] };
        let mut sums = vec![zero; (rows.len() / n).div_ceil(ROWS)];
        let mut scratch = Piece { wide: [[0.0; DEPTH]; ROWS], magnitudes: [[0.0; DEPTH]; ROWS] };
        for from in (0..n).step_by(DEPTH) {
            let piece = from..n.min(from + DEPTH);
            for (rows, sums) in rows.chunks(ROWS * n).zip(&mut sums) {
                // Of rows that are not there the sums are not looked at.
                let row = |r: usize| &rows[(r * n).min(rows.len() - n)..][piece.clone()];
                add(std::array::from_fn(row), &mut scratch, &self.0[piece.clone()], sums);
            }
        }
        for row in 0..rows.len() / n {
            let (of_row, r) = (&sums[row / ROWS], row % ROWS);
            let both = of_row.products[r].as_flattened().iter().zip(of_row.magnitudes[r].as_flattened());
            both.enumerate().for_each(|(column, (product, magnitude))| put(row, column, *product, *magnitude));
        }
    }
}

/// A piece of rows in f64, and its magnitudes.
struct Piece {
    wide: [[f64; DEPTH]; ROWS],
    magnitudes: [[f32; DEPTH]; ROWS],
}

impl Piece {
    #[inline(always)]
    fn fill(&mut self, rows: [&[f32]; ROWS]) {
        for ((row, wide), magnitudes) in rows.iter().zip(&mut self.wide).zip(&mut self.magnitudes) {
            for ((w, wide), magnitude) in row.iter().zip(wide).zip(magnitudes) {
                (*wide, *magnitude) = (f64::from(*w), w.abs());
            }
        }
    }
}

/// Adds the products of at most [`DEPTH`] elements; `piece` is room for them.
fn add<const L: usize, const S: usize>(
    rows: [&[f32]; ROWS], piece: &mut Piece, x: &[Elements<L, S>], sums: &mut Sums<L, S>,
) {
    piece.fill(rows);
    for (k, Elements { values, magnitudes }) in x.iter().enumerate() {
        for r in 0..ROWS {
            let (of_values, of_magnitudes) = (&mut sums.products[r], &mut sums.magnitudes[r]);
            let (w, of_w) = (piece.wide[r][k], piece.magnitudes[r][k]);
            of_values.as_flattened_mut().iter_mut().zip(values.as_flattened()).for_each(|(sum, x)| *sum += w * x);
            let both = of_magnitudes.as_flattened_mut().iter_mut().zip(magnitudes.as_flattened());
            both.for_each(|(sum, x)| *sum += of_w * x);
        }
    }
}

/// The same with every sum in a register. Written in intrinsics because the optimiser alone does not keep them there.
macro_rules! vectorised {
    ($name:ident, $feature:literal, f64: $wide:literal, $load_pd:ident, $store_pd:ident, $set_pd:ident,
     $add_pd:ident, $fma_pd:ident,
     f32: $narrow:literal, $load_ps:ident, $store_ps:ident, $set_ps:ident, $add_ps:ident, $fma_ps:ident) => {
        #[cfg(target_arch = "x86_64")]
        mod $name {
            use super::{DEPTH, Elements, Piece, ROWS, Sums};
            use std::arch::x86_64::*;

            /// Two vectors of f64, and one of f32.
            type Lanes<T> = [T; $narrow];

            #[target_feature(enable = $feature)]
            pub fn add<const S: usize>(
                rows: [&[f32]; ROWS], piece: &mut Piece, x: &[Elements<$narrow, S>], sums: &mut Sums<$narrow, S>,
            ) {
                piece.fill(rows);
                // SAFETY: an array of lanes is two vectors of f64.
                let load = |from: &Lanes<f64>| unsafe { [$load_pd(from.as_ptr()), $load_pd(from[$wide..].as_ptr())] };
                // SAFETY: one of f32.
                let load_narrow = |from: &Lanes<f32>| unsafe { $load_ps(from.as_ptr()) };
                let mut of_values = [[[$set_pd(0.0); 2]; S]; ROWS];
                let mut of_magnitudes = [[$set_ps(0.0); S]; ROWS];
                for (k, Elements { values, magnitudes }) in x.iter().enumerate().take(DEPTH) {
                    let (mut x, mut m) = ([[$set_pd(0.0); 2]; S], [$set_ps(0.0); S]);
                    for s in 0..S {
                        (x[s], m[s]) = (load(&values[s]), load_narrow(&magnitudes[s]));
                    }
                    for r in 0..ROWS {
                        let (w, of_w) = ($set_pd(piece.wide[r][k]), $set_ps(piece.magnitudes[r][k]));
                        for s in 0..S {
                            of_values[r][s][0] = $fma_pd(w, x[s][0], of_values[r][s][0]);
                            of_values[r][s][1] = $fma_pd(w, x[s][1], of_values[r][s][1]);
                            of_magnitudes[r][s] = $fma_ps(of_w, m[s], of_magnitudes[r][s]);
                        }
                    }
                }
                for r in 0..ROWS {
                    for s in 0..S {
                        let (to, narrow) = (&mut sums.products[r][s], &mut sums.magnitudes[r][s]);
                        let before = load(to);
                        // SAFETY: an array of lanes is two vectors of f64, and one of f32.
                        unsafe {
                            $store_pd(to.as_mut_ptr(), $add_pd(before[0], of_values[r][s][0]));
                            $store_pd(to[$wide..].as_mut_ptr(), $add_pd(before[1], of_values[r][s][1]));
                            $store_ps(narrow.as_mut_ptr(), $add_ps(load_narrow(narrow), of_magnitudes[r][s]));
                        }
                    }
                }
            }
        }
    };
}

vectorised! { avx512, "avx512f,avx2,fma",
f64: 8, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_set1_pd, _mm512_add_pd, _mm512_fmadd_pd,
f32: 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_add_ps, _mm512_fmadd_ps }
vectorised! { avx2, "avx2,fma",
f64: 4, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_set1_pd, _mm256_add_pd, _mm256_fmadd_pd,
f32: 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_add_ps, _mm256_fmadd_ps }

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The sums of `rows` with `x`, of length `n`, by the loop for every processor and by the one for this.
    fn both<const L: usize, const S: usize>(
        (rows, n): (&[f32], usize), x: &Tensor<f64>,
        own: impl Fn([&[f32]; ROWS], &mut Piece, &[Elements<L, S>], &mut Sums<L, S>),
    ) -> [Vec<(f64, f32)>; 2] {
        let packed = Packed::<L, S>::new(x, 0);
        let (mut plain, mut fast) = (Vec::new(), Vec::new());
        packed.multiply(rows, n, &mut |_, _, y, m| plain.push((y, m)), add);
        packed.multiply(rows, n, &mut |_, _, y, m| fast.push((y, m)), own);
        [plain, fast]
    }

    proptest! {
        /// Whatever a processor has, the sums are the same but for rounding.
        #[test]
        fn every_instruction_set_gives_the_same(n in 1usize..200, m in 1usize..9, tokens in 1usize..40, seed in 1u32..1000) {
            let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) >> 8) as f32 / 8e6 - 1.0;
            let rows: Vec<f32> = (0..n * m).map(value).collect();
            let x = Tensor { shape: vec![tokens, n], data: (0..n * tokens).map(|i| f64::from(value(i + 77))).collect() };
            let of = (rows.as_slice(), n);
            let eight = both::<8, 1>(of, &x, |r, p, x, s| {
                by_isa!(avx2::add(r, p, x, s), avx2::add(r, p, x, s), add(r, p, x, s));
            });
            let more = both::<16, 1>(of, &x, |r, p, x, s| {
                by_isa!(avx512::add(r, p, x, s), add(r, p, x, s), add(r, p, x, s));
            });
            let most = both::<16, 2>(of, &x, |r, p, x, s| {
                by_isa!(avx512::add(r, p, x, s), add(r, p, x, s), add(r, p, x, s));
            });
            for [plain, fast] in [eight, more, most] {
                prop_assert_eq!(plain.len(), fast.len());
                for ((a, m), (b, o)) in plain.into_iter().zip(fast) {
                    prop_assert!((a - b).abs() <= 1e-12 && (m - o).abs() <= 1e-4 * m, "{} {}, {} {}", a, b, m, o);
                }
            }
        }
    }
}
