//! Where a function of one number is least.

/// The place between two numbers where `f` is least, after so many steps of the golden section (Kiefer 1953). `f` must fall
/// to one place and rise from there.
pub(super) fn least((mut from, mut to): (f64, f64), steps: usize, f: impl Fn(f64) -> f64) -> f64 {
    let ratio = (5f64.sqrt() - 1.0) / 2.0;
    let inner = |from: f64, to: f64| (to - ratio * (to - from), from + ratio * (to - from));
    let (mut a, mut b) = inner(from, to);
    let (mut at_a, mut at_b) = (f(a), f(b));
    for _ in 0..steps {
        if at_a < at_b {
            (to, b, at_b) = (b, a, at_a);
            a = inner(from, to).0;
            at_a = f(a);
        } else {
            (from, a, at_a) = (a, b, at_b);
            b = inner(from, to).1;
            at_b = f(b);
        }
    }
    f64::midpoint(from, to)
}

#[cfg(test)]
mod tests {
    use super::least;

    #[test]
    fn the_least_is_found() {
        for place in [0.3, 1.0, 2.9] {
            let found = least((0.0, 3.0), 40, |x| (x - place).abs().sqrt());
            assert!((found - place).abs() < 1e-6, "{found} for {place}");
        }
    }
}
