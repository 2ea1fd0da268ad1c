//! What is read off the values of several sequences as another run has it too, whose passes feed other numbers of tokens.

use super::pass::{Fit, rules};
use super::siblings::Runs;
use crate::capture::{Capture, Whose};
use crate::verdict::{Evidence, RowAt};

/// Elements of a row that are not the same by chance.
pub(super) const SHORTEST: usize = 8;

/// What a rule for the rows of whole passes is called.
pub(super) const OF_PASSES: &str = "a rule of passes";

/// A token: what it was fed to, and its position.
pub(super) type Token = (Whose, usize);

/// The place of a token in a run of several sequences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    whose: Whose,
    /// Its pass, among those of its run.
    pass: usize,
    /// How many tokens the pass feeds of its run before it.
    before: usize,
    /// How many it feeds after it.
    after: usize,
}

impl Spot {
    /// The spot of the token at a position of a run.
    fn of(capture: &Capture, position: usize) -> Option<Self> {
        let own = capture.steps.last()?.run;
        let index = capture.steps.iter().position(|step| (step.first..step.keys()).contains(&position))?;
        let step = &capture.steps[index];
        let prefix = capture.steps.iter().filter(|other| step.run == own && other.run != own).count();
        let [before, after] = [position - step.first, step.keys() - 1 - position];
        Some(Self { whose: step.whose, pass: index - prefix, before, after })
    }

    /// The same for the run of a sequence.
    fn of_run(runs: Runs<'_>, whose: Whose, position: usize) -> Option<Self> {
        let captures = runs.0.iter().map(|(searcher, _)| searcher.subject.capture);
        let of = |capture: &&Capture| capture.steps.last().is_some_and(|step| step.whose == whose);
        Self::of(captures.into_iter().find(of)?, position)
    }

    /// Whether it is the same place in passes of other lengths: as far from the beginning of the same one, or from its end.
    fn is_like(self, other: Self) -> bool {
        (self.whose, self.pass) == (other.whose, other.pass)
            && (self.before == other.before || self.after == other.after)
    }
}

/// A place, and the one whose value is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    at: Spot,
    from: Spot,
    /// By how many positions the first lies behind the second.
    by: i64,
}

impl Link {
    /// The link from a token of this run, by its position, to another token, by its run and position.
    pub(super) fn of((runs, run): Runs<'_>, at: usize, (whose, from): (Whose, usize)) -> Option<Self> {
        let by = at as i64 - from as i64;
        let at = Spot::of(runs[run].0.subject.capture, at)?;
        Some(Self { at, from: Spot::of_run((runs, run), whose, from)?, by })
    }

    /// Whether the value is from as far before.
    fn is_as_far(self, other: Self) -> bool {
        self.from.whose == other.from.whose && self.by == other.by
    }

    /// Whether it is the same in passes of other lengths: the value is from the same place, or from as far before.
    fn is_like(self, other: Self) -> bool {
        self.at.is_like(other.at) && (self.is_as_far(other) || self.from.is_like(other.from))
    }
}

/// Whether places one after another, by their first and last, are the same in passes of other lengths. Where all are from as far
/// before, one end of them may be that of a page or a draft.
fn are_alike([first, last]: &[Link; 2], [a, b]: &[Link; 2]) -> bool {
    let [begins, ends] = [first.is_like(*a), last.is_like(*b)];
    begins && ends || (begins || ends) && first.is_as_far(*a) && last.is_as_far(*b)
}

/// What values show, but for the numbers of one run.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// What it is.
    pub what: String,
    /// The places that it names, in order: the first and the last of those that follow each other.
    pub links: Vec<[Link; 2]>,
    /// The rules that fit, in words, if it is a rule: one of them must be one of the other run.
    pub fits: Vec<Fit>,
}

impl Shown {
    /// The rules that fit here and there, in words.
    pub(super) fn both(&self, other: &Self) -> Option<String> {
        let both: Vec<&Fit> = self.fits.iter().filter(|rule| other.fits.contains(rule)).collect();
        (!both.is_empty()).then(|| rules(&both))
    }

    /// Whether it is a rule, which names no places.
    pub(super) fn is_rule(&self) -> bool {
        !self.fits.is_empty() && self.links.is_empty()
    }

    /// Whether it is one of the rows of whole passes, and so of all sequences.
    pub(super) fn is_of_passes(&self) -> bool {
        self.what == OF_PASSES
    }

    /// Whether it is the same in another run.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.what == other.what
            && (self.fits.is_empty() || self.fits.iter().any(|rule| other.fits.contains(rule)))
            && self.links.len() == other.links.len()
            && self.links.iter().zip(&other.links).all(|(a, b)| are_alike(a, b))
    }
}

/// What is wrong, as the values of several sequences show it.
pub(super) struct Told {
    /// In words.
    pub words: String,
    /// How to mend it.
    pub remedy: &'static str,
    /// Without the numbers of this run.
    pub shown: Shown,
}

/// The slot of a row, and where the row begins in it.
pub(super) fn place(e: &Evidence<'_>, row: &RowAt) -> Option<(usize, usize)> {
    let shape = &e.given[row.step].as_ref()?.shape;
    let width: usize = shape[1..].iter().product();
    let at = (row.range.start / width, row.range.start % width);
    (at.1 + row.range.len() <= width && row.range.len() >= SHORTEST).then_some(at)
}

/// Elements that are wrong in the rows that are.
pub(super) fn wrong_elements(e: &Evidence<'_>) -> usize {
    let wrong = |row| {
        let (got, want, bound) = e.row(row);
        (0..got.len()).filter(|&i| !crate::verdict::right(got[i], want[i], bound[i])).count()
    };
    e.bad_rows().map(wrong).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_from_either_end_of_its_pass() {
        let spot = |pass, before, after| Spot { whose: Whose::default(), pass, before, after };
        assert!(spot(1, 2, 4).is_like(spot(1, 2, 9)) && spot(1, 2, 4).is_like(spot(1, 7, 4)));
        assert!(!spot(1, 2, 4).is_like(spot(1, 3, 5)) && !spot(1, 2, 4).is_like(spot(2, 2, 4)));
        let other = Spot { whose: Whose { sequence: 1, rollbacks: 0 }, ..spot(1, 2, 4) };
        assert!(!spot(1, 2, 4).is_like(other));
        // A value is from the same place, or from as far before.
        let link = |from, by| Link { at: spot(1, 0, 4), from, by };
        assert!(
            link(spot(0, 9, 0), 2).is_like(link(spot(1, 7, 5), 2))
                && !link(spot(0, 9, 0), 2).is_like(link(spot(1, 7, 5), 3))
        );
    }
}
