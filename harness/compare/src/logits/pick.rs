//! The id that a row of logits chooses.

use crate::number::Real;
use schemars::JsonSchema;
use serde::Serialize;

/// A choice: the largest logit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Pick {
    /// The id, the lowest among equals.
    pub id: usize,
    /// By how much it leads the second.
    #[serde(with = "Real")]
    pub margin: f32,
}

/// The largest of the logits of which `counts` holds.
pub(super) fn pick(row: &[f32], counts: impl Fn(usize) -> bool) -> Option<Pick> {
    let (mut best, mut second): (Option<usize>, f32) = (None, f32::NEG_INFINITY);
    for (id, &v) in row.iter().enumerate() {
        if !counts(id) || v.is_nan() {
            continue;
        }
        match best {
            Some(b) if v > row[b] => {
                second = row[b];
                best = Some(id);
            }
            Some(_) => second = second.max(v),
            None => best = Some(id),
        }
    }
    best.map(|id| Pick { id, margin: row[id] - second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_equals_is_chosen_and_nan_never() {
        let row = [1.0, f32::NAN, 3.0, 3.0, 2.5];
        let all = pick(&row, |_| true).unwrap();
        assert_eq!((all.id, all.margin), (2, 0.0));
        let less = pick(&row, |id| id != 2 && id != 3).unwrap();
        assert_eq!((less.id, less.margin), (4, 1.5));
        assert_eq!(pick(&row, |_| false), None);
    }
}
