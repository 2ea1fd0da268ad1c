//! The two number types ops are written for, and the inner loops that must be fast in both.
//!
//! The loops are plain Rust over fixed lanes; they are compiled three times
//! (AVX-512, AVX2 with FMA, baseline) and chosen at run time.

use super::Tensor;
use crate::isa::by_isa;
use num_traits::Float;
use std::borrow::Cow;

/// f32 or f64.
pub trait Real: Float + Default + Send + Sync + std::fmt::Debug + std::iter::Sum + 'static {
    /// Nearest value to `x`.
    fn of(x: f64) -> Self;
    /// Inner products of each of four rows `w` with each of four vectors `x`, all of one length: `[row][vector]`.
    fn tile(w: [&[Self]; 4], x: [&[Self]; 4]) -> [[Self; 4]; 4];
    /// Inner product.
    fn dot(w: &[Self], x: &[Self]) -> Self;
    /// `y += a·x`.
    fn axpy(a: Self, x: &[Self], y: &mut [Self]);
    /// f32 values, widened where needed.
    fn wide(from: &[f32]) -> Cow<'_, [Self]>;
    /// Copies f32 values, widening where needed.
    fn widen(from: &[f32], to: &mut [Self]);
    /// What the function of this type gives.
    fn by_type(
        inputs: &[&Tensor<Self>], in_f32: &dyn Fn(&[&Tensor<f32>]) -> Tensor<f32>,
        in_f64: &dyn Fn(&[&Tensor<f64>]) -> Tensor<f64>,
    ) -> Tensor<Self>;
}

/// Pairwise sum of the lanes, so that the error grows with their logarithm.
#[inline(always)]
fn fold<F: Real, const N: usize>(mut lanes: [F; N]) -> F {
    let mut n = N;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = lanes[i] + lanes[i + n];
        }
    }
    lanes[0]
}

#[inline(always)]
fn fma<F: Real, const FUSED: bool>(a: F, b: F, c: F) -> F {
    // Without the instruction, `mul_add` would be a slow library call.
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn dot_body<F: Real, const N: usize, const FUSED: bool>(w: &[F], x: &[F]) -> F {
    let mut acc = [F::zero(); N];
    let (wc, xc) = (w.chunks_exact(N), x.chunks_exact(N));
    let mut rest = F::zero();
    for (a, b) in wc.remainder().iter().zip(xc.remainder()) {
        rest = fma::<F, FUSED>(*a, *b, rest);
    }
    for (a, b) in wc.zip(xc) {
        for i in 0..N {
            acc[i] = fma::<F, FUSED>(a[i], b[i], acc[i]);
        }
    }
    fold(acc) + rest
}

/// The baseline's tile: nothing but inner products.
fn tile_of_dots<F: Real, const N: usize>(w: [&[F]; 4], x: [&[F]; 4]) -> [[F; 4]; 4] {
    w.map(|w| x.map(|x| dot_body::<F, N, false>(w, x)))
}

#[inline(always)]
fn axpy_body<F: Real, const FUSED: bool>(a: F, x: &[F], y: &mut [F]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = fma::<F, FUSED>(a, x, *y);
    }
}

/// The loops for one type and instruction set. A tile is made `rows` by four vectors at a time in registers: every
/// loaded value is used `rows` or four times, so that the arithmetic and not the cache sets the pace; `rows` is what
/// fits the registers. Written in intrinsics because the optimiser does not keep the accumulators in registers by
/// itself.
macro_rules! vectorised {
    ($name:ident, $t:ty, $feature:literal, dot: $dot:literal, rows: $rows:literal, lanes: $lanes:literal,
     $zero:ident, $load:ident, $store:ident, $fma:ident) => {
        #[cfg(target_arch = "x86_64")]
        mod $name {
            use super::{axpy_body, dot_body, fold};
            use std::arch::x86_64::*;

            #[target_feature(enable = $feature)]
            pub fn dot(w: &[$t], x: &[$t]) -> $t {
                dot_body::<$t, $dot, true>(w, x)
            }

            #[target_feature(enable = $feature)]
            pub fn axpy(a: $t, x: &[$t], y: &mut [$t]) {
                axpy_body::<$t, true>(a, x, y);
            }

            #[target_feature(enable = $feature)]
            pub fn tile(w: [&[$t]; 4], x: [&[$t]; 4]) -> [[$t; 4]; 4] {
                let n = w[0].len();
                let (w, x) = (w.map(|w| &w[..n]), x.map(|x| &x[..n]));
                let mut out = [[0.0; 4]; 4];
                for first in (0..4).step_by($rows) {
                    let made = rows(std::array::from_fn(|r| w[first + r]), x);
                    out[first..first + $rows].copy_from_slice(&made);
                }
                out
            }

            #[target_feature(enable = $feature)]
            fn rows(w: [&[$t]; $rows], x: [&[$t]; 4]) -> [[$t; 4]; $rows] {
                let n = x[0].len();
                let mut acc = [[$zero(); 4]; $rows];
                let full = n / $lanes * $lanes;
                let mut at = 0;
                while at < full {
                    // SAFETY: `at + lanes <= full <= n`, to which `tile` cut every slice.
                    let b = x.map(|x| unsafe { $load(x.as_ptr().add(at)) });
                    for r in 0..$rows {
                        // SAFETY: as above.
                        let a = unsafe { $load(w[r].as_ptr().add(at)) };
                        for t in 0..4 {
                            acc[r][t] = $fma(a, b[t], acc[r][t]);
                        }
                    }
                    at += $lanes;
                }
                let mut out = [[0.0; 4]; $rows];
                for r in 0..$rows {
                    for t in 0..4 {
                        let mut lanes = [0.0; $lanes];
                        // SAFETY: the array holds one vector.
                        unsafe { $store(lanes.as_mut_ptr(), acc[r][t]) };
                        out[r][t] = fold(lanes) + dot_body::<$t, 1, true>(&w[r][full..], &x[t][full..]);
                    }
                }
                out
            }
        }
    };
}

vectorised! { f32_avx512, f32, "avx512f,avx2,fma", dot: 32, rows: 4, lanes: 16,
_mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps }
vectorised! { f64_avx512, f64, "avx512f,avx2,fma", dot: 16, rows: 4, lanes: 8,
_mm512_setzero_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_fmadd_pd }
vectorised! { f32_avx2, f32, "avx2,fma", dot: 16, rows: 2, lanes: 8,
_mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps }
vectorised! { f64_avx2, f64, "avx2,fma", dot: 8, rows: 2, lanes: 4,
_mm256_setzero_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_fmadd_pd }

macro_rules! real {
    ($t:ty, $avx512:ident, $avx2:ident, $lanes:literal, $wide:expr, $f32:ident, $f64:ident, $own:ident) => {
        impl Real for $t {
            fn of(x: f64) -> Self {
                x as $t
            }
            fn dot(w: &[Self], x: &[Self]) -> Self {
                by_isa!($avx512::dot(w, x), $avx2::dot(w, x), dot_body::<$t, $lanes, false>(w, x))
            }
            fn tile(w: [&[Self]; 4], x: [&[Self]; 4]) -> [[Self; 4]; 4] {
                by_isa!($avx512::tile(w, x), $avx2::tile(w, x), tile_of_dots::<$t, $lanes>(w, x))
            }
            fn axpy(a: Self, x: &[Self], y: &mut [Self]) {
                by_isa!($avx512::axpy(a, x, y), $avx2::axpy(a, x, y), axpy_body::<$t, false>(a, x, y))
            }
            fn wide(from: &[f32]) -> Cow<'_, [Self]> {
                $wide(from)
            }
            fn widen(from: &[f32], to: &mut [Self]) {
                for (to, &from) in to.iter_mut().zip(from) {
                    *to = <$t>::from(from);
                }
            }
            fn by_type(
                inputs: &[&Tensor<Self>], $f32: &dyn Fn(&[&Tensor<f32>]) -> Tensor<f32>,
                $f64: &dyn Fn(&[&Tensor<f64>]) -> Tensor<f64>,
            ) -> Tensor<Self> {
                $own(inputs)
            }
        }
    };
}

real!(f32, f32_avx512, f32_avx2, 16, Cow::Borrowed, in_f32, _in_f64, in_f32);
real!(
    f64,
    f64_avx512,
    f64_avx2,
    8,
    |from: &[f32]| from.iter().map(|&v| f64::from(v)).collect(),
    _in_f32,
    in_f64,
    in_f64
);

/// Terms that one level of [`sum`] adds up in lanes.
const SUM_BLOCK: usize = 256;

/// Sum in lanes, block by block: the error grows with the logarithm of the
/// number of terms beyond a block's 16 additions, not with the number itself.
pub fn sum<F: Real>(x: impl Iterator<Item = F>) -> F {
    let mut blocks: Vec<F> = Vec::new();
    let (mut lanes, mut count) = ([F::zero(); 16], 0);
    for x in x {
        lanes[count % 16] = lanes[count % 16] + x;
        count += 1;
        if count == SUM_BLOCK {
            blocks.push(fold(lanes));
            (lanes, count) = ([F::zero(); 16], 0);
        }
    }
    let last = fold(lanes);
    if blocks.is_empty() {
        return last;
    }
    blocks.push(last);
    sum(blocks.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every instruction set gives the inner product, at any length.
        #[test]
        fn dots_agree_with_the_sum(x in prop::collection::vec(-1e3f32..1e3, 0..200), seed in 0u32..1000) {
            let w: Vec<f32> = x.iter().enumerate()
                .map(|(i, v)| v * ((i as u32 ^ seed) % 7) as f32 - 3.0).collect();
            let exact: f64 = w.iter().zip(&x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let scale: f64 = w.iter().zip(&x).map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs()).sum();
            let allowed = scale * super::super::UNIT * 8.0;
            prop_assert!((f64::from(f32::dot(&w, &x)) - exact).abs() <= allowed);
            let tile = f32::tile([&x, &w, &x, &w], [&x, &x, &w, &x]);
            let baseline = tile_of_dots::<f32, 8>([&x, &w, &x, &w], [&x, &x, &w, &x]);
            for tile in [tile, baseline] {
                prop_assert!((f64::from(tile[1][3]) - exact).abs() <= allowed);
                prop_assert!((f64::from(tile[0][2]) - exact).abs() <= allowed);
                prop_assert_eq!(tile[1], tile[3]);
                prop_assert_eq!(tile[1][0], tile[1][3]);
            }
            let wide: (Vec<f64>, Vec<f64>) =
                (w.iter().map(|&v| v.into()).collect(), x.iter().map(|&v| v.into()).collect());
            prop_assert!((f64::dot(&wide.0, &wide.1) - exact).abs() <= scale * 1e-14);
            let plain = dot_body::<f64, 8, false>(&wide.0, &wide.1);
            prop_assert!((plain - exact).abs() <= scale * 1e-14);
        }
    }
}
