//! A law held against every element of a stage.

use super::scene::Scene;
use super::when::{self, Holds, Seen, SomeRows, When};
use super::{At, Form, Law};
use crate::verdict::{right, tolerance::ELEMENT_FACTOR};
use qdiff_engine::ops::{Anatomy, UNIT};

/// The work of holding a law against an element, without products that its sum is made of.
pub(super) const EACH: usize = 16;

/// Wrong elements that a law says nothing of, as many as a condition is held against.
const UNSAID: usize = 4096;

/// How far a law's value may be off.
pub(super) fn allowed(alternative: f64, reach: f32) -> f64 {
    ELEMENT_FACTOR * f64::from(reach) + 4.0 * UNIT * alternative.abs() + f64::MIN_POSITIVE
}

/// Whether a law gives a few wrong elements of the first row, which most do not.
fn survives(scene: &Scene<'_>, law: &Law<'_>) -> bool {
    let Some(&first) = scene.rows.first() else { return true };
    let row = &scene.e.rows[first];
    let Some(other) = scene.glance(law) else { return true };
    let (got, ..) = scene.e.row(row);
    scene.wrong_of(row).into_iter().all(|i| {
        let (alternative, reach) = (other.value[i], other.bound[i]);
        let allowed = allowed(alternative, reach) + scene.e.grain.reach(got[i]);
        alternative.is_nan() || (f64::from(got[i]) - alternative).abs() <= allowed
    })
}

/// Elements of a scene as a law has them.
pub(super) struct Held {
    /// Wrong ones, all of which it gives.
    pub(super) wrong: Vec<At>,
    /// Wrong ones of which it does not say what they would be: a condition must hold of them as well.
    pub(super) unsaid: Vec<At>,
    /// Right ones that it would change, whether it says to what or not.
    pub(super) spared: Vec<At>,
    /// How far the wrong ones are off, and how far the law moves them: a law that changes nothing is none.
    pub(super) off: (f64, f64),
    /// The elements that nothing was fitted on: their number, the largest error / bound ratio, and the bits that the
    /// law explains beyond the fact that they are wrong.
    pub(super) held_out: usize,
    pub(super) used: f64,
    pub(super) bits: f64,
}

/// What a NaN says for its being all that was left of memory that nobody wrote.
const NAN_BITS: f64 = 4.0;

/// The share of the error that a law must be of at least, which is there for any error.
const LEAST: f64 = 0.01;

impl Held {
    /// Whether what it gives is what should be, as far as bounds let it.
    pub(super) fn changes_nothing(&self) -> bool {
        self.off.1 < LEAST * self.off.0
    }

    /// What tells the wrong elements from the right ones that the law would change.
    pub(super) fn conditions(&self, scene: &Scene<'_>) -> Vec<When> {
        when::separating(&[Seen { scene, wrong: &self.all_wrong(), spared: &self.spared }])
    }

    /// Whether its simplest condition tells rows apart by more than chance does.
    pub(super) fn tells(&self, scene: &Scene<'_>, holds: &Holds) -> bool {
        let run = Seen { scene, wrong: &self.all_wrong(), spared: &self.spared };
        holds.told().first().is_some_and(|when| when.tells(&[run]))
    }

    /// Wrong elements that a condition must hold of.
    pub(super) fn all_wrong(&self) -> Vec<At> {
        [self.wrong.as_slice(), &self.unsaid].concat()
    }

    /// The words without a condition.
    pub(super) fn unexplained(&self, scene: &Scene<'_>) -> Holds {
        let (wrong, of) = (self.all_wrong(), self.wrong.len() + self.spared.len());
        let rows = SomeRows::of(scene, &wrong, &self.spared);
        Holds::Some { elements: self.wrong.len(), of, rows, elsewhere: false }
    }
}

/// Holds a law against every row of the scene; `None` if a wrong element is not what it says.
pub(super) fn held(scene: &Scene<'_>, law: &Law<'_>) -> Option<Held> {
    let e = scene.e;
    if matches!(scene.node().op.anatomy(), Anatomy::Contraction(_)) && !survives(scene, law) {
        return None;
    }
    let (mut wrong, mut unsaid, mut spared) = (Vec::new(), Vec::new(), Vec::new());
    let wrong_where_unsaid = law.form.as_ref().is_some_and(Form::is_wrong_where_unsaid);
    let never_written = law.form.as_ref().is_some_and(Form::is_never_written);
    let (mut used, mut held_out, mut bits, mut off) = (0f64, 0, 0f64, (0f64, 0f64));
    // A sample first, which most laws do not survive; then all rows, so that none that is right is overlooked.
    for &r in scene.rows.iter().chain(&scene.others) {
        let row = &e.rows[r];
        scene.count(EACH * row.range.len());
        let Some(other) = (law.row)(row) else {
            if scene.wrong_in(r) {
                return None;
            }
            continue;
        };
        let (got, want, bound) = e.row(row);
        for i in (0..got.len()).filter(|&i| scene.looks_at(row, i)) {
            let (alternative, reach) = (other.value[i], other.bound[i]);
            if never_written {
                match right(got[i], want[i], bound[i]) {
                    true if bound[i].is_finite() => spared.push((r, i)),
                    true => {}
                    false if got[i].is_nan() => {
                        wrong.push((r, i));
                        (off, held_out, bits) = ((1.0, 1.0), held_out + 1, bits + NAN_BITS);
                    }
                    false => return None,
                }
                continue;
            }
            if alternative.is_nan() {
                match right(got[i], want[i], bound[i]) {
                    true if wrong_where_unsaid && bound[i].is_finite() => spared.push((r, i)),
                    false if unsaid.len() < UNSAID => unsaid.push((r, i)),
                    _ => {}
                }
                continue;
            }
            if right(got[i], want[i], bound[i]) {
                let apart = 2.0 * ELEMENT_FACTOR * f64::from(bound[i].max(reach)) + 8.0 * UNIT * want[i].abs();
                let apart = apart + 2.0 * e.grain.reach(got[i]);
                if (alternative - want[i]).abs() > apart {
                    spared.push((r, i));
                }
                continue;
            }
            let allowed = allowed(alternative, reach) + e.grain.reach(got[i]);
            let share = (f64::from(got[i]) - alternative).abs() / allowed;
            // NaN is no evidence of any value, and no law gives it.
            if share.is_nan() || share > 1.0 {
                return None;
            }
            wrong.push((r, i));
            off.0 += (f64::from(got[i]) - want[i]).abs();
            off.1 += (alternative - want[i]).abs();
            let fitted = law.of_even.map_or_else(|| scene.fitted(r, i), |run| i % run % 2 == 0);
            if !fitted {
                held_out += 1;
                used = used.max(share);
                bits += ((f64::from(got[i]) - want[i]).abs() / allowed).max(1.0).log2();
            }
        }
    }
    Some(Held { wrong, unsaid, spared, off, held_out, used, bits })
}
