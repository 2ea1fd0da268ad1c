//! The two number types ops are written for, and the inner loops that must be
//! fast in both.
//!
//! The loops are plain Rust over fixed lanes; they are compiled three times
//! (AVX-512, AVX2 with FMA, baseline) and chosen at run time.

use num_traits::Float;
use std::sync::OnceLock;

/// f32 or f64.
pub trait Real: Float + Default + Send + Sync + std::fmt::Debug + std::iter::Sum + 'static {
    /// Nearest value to `x`.
    fn of(x: f64) -> Self;
    /// As f64, exactly.
    fn wide(self) -> f64;
    /// Inner product of `w` with each of four vectors of the same length.
    fn dot4(w: &[Self], x: [&[Self]; 4]) -> [Self; 4];
    /// Inner product.
    fn dot(w: &[Self], x: &[Self]) -> Self;
    /// `y += a·x`.
    fn axpy(a: Self, x: &[Self], y: &mut [Self]);
    /// Copies f32 values, widening where needed.
    fn widen(from: &[f32], to: &mut [Self]);
}

#[derive(Clone, Copy, PartialEq)]
enum Isa {
    Avx512,
    Avx2,
    Baseline,
}

fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Baseline
    })
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

#[inline(always)]
fn dot4_body<F: Real, const N: usize, const FUSED: bool>(w: &[F], x: [&[F]; 4]) -> [F; 4] {
    let n = w.len();
    let x = [&x[0][..n], &x[1][..n], &x[2][..n], &x[3][..n]];
    let mut acc = [[F::zero(); N]; 4];
    let full = n / N * N;
    let mut at = 0;
    while at < full {
        let a = &w[at..at + N];
        let b = [&x[0][at..at + N], &x[1][at..at + N], &x[2][at..at + N], &x[3][at..at + N]];
        for i in 0..N {
            acc[0][i] = fma::<F, FUSED>(a[i], b[0][i], acc[0][i]);
            acc[1][i] = fma::<F, FUSED>(a[i], b[1][i], acc[1][i]);
            acc[2][i] = fma::<F, FUSED>(a[i], b[2][i], acc[2][i]);
            acc[3][i] = fma::<F, FUSED>(a[i], b[3][i], acc[3][i]);
        }
        at += N;
    }
    let mut out = [F::zero(); 4];
    for (column, out) in out.iter_mut().enumerate() {
        let mut rest = F::zero();
        for i in full..n {
            rest = fma::<F, FUSED>(w[i], x[column][i], rest);
        }
        *out = fold(acc[column]) + rest;
    }
    out
}

#[inline(always)]
fn axpy_body<F: Real, const FUSED: bool>(a: F, x: &[F], y: &mut [F]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = fma::<F, FUSED>(a, x, *y);
    }
}

macro_rules! real {
    ($t:ty, $avx512:ident, $avx2:ident, $wide:literal, $narrow:literal) => {
        #[cfg(target_arch = "x86_64")]
        mod $avx512 {
            use super::*;
            #[target_feature(enable = "avx512f,avx2,fma")]
            pub fn dot(w: &[$t], x: &[$t]) -> $t {
                dot_body::<$t, $wide, true>(w, x)
            }
            #[target_feature(enable = "avx512f,avx2,fma")]
            pub fn dot4(w: &[$t], x: [&[$t]; 4]) -> [$t; 4] {
                dot4_body::<$t, $wide, true>(w, x)
            }
            #[target_feature(enable = "avx512f,avx2,fma")]
            pub fn axpy(a: $t, x: &[$t], y: &mut [$t]) {
                axpy_body::<$t, true>(a, x, y);
            }
        }
        #[cfg(target_arch = "x86_64")]
        mod $avx2 {
            use super::*;
            #[target_feature(enable = "avx2,fma")]
            pub fn dot(w: &[$t], x: &[$t]) -> $t {
                dot_body::<$t, $narrow, true>(w, x)
            }
            #[target_feature(enable = "avx2,fma")]
            pub fn dot4(w: &[$t], x: [&[$t]; 4]) -> [$t; 4] {
                dot4_body::<$t, $narrow, true>(w, x)
            }
            #[target_feature(enable = "avx2,fma")]
            pub fn axpy(a: $t, x: &[$t], y: &mut [$t]) {
                axpy_body::<$t, true>(a, x, y);
            }
        }
        impl Real for $t {
            fn of(x: f64) -> Self {
                x as $t
            }
            fn wide(self) -> f64 {
                f64::from(self)
            }
            fn dot(w: &[Self], x: &[Self]) -> Self {
                match isa() {
                    // SAFETY: `isa` saw the features on this processor.
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => unsafe { $avx512::dot(w, x) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => unsafe { $avx2::dot(w, x) },
                    _ => dot_body::<$t, $narrow, false>(w, x),
                }
            }
            fn dot4(w: &[Self], x: [&[Self]; 4]) -> [Self; 4] {
                match isa() {
                    // SAFETY: `isa` saw the features on this processor.
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => unsafe { $avx512::dot4(w, x) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => unsafe { $avx2::dot4(w, x) },
                    _ => dot4_body::<$t, $narrow, false>(w, x),
                }
            }
            fn axpy(a: Self, x: &[Self], y: &mut [Self]) {
                match isa() {
                    // SAFETY: `isa` saw the features on this processor.
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => unsafe { $avx512::axpy(a, x, y) },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => unsafe { $avx2::axpy(a, x, y) },
                    _ => axpy_body::<$t, false>(a, x, y),
                }
            }
            fn widen(from: &[f32], to: &mut [Self]) {
                for (to, &from) in to.iter_mut().zip(from) {
                    *to = <$t>::from(from);
                }
            }
        }
    };
}

real!(f32, f32_avx512, f32_avx2, 32, 16);
real!(f64, f64_avx512, f64_avx2, 16, 8);

/// Sum in lanes: the error grows with n/16 at worst, not with n.
pub fn sum<F: Real>(x: impl Iterator<Item = F>) -> F {
    let mut lanes = [F::zero(); 16];
    for (i, x) in x.enumerate() {
        lanes[i % 16] = lanes[i % 16] + x;
    }
    fold(lanes)
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
            let four = f32::dot4(&w, [&x, &x, &w, &x]);
            prop_assert!((f64::from(four[3]) - exact).abs() <= allowed);
            prop_assert_eq!(four[0], four[3]);
            let wide: (Vec<f64>, Vec<f64>) =
                (w.iter().map(|&v| v.into()).collect(), x.iter().map(|&v| v.into()).collect());
            prop_assert!((f64::dot(&wide.0, &wide.1) - exact).abs() <= scale * 1e-14);
            let plain = dot_body::<f64, 8, false>(&wide.0, &wide.1);
            prop_assert!((plain - exact).abs() <= scale * 1e-14);
        }
    }
}
