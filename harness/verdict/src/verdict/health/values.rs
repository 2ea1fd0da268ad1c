//! What holds of any tensor, and of a rotation.

use super::Seen;
use qdiff_engine::ops::Tensor;

/// How far a norm may be off before it is called broken: far above any rounding, far below any real fault.
const BROKEN: f64 = 1e-2;

/// Rows shorter than this may well be constant.
const SHORTEST: usize = 16;

/// Whether there is a NaN or an infinity.
pub(super) fn non_finite(t: &Tensor<f32>) -> Option<Seen> {
    let bad = t.data.iter().filter(|v| !v.is_finite()).count();
    let first = t.data.iter().position(|v| !v.is_finite())?;
    // Its number in each axis, the last one first.
    let mut rest = first;
    let mut at: Vec<usize> = Vec::with_capacity(t.shape.len());
    for &extent in t.shape.iter().rev() {
        at.push(rest % extent);
        rest /= extent;
    }
    at.reverse();
    let are = if bad == 1 { "is" } else { "are" };
    let all = t.data.len();
    Some((
        format!("{bad} of {all} values {are} not finite; the first, at {at:?} of {:?}, is {}", t.shape, t.data[first]),
        None,
    ))
}

/// Whether some row has one value throughout.
pub(super) fn constant(t: &Tensor<f32>) -> Option<Seen> {
    let width = t.shape.last().copied().unwrap_or(1);
    if width < SHORTEST {
        return None;
    }
    let same = |row: &&[f32]| row.iter().all(|v| *v == row[0]);
    let rows = t.data.chunks_exact(width);
    let value = rows.clone().find(same)?[0];
    let count = rows.clone().filter(same).count();
    let what =
        if value == 0.0 { "zero throughout: not written, cleared, or computed so" } else { "of one value throughout" };
    Some((format!("{count} of {} rows of {width} elements are {what}", rows.len()), None))
}

/// Whether a rotation of heads of this length from `x` to `y` changes norms by more than it may where both were rounded, or
/// turns nothing at a position other than 0.
pub(super) fn rotation(
    x: &Tensor<f32>, y: &Tensor<f32>, (head, unit): (usize, f64), positions: &[u32],
) -> Option<Seen> {
    let norm = |x: &[f32]| x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    let heads = x.data.chunks(head.max(1)).zip(y.data.chunks(head.max(1)));
    for (x, y) in heads {
        let (x, y) = (norm(x), norm(y));
        if (x - y).abs() > (BROKEN + unit) * x {
            let what = format!("the norm of a head is {x:.4} before RoPE and {y:.4} after it, and a rotation keeps it");
            return Some((what, None));
        }
    }
    let width = x.data.len() / positions.len().max(1);
    let rows = x.data.chunks(width.max(1)).zip(y.data.chunks(width.max(1)));
    let moved = rows.zip(positions).filter(|(_, p)| **p > 0);
    let mut still = moved.filter(|((x, y), _)| x == y).map(|(_, p)| *p);
    let first = still.next()?;
    Some((format!("RoPE turns nothing at position {first}"), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(data: &[f32]) -> Tensor<f32> {
        Tensor { shape: vec![1, data.len()], data: data.to_vec() }
    }

    #[test]
    fn what_is_not_finite_or_constant_is_seen() {
        let mut x: Vec<f32> = (0..32).map(|i| i as f32).collect();
        assert_eq!(non_finite(&row(&x)), None);
        assert_eq!(constant(&row(&x)), None);
        x[7] = f32::NAN;
        assert!(non_finite(&row(&x)).unwrap().0.contains("1 of 32"));
        let zero = constant(&row(&[0.0; 32])).unwrap().0;
        assert!(zero.contains("zero throughout"), "{zero}");
        assert!(constant(&row(&[2.5; 32])).unwrap().0.contains("one value"));
        assert_eq!(constant(&row(&[2.5; 4])), None);
    }

    #[test]
    fn a_rotation_turns_and_keeps_norms() {
        let x = row(&[1.0, 2.0, 3.0, 4.0]);
        let turned = row(&[-3.0, -4.0, 1.0, 2.0]);
        assert_eq!(rotation(&x, &turned, (4, 0.0), &[5]), None);
        assert_eq!(rotation(&x, &x, (4, 0.0), &[0]), None);
        let still = rotation(&x, &x, (4, 0.0), &[5]).unwrap().0;
        assert_eq!(still, "RoPE turns nothing at position 5");
        let longer = row(&[-3.0, -4.0, 1.0, 3.0]);
        assert!(rotation(&x, &longer, (4, 0.0), &[5]).unwrap().0.contains("norm"));
    }
}
