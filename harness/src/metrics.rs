//! Distances between what two sides gave, and how NaN counts in them.

/// Index of the largest value, the lowest among equals; NaN never wins.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if *v > x[best] || x[best].is_nan() {
            best = i;
        }
    }
    best
}
