//! What rounding comes down to: two constants of f32, sums in f16, and variances.

/// Unit roundoff of f32, 2⁻²⁴: half a ULP of 1.
pub const UNIT: f64 = 5.960_464_477_539_063e-8;

/// Smallest normal f32: results below it may be flushed to zero.
pub const TINY: f64 = f32::MIN_POSITIVE as f64;

/// Unit roundoff of f16, 2⁻¹¹.
pub const HALF_UNIT: f64 = 4.882_812_5e-4;

/// Half of the smallest f16 above zero, 2⁻²⁵: what a result near zero may be off by.
const HALF_TINY: f64 = 2.980_232_238_769_531_3e-8;

/// How far a sum of `n` products that is kept in f16 may be off: `u·√(Σp² + Σ S_k²)`, each product p and each partial
/// sum S_k rounding once, taken for independent. In an order that has nothing to do with the values
/// `Σ S_k² = n·(Σp²/2 + S²/3)` in the mean: S_k is its share `k/n` of the sum S, and a bridge of variance
/// `Σp²·k/n·(1 − k/n)` on it, of which less than `Σp²/2` remains. `norm` is `√Σp²`, `sum` is S. A root mean square
/// of roundings is 0.41 u, not u, so this is two and a half standard deviations.
pub fn half_sum(n: usize, norm: f64, sum: f64) -> f64 {
    let n = n as f64;
    let partial = n * (norm * norm / 2.0 + sum * sum / 3.0);
    (HALF_UNIT * (norm * norm + partial).sqrt()).hypot(HALF_TINY * (2.0 * n).sqrt())
}

/// A variance that rounding may have taken below zero. One that is not known stays NaN; `f64::max` would make it 0.
pub fn at_least_zero(variance: f64) -> f64 {
    if variance < 0.0 && variance.is_finite() { 0.0 } else { variance }
}

/// The root of such a variance; NaN where it is not known.
pub fn deviation(variance: f64) -> f64 {
    at_least_zero(variance).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    proptest! {
        /// Sums of all lengths, signs and offsets, term by term in f16: what the factor of an element allows holds, and it
        /// is no hundred times what they need.
        #[test]
        fn sums_in_f16_are_as_far_off_as_the_model_says(seed in 0u64..5000, n in 2usize..3000, mean in -1f64..1.0) {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
            };
            let products: Vec<f64> = (0..n).map(|_| next() + mean / (n as f64).sqrt()).collect();
            let (sum, norm) = (products.iter().sum::<f64>(), products.iter().map(|p| p * p).sum::<f64>().sqrt());
            let kept = products.iter().fold(f16::ZERO, |s, p| f16::from_f64(s.to_f64() + f16::from_f64(*p).to_f64()));
            let off = (kept.to_f64() - sum).abs();
            prop_assert!(off <= 4.0 * half_sum(n, norm, sum), "{off} of {}", half_sum(n, norm, sum));
        }
    }
}
