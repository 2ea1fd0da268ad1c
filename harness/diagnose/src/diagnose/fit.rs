//! How well a hypothesis accounts for what the subject gave.

use crate::verdict::{Evidence, Expected, Row, RowAt, right, rows_given};
use std::collections::BTreeSet;

/// What a hypothesis leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit {
    /// Relative L2 distance left in the worst row that was bad.
    pub(super) after: f64,
    /// As it was without the hypothesis, in the rows that are to be explained and hold numbers.
    pub(super) before: f64,
    /// Largest share of what is allowed, over these rows.
    pub(super) used: f64,
    /// Whether everything is as the hypothesis says, or only what is wrong.
    pub(super) whole: bool,
    /// The position from which on everything is, where earlier ones are right.
    pub(super) since: Option<usize>,
    /// Whether NaN or infinity is all that is wrong of a bad row: it shows where, and of what values nothing.
    blind: bool,
}

/// Of which rows a hypothesis holds, if of any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Some rows.
    Rows,
    /// All rows of a step: a weight is read alike for all of them.
    Steps,
    /// All rows of the run: a tensor is loaded once.
    Run,
}

/// Holds `assumed`, the stage under the hypothesis, against what the subject gave. It must account for every bad row; a
/// row or element that is right as it is may stay so, as far as `scope` lets it (then it does not hold of the whole
/// stage, or only from a position on). `None` if anything remains.
pub(super) fn fit(e: &Evidence<'_>, assumed: &Expected, scope: Scope) -> Option<Fit> {
    let before = if e.misshapen.is_empty() { 0.0 } else { f64::INFINITY };
    let mut fit = Fit { before, after: 0.0, used: 0.0, whole: true, since: None, blind: false };
    for &step in &e.misshapen {
        let at = &e.side.capture.steps[step];
        let got = e.given[step].as_ref()?;
        let (want, bound) = assumed[step].as_ref()?;
        if got.shape != want.shape {
            return None;
        }
        for (_, range) in rows_given(e.node, at, got) {
            let row = judge(&got.data[range.clone()], &want.data[range.clone()], &bound[range], e.rule)?;
            fit.take(row);
        }
    }
    let of = |row: &RowAt| {
        let (want, bound) = assumed[row.step].as_ref().filter(|(t, _)| t.data.len() >= row.range.end)?;
        Some((&want.data[row.range.clone()], &bound[row.range.clone()]))
    };
    let mut columns = BTreeSet::new();
    for row in e.bad_rows() {
        let (got, want, bound) = e.row(row);
        let other = of(row)?;
        let was = numbers(got, want, bound, e.rule);
        // What little is left of a row that is NaN elsewhere counts where it is wrong too.
        if was.used > 1.0 {
            fit.before = fit.before.max(was.residual);
        } else {
            fit.blind = true;
        }
        match judge(got, other.0, other.1, e.rule) {
            Some(row) => fit.take(row),
            None => {
                fit.whole = false;
                fit.take(judge_parts(got, (want, bound), other, e.rule)?);
            }
        }
        if scope != Scope::Rows {
            columns.extend((0..got.len()).filter(|&i| !right(got[i], want[i], bound[i])));
        }
    }
    // Right rows of which it does not hold.
    let holds = |row: &RowAt, columns: Option<&BTreeSet<usize>>| {
        let (got, ..) = e.row(row);
        of(row).is_some_and(|(want, bound)| match columns {
            None => judge(got, want, bound, e.rule).is_some(),
            Some(some) => some.iter().filter(|i| **i < got.len()).all(|&i| right(got[i], want[i], bound[i])),
        })
    };
    let others = || e.rows.iter().filter(|r| !r.bad);
    let touched = |step: usize| scope == Scope::Run || e.bad_rows().any(|r| r.step == step);
    if scope != Scope::Rows && others().any(|r| touched(r.step) && !holds(r, Some(&columns))) {
        return None;
    }
    let first = e.bad_rows().map(|r| r.place.position).min();
    let (mut earlier, mut later) = (false, false);
    for row in others().filter(|r| !holds(r, None)) {
        if Some(row.place.position) < first { earlier = true } else { later = true }
    }
    fit.whole &= !later;
    fit.since = first.filter(|_| earlier && !later);
    fit.whole &= !earlier || fit.since.is_some();
    Some(fit)
}

impl Fit {
    /// Whether it accounts for most of the residual by value. One whose operands are so uncertain that anything lies
    /// within its bounds does not, and NaN is no value that could be accounted for.
    pub(super) fn explains(&self) -> bool {
        self.before > 0.0 && self.after <= 0.5 * self.before
    }

    /// Whether it leaves nothing outside of the part that it names.
    pub(super) fn encloses(&self) -> bool {
        self.blind || self.explains()
    }

    fn take(&mut self, row: Row) {
        self.after = self.after.max(row.residual);
        self.used = self.used.max(row.used);
    }
}

/// The row as far as it holds numbers, and should.
fn numbers(got: &[f32], want: &[f64], bound: &[f32], rule: Option<f64>) -> Row {
    let all = got.iter().zip(want).zip(bound).filter(|((g, w), _)| g.is_finite() && w.is_finite());
    let ((got, want), bound): ((Vec<f32>, Vec<f64>), Vec<f32>) = all.unzip();
    Row::of(&got, &want, &bound, rule)
}

/// The row, if it is within what is allowed. Elements of infinite bound are
/// open; one that is not finite must not be finite in the hypothesis either.
fn judge(got: &[f32], want: &[f64], bound: &[f32], rule: Option<f64>) -> Option<Row> {
    let plain = |((g, w), b): ((&f32, &f64), &f32)| g.is_finite() && w.is_finite() && b.is_finite();
    let row = if got.iter().zip(want).zip(bound).all(plain) {
        Row::of(got, want, bound, rule)
    } else {
        // A hypothesis that divides by zero says of such elements that they are infinite.
        let told = |((_, w), b): &((&f32, &f64), &f32)| **b != f32::INFINITY || w.is_infinite();
        let told: Vec<_> = got.iter().zip(want).zip(bound).filter(told).collect();
        if told.iter().any(|((g, w), _)| g.is_finite() != w.is_finite()) {
            return None;
        }
        let finite = told.into_iter().filter(|((g, _), _)| g.is_finite());
        let ((got, want), bound): ((Vec<f32>, Vec<f64>), Vec<f32>) = finite.unzip();
        Row::of(&got, &want, &bound, rule)
    };
    (row.used <= 1.0).then_some(row)
}

/// As [`judge`], with what is right already left as it is.
fn judge_parts(got: &[f32], own: (&[f64], &[f32]), other: (&[f64], &[f32]), rule: Option<f64>) -> Option<Row> {
    let (mut want, mut bound) = (other.0.to_vec(), other.1.to_vec());
    for i in 0..got.len() {
        if right(got[i], own.0[i], own.1[i]) {
            (want[i], bound[i]) = (own.0[i], own.1[i]);
        }
    }
    judge(got, &want, &bound, rule)
}
