//! RMSNorm (Zhang & Sennrich 2019): `y_i = w_i · x_i / √(mean(x²) + ε)`.
//!
//! x `[T, n]`, taken as `groups` runs of n/groups elements that are normalised one by one with the same weight
//! `[n/groups]` (one run: the usual norm; one per head: the q and k norm of Qwen3).

use super::{Real, Tensor, UNIT, deviation, real};

/// Parameters of the norm.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// ε, added to the mean square.
    pub eps: f64,
    /// Runs per row.
    pub groups: usize,
}

impl RmsNorm {
    /// Roundings that a value of a row of `width` elements is good to.
    pub fn roundings(&self, width: usize) -> f64 {
        let run = (width / self.groups).max(1);
        4.0 + 0.5 * (run as f64).log2()
    }
}

/// Normalises every run of `x`.
pub fn forward<F: Real>(norm: &RmsNorm, x: &Tensor<F>, w: &[F]) -> Tensor<F> {
    let run = x.row_len() / norm.groups;
    let mut y = x.clone();
    for row in y.data.chunks_mut(run.max(1)) {
        let mean = real::sum(row.iter().map(|&v| v * v)) / F::of(run as f64);
        let scale = F::one() / (mean + F::of(norm.eps)).sqrt();
        for (v, &w) in row.iter_mut().zip(w) {
            *v = *v * scale * w;
        }
    }
    y
}

/// The squares are positive, so a tree sum is good to log₂ n roundings, of which the square root keeps half; division,
/// root and two products follow. A sum in two lanes or more stays within that too; one term by term does not
/// ([`one_by_one`]).
pub fn bound(norm: &RmsNorm, y: &Tensor<f64>) -> Vec<f32> {
    let factor = UNIT * norm.roundings(y.row_len());
    y.data.iter().map(|y| (factor * y.abs()) as f32).collect()
}

/// The mean squares of a run that f32 gives term by term, which is the only usual order whose error a caller may have to
/// tell from a fault: from either end, products rounded or not.
pub fn one_by_one(run: &[f32]) -> [f64; 4] {
    let (fused, rounded) = (|s: f32, x: &f32| x.mul_add(*x, s), |s: f32, x: &f32| s + x * x);
    let sums = [
        run.iter().fold(0.0, fused),
        run.iter().fold(0.0, rounded),
        run.iter().rev().fold(0.0, fused),
        run.iter().rev().fold(0.0, rounded),
    ];
    sums.map(|sum| f64::from(sum) / run.len() as f64)
}

/// What a sum term by term adds to [`bound`] where the operands are not known to the last bit, so that it cannot be
/// repeated: `u·√n` (four times its root mean square, 0.25), and what is lost of squares so small that the sum so far
/// swallows them, each no more than itself or `u·Σx²`; of both the square root keeps half.
pub fn bound_one_by_one(norm: &RmsNorm, x: &Tensor<f64>, y: &Tensor<f64>) -> Vec<f32> {
    let run = (x.row_len() / norm.groups).max(1);
    let mut out = Vec::with_capacity(y.data.len());
    for (x, y) in x.data.chunks(run).zip(y.data.chunks(run)) {
        let unit = UNIT * x.iter().map(|v| v * v).sum::<f64>();
        let swallowed = x.iter().map(|v| v * v).filter(|square| *square < 4.0 * unit);
        let lost: f64 = swallowed.map(|square| (square / unit).min(1.0)).sum();
        let factor = UNIT * 0.5 * ((run as f64).sqrt() + lost);
        out.extend(y.iter().map(|y| (factor * y.abs()) as f32));
    }
    out
}

/// How uncertain operands make the result, first order in mean square:
/// `dy_i = w_i·s·(dx_i − x_i·s²·mean(x·dx))`, with s the reciprocal root.
pub fn propagate_error(norm: &RmsNorm, x: &Tensor<f64>, dx: &[f32], w: &[f64]) -> Vec<f32> {
    let run = (x.row_len() / norm.groups).max(1);
    let n = run as f64;
    let mut out = Vec::with_capacity(dx.len());
    for (x, dx) in x.data.chunks(run).zip(dx.chunks(run)) {
        let squares: f64 = x.iter().map(|x| x.powi(2)).sum();
        let s = 1.0 / (squares / n + norm.eps).sqrt();
        let common: f64 = x.iter().zip(dx).map(|(x, d)| (x * f64::from(*d)).powi(2)).sum();
        let of_scale = common * (s * s / n).powi(2);
        out.extend(x.iter().zip(dx).zip(w).map(|((x, d), w)| {
            // Its own share of the mean is subtracted, not added.
            let own = (1.0 - 2.0 * x * x * s * s / n) * f64::from(*d).powi(2);
            let reach = deviation(own + x * x * of_scale);
            ((w * s).abs() * reach) as f32
        }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::TINY;
    use proptest::prelude::*;

    /// Operands of which nothing is known leave nothing known of the row: no element gets a bound of zero.
    #[test]
    fn what_is_not_known_stays_so() {
        let norm = RmsNorm { eps: 1e-6, groups: 1 };
        let x = Tensor { shape: vec![1, 3], data: vec![0.0, 1e-4, 9.0] };
        for unknown in [f32::NAN, f32::INFINITY] {
            let bound = propagate_error(&norm, &x, &[unknown; 3], &[1.0; 3]);
            assert!(bound.iter().all(|b| !b.is_finite()), "{bound:?}");
        }
    }

    proptest! {
        /// With unit weight the mean square of a run is 1 (up to ε), and the
        /// result does not change when the input is scaled.
        #[test]
        fn normalises_and_is_scale_free(
            x in prop::collection::vec(0.1f64..100.0, 16), groups in prop::sample::select(vec![1usize, 2, 4]), by in 1.0f64..50.0,
        ) {
            let norm = RmsNorm { eps: 0.0, groups };
            let t = |k: f64| Tensor { shape: vec![1, 16], data: x.iter().map(|v| v * k).collect::<Vec<_>>() };
            let one = vec![1.0; 16 / groups];
            let (a, b) = (forward(&norm, &t(1.0), &one), forward(&norm, &t(by), &one));
            for run in a.data.chunks(16 / groups) {
                let ms: f64 = run.iter().map(|v| v * v).sum::<f64>() / run.len() as f64;
                prop_assert!((ms - 1.0).abs() < 1e-12);
            }
            for (a, b) in a.data.iter().zip(&b.data) {
                prop_assert!((a - b).abs() < 1e-12);
            }
        }

        /// A sum term by term stays within its bound, massive activations or not; and is one of those that
        /// are repeated.
        #[test]
        fn sums_term_by_term_are_bounded(
            mut x in prop::collection::vec(-3f32..3.0, 64..2000), massive in 0f32..2e4, at in 0usize..64,
        ) {
            x[at] = massive;
            let norm = RmsNorm { eps: 1e-6, groups: 1 };
            let wide = Tensor { shape: vec![1, x.len()], data: x.iter().map(|v| f64::from(*v)).collect() };
            let y = forward(&norm, &wide, &vec![1.0; x.len()]);
            let (own, more) = (bound(&norm, &y), bound_one_by_one(&norm, &wide, &y));
            let mean = x.iter().fold(0f32, |s, v| s + v * v) / x.len() as f32;
            prop_assert!(one_by_one(&x).iter().any(|m| (m / f64::from(mean) - 1.0).abs() < 2.0 * UNIT));
            let scale = 1.0 / (mean + 1e-6).sqrt();
            for (i, v) in x.iter().enumerate() {
                let off = (f64::from(v * scale) - y.data[i]).abs();
                prop_assert!(off <= f64::from(own[i]) + f64::from(more[i]) + TINY, "{off} {} {}", own[i], more[i]);
            }
        }
    }
}
