//! What would be chosen next: on both sides, and without some ids.

use super::rows::{At, Seen};
use super::{Ids, Padding, Sides, asked, row_of};
use crate::capture::Filter;
use crate::number::Real;
use qdiff_engine::model::Node;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

/// A choice: the largest logit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Pick {
    /// The id, the lowest among equals.
    pub id: usize,
    /// By how much it leads the second.
    #[serde(with = "Real")]
    pub margin: f32,
}

/// The choices of one row.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct RowChoice {
    /// 0 for the prefill.
    pub step: usize,
    /// Position of the token that the logits follow.
    pub position: usize,
    /// The subject's.
    pub subject: Pick,
    /// The subject's without the ids that are wrong, where not most are.
    pub without: Pick,
    /// The id that the f64 values on the subject's hidden state choose.
    pub rightly: usize,
    /// The reference's.
    pub reference: Option<Pick>,
}

/// The choices of all rows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Choices {
    /// Ids left out of [`RowChoice::without`].
    pub left_out: usize,
    /// Rows in which both sides choose alike; in all, where there is no reference.
    pub alike: usize,
    /// Rows in which the subject chooses what its f64 values do.
    pub as_computed: usize,
    /// Rows in which both choose alike once the wrong ids are left out.
    pub alike_without: usize,
    /// Every row.
    pub rows: Vec<RowChoice>,
    #[serde(skip)]
    pub(super) last: Option<At>,
}

impl Choices {
    /// The first row in which the two sides choose differently; the last of all where they never do.
    pub fn telling(&self) -> Option<&RowChoice> {
        let differs = |r: &&RowChoice| r.reference.is_some_and(|o| o.id != r.subject.id);
        self.rows.iter().find(differs).or(self.rows.last())
    }
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

/// The choices of every row, with and without the ids `without`, and what padding does to them.
pub(super) fn choices(
    node: &Node, (subject, reference): Sides<'_>, without: &BTreeSet<usize>, ids: &Ids, seen: &Seen, filter: &Filter,
) -> (Choices, Padding) {
    let (mut rows, mut last) = (Vec::new(), None);
    let mut padding = Padding { reference_wins: reference.map(|_| 0), ..Padding::default() };
    let all = |_: usize| true;
    for (index, row) in asked(node, subject.side(), filter) {
        let step = &subject.capture.steps[index];
        let Some(got) = row_of(node, step, row) else { continue };
        let Some((own, kept)) = pick(&got, all).zip(pick(&got, |id| !without.contains(&id))) else { continue };
        let other = reference.and_then(|r| row_of(node, r.capture.steps.get(index)?, row)).and_then(|r| pick(&r, all));
        padding.add(ids, (index, row), &got, own, other);
        let rightly = seen.rightly.iter().find(|(at, _)| *at == (index, row));
        rows.push(RowChoice {
            step: step.index,
            position: step.first + step.offset(row),
            subject: own,
            without: kept,
            rightly: rightly.map_or(own.id, |(_, id)| *id),
            reference: other,
        });
        last = Some(At { index, row, id: own.id });
    }
    let count = |holds: &dyn Fn(&RowChoice) -> bool| rows.iter().filter(|r| holds(r)).count();
    let same = |a: usize, b: Option<Pick>| b.is_none_or(|b| a == b.id);
    let choices = Choices {
        left_out: without.len(),
        alike: count(&|r| same(r.subject.id, r.reference)),
        as_computed: count(&|r| r.subject.id == r.rightly),
        alike_without: count(&|r| same(r.without.id, r.reference)),
        rows,
        last,
    };
    (choices, padding)
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
