//! What holds of attention weights.

use super::{COARSE, Seen};
use qdiff_engine::ops::{Tensor, attn_scores};

/// How far a sum of weights may be off before it is called broken.
const BROKEN: f64 = 1e-2;

/// Visible keys from which on a row says something about where it looks.
const KEYS: usize = 4;

/// A weight beyond which a query looks at one key alone.
const ALONE: f32 = 0.999;

/// How far weights that are all alike may differ, relative to each other.
const ALIKE: f32 = 1e-5;

/// Whether the weights `[H, T, N]` of queries at `positions` are no distributions over the causal keys, or look nowhere
/// in particular, or at one key alone in every head. The keys of these tokens are the rows `own` of the cache, where it lacks
/// some; `unit` is the unit roundoff of what the weights were rounded to, 0 of f32.
pub(super) fn check(t: &Tensor<f32>, positions: &[u32], own: Option<&[u32]>, unit: f64) -> Option<Seen> {
    let keys = t.shape.last().copied().unwrap_or(1).max(1);
    let own = own.unwrap_or(positions);
    let rows: Vec<(&[f32], usize)> = t
        .data
        .chunks(keys)
        .enumerate()
        .map(|(r, row)| {
            let own = own.get(r % own.len().max(1)).copied();
            (row, attn_scores::causal(own.unwrap_or(0), keys))
        })
        .collect();
    for (r, (row, seen)) in rows.iter().enumerate() {
        let sum: f64 = row.iter().map(|&v| f64::from(v)).sum();
        // A coarse format may round the smallest weights to zero.
        let lost = if unit > 0.0 { unit * (1.0 + *seen as f64 * unit) } else { 0.0 };
        if (sum - 1.0).abs() > BROKEN + lost {
            return Some((format!("attention weights of a query sum to {sum:.4}, not to 1"), None));
        }
        let ahead: f32 = row[*seen..].iter().sum();
        if f64::from(ahead) > BROKEN {
            let (at, after) =
                (positions.get(r % positions.len().max(1)), row[*seen..].iter().filter(|w| **w > 0.0).count());
            let at = at.map_or_else(String::new, |position| format!(" of p{position}"));
            let keys =
                if after == 1 { "the key after its token".to_owned() } else { format!("{after} keys after its token") };
            let what = format!("the query{at} sees {keys}, and gives {ahead:.4} of its attention there");
            return Some((what, None));
        }
    }
    let long: Vec<&[f32]> = rows.iter().filter(|(_, seen)| *seen >= KEYS).map(|(row, seen)| &row[..*seen]).collect();
    if long.is_empty() {
        return None;
    }
    let alike = |row: &&[f32]| row.iter().all(|v| (v - row[0]).abs() <= ALIKE * row[0].abs());
    // What looks so may be rounding.
    if unit > COARSE {
        return None;
    }
    if long.iter().all(alike) {
        return Some(("all keys get the same attention in every head: the keys are not read".to_owned(), Some(0)));
    }
    let top = |row: &[f32]| row.iter().position(|v| *v > ALONE);
    let tops: Vec<Option<usize>> = long.iter().map(|row| top(row)).collect();
    let first = tops[0]?;
    if tops.iter().all(|t| *t == Some(first)) && long.len() > 1 {
        return Some((format!("every head of every query attends to position {first} alone"), Some(0)));
    }
    let one_hot = "attention is one-hot in every head of every query: the scores are far too large";
    tops.iter().all(Option::is_some).then(|| (one_hot.to_owned(), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One head, one query at position 5 of six keys.
    fn seen(weights: [f32; 6]) -> Option<String> {
        let t = Tensor { shape: vec![2, 1, 6], data: weights.repeat(2) };
        check(&t, &[5], None, 0.0).map(|(what, _)| what)
    }

    #[test]
    fn what_no_attention_does_is_seen() {
        assert_eq!(seen([0.1, 0.2, 0.3, 0.1, 0.2, 0.1]), None);
        assert!(seen([0.1; 6]).unwrap().contains("sum to 0.6"));
        assert!(seen([1.0 / 6.0; 6]).unwrap().contains("not read"));
        let alone = seen([0.0, 0.0, 1.0, 0.0, 0.0, 0.0]).unwrap();
        assert_eq!(alone, "every head of every query attends to position 2 alone");
        let one_hot =
            Tensor { shape: vec![2, 1, 6], data: vec![0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0] };
        assert!(check(&one_hot, &[5], None, 0.0).unwrap().0.contains("one-hot"));
        let t = Tensor { shape: vec![1, 1, 6], data: vec![0.5, 0.0, 0.0, 0.0, 0.25, 0.25] };
        let said = |position, own: Option<&[u32]>| check(&t, &[position], own, 0.0).map(|(what, _)| what);
        assert_eq!(
            said(3, None).unwrap(),
            "the query of p3 sees 2 keys after its token, and gives 0.5000 of its attention there"
        );
        assert_eq!(
            said(4, None).unwrap(),
            "the query of p4 sees the key after its token, and gives 0.2500 of its attention there"
        );
        // Its own key stands one row before its position, in a cache that lost one.
        assert_eq!(said(5, None), None);
        assert!(said(5, Some(&[4])).unwrap().contains("the query of p5 sees the key after its token"));
    }
}
