//! How well a hypothesis accounts for what the subject gave.

use crate::verdict::{Evidence, Expected, Row, right, rows_given};

/// What a hypothesis leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit {
    /// Relative L2 distance left in the worst row that was bad.
    pub(super) after: f64,
    /// As it was without the hypothesis, in the rows that are to be explained.
    pub(super) before: f64,
    /// Largest share of what is allowed, over these rows.
    pub(super) used: f64,
    /// Whether everything is as the hypothesis says, or only what is wrong.
    pub(super) whole: bool,
    /// The position from which on everything is, where earlier ones are right.
    pub(super) since: Option<usize>,
}

/// Holds `assumed`, the stage under the hypothesis, against what the subject gave. It must account for every bad row; a
/// row or element that is right as it is may stay so (then it does not hold of the whole stage, or only from a position
/// on). `None` if anything remains.
pub(super) fn fit(e: &Evidence<'_>, assumed: &Expected) -> Option<Fit> {
    let before = if e.misshapen.is_empty() { 0.0 } else { f64::INFINITY };
    let mut fit = Fit { before, after: 0.0, used: 0.0, whole: true, since: None };
    let first = e.bad_rows().map(|r| r.place.position).min();
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
    for row in &e.rows {
        let (got, want, bound) = e.row(row);
        let other = assumed[row.step]
            .as_ref()
            .filter(|(t, _)| t.data.len() >= row.range.end)
            .map(|(t, b)| (&t.data[row.range.clone()], &b[row.range.clone()]));
        if row.bad {
            let before = Row::of(got, want, bound, e.rule).residual;
            fit.before = fit.before.max(if before.is_nan() { f64::INFINITY } else { before });
        }
        let whole = other.and_then(|(w, b)| judge(got, w, b, e.rule));
        match (row.bad, whole, other) {
            (true, Some(row), _) => fit.take(row),
            (true, None, Some((w, b))) => {
                fit.whole = false;
                fit.take(judge_parts(got, (want, bound), (w, b), e.rule)?);
            }
            (true, None, None) => return None,
            (false, Some(_), _) => {}
            (false, None, _) if Some(row.place.position) < first => fit.since = first,
            (false, None, _) => fit.whole = false,
        }
    }
    Some(fit)
}

impl Fit {
    /// Whether it accounts for most of the residual. One whose operands are so
    /// uncertain that anything lies within its bounds does not.
    pub(super) fn explains(&self) -> bool {
        self.after <= 0.5 * self.before
    }

    fn take(&mut self, row: Row) {
        self.after = self.after.max(row.residual);
        self.used = self.used.max(row.used);
    }
}

/// The row, if it is within what is allowed. Elements of infinite bound are
/// open; one that is not finite must not be finite in the hypothesis either.
fn judge(got: &[f32], want: &[f64], bound: &[f32], rule: Option<f64>) -> Option<Row> {
    let plain = |((g, w), b): ((&f32, &f64), &f32)| g.is_finite() && w.is_finite() && b.is_finite();
    let row = if got.iter().zip(want).zip(bound).all(plain) {
        Row::of(got, want, bound, rule)
    } else {
        let told: Vec<_> = got.iter().zip(want).zip(bound).filter(|(_, b)| **b != f32::INFINITY).collect();
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
