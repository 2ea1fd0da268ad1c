//! What would be chosen next: on both sides, and without some ids.

use super::ids::{Ids, Padding};
use super::pick::{Pick, pick};
use super::rows::{At, Seen, asked, row_of};
use crate::capture::Filter;
use crate::pair::Recording;
use qdiff_engine::model::Node;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;

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

/// The subject, and the reference where there is one.
pub(super) type Sides<'a> = (&'a Recording, Option<&'a Recording>);

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
