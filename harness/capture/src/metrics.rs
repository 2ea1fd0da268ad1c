//! Distances between what two sides gave, and how NaN counts in them.
//!
//! One rule everywhere: NaN is never dropped. A distance that has no value, since one side holds NaN or two infinities
//! part, is infinite; so is the largest of any that includes one. Only a choice passes NaN over: no sampler draws it.

use qdiff_engine::isa::{Vectorised, vectorised};

/// Distance of one value from another: 0 of equals, infinities included.
fn apart(a: f32, b: f32) -> f64 {
    if a == b { 0.0 } else { known(f64::from(a) - f64::from(b)).abs() }
}

/// `x`, or infinity where it is NaN.
fn known(x: f64) -> f64 {
    if x.is_nan() { f64::INFINITY } else { x }
}

/// The largest of `values`, none of them negative; 0 of none.
pub fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, |m, x| m.max(known(x)))
}

/// Relative L2 distance of row `a` from row `b`: ‖a − b‖ / ‖b‖, or ‖a − b‖ where `b` is zero.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    let [d2, b2] = vectorised(Squares(a, b));
    known(d2.sqrt() / if b2 > 0.0 { b2.sqrt() } else { 1.0 })
}

/// Sums of squares, of the differences of two rows and of the second.
struct Squares<'a>(&'a [f32], &'a [f32]);

impl Vectorised for Squares<'_> {
    type Output = [f64; 2];

    #[inline(always)]
    fn run(self) -> [f64; 2] {
        let add = |sums: &mut [f64; 2], a: f32, b: f32| {
            let (a, b) = (f64::from(a), f64::from(b));
            let apart = if a == b { 0.0 } else { a - b };
            sums[0] += apart * apart;
            sums[1] += b * b;
        };
        let ((a, rest_of_a), (b, rest_of_b)) = (self.0.as_chunks::<LANES>(), self.1.as_chunks::<LANES>());
        let mut lanes = [[0f64; 2]; LANES];
        for (a, b) in a.iter().zip(b) {
            for i in 0..LANES {
                add(&mut lanes[i], a[i], b[i]);
            }
        }
        for ((sums, a), b) in lanes.iter_mut().zip(rest_of_a).zip(rest_of_b) {
            add(sums, *a, *b);
        }
        lanes.iter().fold([0.0; 2], |[d2, b2], lane| [d2 + lane[0], b2 + lane[1]])
    }
}

/// Elements that are added up side by side.
const LANES: usize = 8;

/// Largest difference between elements of `a` and `b` at the same place.
pub fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    largest(a.iter().zip(b).map(|(a, b)| apart(*a, *b)))
}

/// By how much `x` prefers the element `own` to `other`; infinite where one has no value.
pub fn margin(x: &[f32], own: usize, other: usize) -> f64 {
    if x[own] == x[other] { 0.0 } else { known(f64::from(x[own]) - f64::from(x[other])) }
}

/// Index of the largest value, the lowest among equals; NaN never wins.
pub fn argmax<T: Copy + PartialOrd>(x: &[T]) -> usize {
    let nan = |v: T| v.partial_cmp(&v).is_none();
    (1..x.len()).fold(0, |best, i| if x[i] > x[best] || (nan(x[best]) && !nan(x[i])) { i } else { best })
}

/// Natural logarithm of Σ exp(x).
pub fn log_sum_exp(x: &[f32]) -> f64 {
    let max = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + x.iter().map(|v| (f64::from(*v) - max).exp()).sum::<f64>().ln()
}

/// Kullback-Leibler divergence, in nats, of the distribution with the logits `q` from that with the logits `p`, of each of
/// which [`log_sum_exp`] is known: Σ p · (ln p − ln q).
pub fn divergence((p, zp): (&[f32], f64), (q, zq): (&[f32], f64)) -> f64 {
    let term = |(p, q): (&f32, &f32)| {
        let (p, q) = (f64::from(*p) - zp, f64::from(*q) - zq);
        p.exp() * (p - q)
    };
    known(p.iter().zip(q).map(term).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;

    fn of(p: &[f32], q: &[f32]) -> f64 {
        divergence((p, log_sum_exp(p)), (q, log_sum_exp(q)))
    }

    #[test]
    fn nan_is_no_small_difference() {
        assert_eq!(largest_difference(&[NAN, 1.0], &[0.0, 5.0]), f64::INFINITY);
        assert_eq!(largest_difference(&[0.0, 1.0], &[NAN, 5.0]), f64::INFINITY);
        assert_eq!(largest_difference(&[NAN], &[NAN]), f64::INFINITY);
        assert_eq!(largest_difference(&[INF, -INF], &[INF, INF]), f64::INFINITY);
        assert_eq!(largest_difference(&[0.0, -INF, 1.0], &[0.5, -INF, 5.0]), 4.0);
        assert_eq!(largest([1.0, f64::NAN, 2.0]), f64::INFINITY);
        assert_eq!(distance(&[NAN, 1.0], &[1.0, 1.0]), f64::INFINITY);
        assert_eq!(margin(&[1.0, NAN], 0, 1), f64::INFINITY);
        assert_eq!(of(&[0.0, 0.0], &[NAN, 0.0]), f64::INFINITY);
    }

    #[test]
    fn distances_are_relative_to_the_second() {
        assert_eq!(distance(&[3.0, 0.0], &[0.0, 4.0]), 1.25);
        assert_eq!(distance(&[3.0, 4.0], &[0.0, 0.0]), 5.0);
        assert_eq!(distance(&[0.0], &[0.0]), 0.0);
    }

    #[test]
    fn the_lowest_of_equals_is_chosen_and_nan_never() {
        assert_eq!(argmax(&[NAN, 1.0, 3.0, 3.0]), 2);
        assert_eq!(argmax(&[f64::NAN, f64::NAN]), 0);
    }

    #[test]
    fn divergence_of_two_coins() {
        // ln odds 0 and ln 3: fair against three to one.
        let (fair, biased) = ([0.0, 0.0], [3f32.ln(), 0.0]);
        let expected = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((of(&fair, &biased) - expected).abs() < 1e-7);
        assert!(of(&fair, &fair).abs() < 1e-15);
    }
}
