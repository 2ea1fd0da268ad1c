//! The stage of all sequences of a run, pass by pass, and whether a rule for the rows of passes gives what is wrong of it.

use super::super::pass::{Fit, Group, Map, Numbers, Pass, When, earlier, rules, told as told_of};
use super::super::siblings::Runs;
use super::super::spots::{OF_PASSES, Shown, Told};
use super::super::work::Meter;
use crate::capture::{Capture, Whose};
use crate::verdict::{Evidence, RowAt, right, work_of};
use qdiff_engine::model::Node;
use qdiff_engine::ops::{self, Context, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// How to mend rows that are exchanged.
pub(super) const OF_ROWS: &str = "look at which row of a pass is taken for a token: the order of its sequences, the rows that are gathered \
                       from it, and where results are scattered to";

/// Wrong elements that a rule must give, and the passes that must have some.
const LEAST: usize = 16;
const PASSES: usize = 2;

/// A pass, with the run and the step that have each of its groups.
pub(super) struct Fed {
    pub(super) pass: Pass,
    pub(super) of: Vec<(usize, usize)>,
}

/// The passes of a run, if all of their rows are captured.
pub(super) fn passes(runs: Runs<'_>) -> Option<Vec<Fed>> {
    let mut all: BTreeMap<usize, Vec<(usize, usize, usize, Group)>> = BTreeMap::new();
    let mut rows: BTreeMap<usize, usize> = BTreeMap::new();
    for (run, (searcher, _)) in runs.0.iter().enumerate() {
        let capture = searcher.subject.capture;
        // After a context shift a position is that of two tokens.
        if capture.steps.iter().any(|step| step.shifts > 0) {
            return None;
        }
        for (index, step) in capture.steps.iter().enumerate().filter(|(index, _)| capture.is_own(*index)) {
            let at = step.in_pass?;
            let (sequence, taken_back) = (step.whose.sequence, taken_back(runs, step.whose));
            let others = capture.steps.iter().filter(|step| step.whose.sequence != sequence);
            let prefix = others.map(|step| step.tokens.len()).sum();
            let group = Group { sequence, first: step.first, rows: step.tokens.len(), taken_back, room: 0, prefix };
            all.entry(at.number).or_default().push((at.before, run, index, group));
            rows.insert(at.number, at.rows);
        }
    }
    let room = all.first_key_value()?.1.iter().map(|(.., group)| group.first + group.rows).max()?;
    let fed = |(number, mut groups): (usize, Vec<(usize, usize, usize, Group)>)| {
        groups.iter_mut().for_each(|(.., group)| group.room = room);
        groups.sort_by_key(|(before, ..)| *before);
        let slots = groups.iter().map(|(_, run, step, _)| runs.0[*run].0.subject.capture.steps[*step].slots.clone());
        let slots = slots.collect::<Option<Vec<_>>>().map(|all| all.concat());
        let numbers = Numbers { slots, ..Numbers::default() };
        let pass = Pass(groups.iter().map(|(.., group)| *group).collect(), numbers);
        let whole = groups.iter().enumerate().all(|(i, (before, ..))| pass.first_of(i) == *before);
        // None of a dump that was cut short.
        (whole && rows.get(&number) == Some(&pass.rows()))
            .then(|| Fed { pass, of: groups.iter().map(|(_, run, step, _)| (*run, *step)).collect() })
    };
    let mut all: Vec<Fed> = all.into_iter().map(fed).collect::<Option<_>>()?;
    earlier(all.iter_mut().map(|fed| &mut fed.pass));
    Some(all)
}

/// How many tokens a sequence has taken back before this part of it.
pub(super) fn taken_back((runs, _): Runs<'_>, whose: Whose) -> usize {
    let captures = runs.iter().map(|(searcher, _)| searcher.subject.capture);
    let of = |rollbacks: u32| {
        let is_it = |capture: &&Capture| capture.steps.last().is_some_and(|s| s.whose == Whose { rollbacks, ..whose });
        captures.clone().find(is_it)
    };
    let all = (1..=whose.rollbacks).filter_map(|rollback| {
        let (before, after) = (of(rollback - 1)?, of(rollback)?);
        let kept = after.steps.iter().enumerate().find(|(index, _)| after.is_own(*index))?.1.first;
        before.steps.last()?.keys().checked_sub(kept)
    });
    all.sum()
}

/// The stage of all runs, with where its rows are.
pub(super) struct Stages<'a> {
    pub(super) all: Vec<Evidence<'a>>,
    /// The rows of each run, by step and position.
    pub(super) rows: Vec<BTreeMap<(usize, usize), Vec<usize>>>,
    pub(super) fed: Vec<Fed>,
    /// The tokens, of states the sequences, with a wrong row, and all others.
    pub(super) wrong: Vec<At>,
    pub(super) others: Vec<At>,
    pub(super) meter: &'a Meter,
}

/// A row of a pass: the pass, the number of the row's group, and its number in that.
pub(super) type At = (usize, usize, usize);

/// What a row should be instead, with bounds: none where a rule says nothing.
pub(super) type Instead = Option<(Vec<f64>, Vec<f32>)>;

impl<'a> Stages<'a> {
    pub(super) fn of(node: &'a Node, runs: Runs<'a>) -> Option<Self> {
        let fed = passes(runs)?;
        let mut all = Vec::new();
        for (searcher, _) in runs.0 {
            let capture = searcher.subject.capture;
            let work = work_of(node, searcher.oracle, capture);
            if work > searcher.meter.left() {
                return None;
            }
            searcher.meter.count(work);
            all.push(searcher.evidence(node, capture));
        }
        let mut rows = vec![BTreeMap::new(); all.len()];
        for (e, rows) in all.iter().zip(&mut rows) {
            for (i, row) in e.rows.iter().enumerate() {
                let list: &mut Vec<usize> = rows.entry((row.step, row.place.position)).or_default();
                list.push(i);
            }
        }
        let meter = runs.0.first()?.0.meter;
        let mut stages = Self { all, rows, fed, wrong: Vec::new(), others: Vec::new(), meter };
        let is_wrong = |at: &At| {
            let of = stages.rows_of(*at, node.is_own_state());
            of.is_some_and(|(run, rows)| rows.iter().any(|&i| stages.all[run].rows[i].bad))
        };
        let (wrong, others) = stages.every(node.is_own_state()).partition(is_wrong);
        (stages.wrong, stages.others) = (wrong, others);
        stages.tells(node).then_some(stages)
    }

    /// Whether several passes have wrong rows, and each wrong row of a cache, which is seen again in later steps, is so since it was written.
    pub(super) fn tells(&self, node: &Node) -> bool {
        let of_cache = node.has_state() && !node.is_own_state();
        let was_wrong = |run: usize, row: &RowAt| {
            let (e, position) = (&self.all[run], row.place.position);
            let steps = &e.side.capture.steps;
            let Some(wrote) = steps.iter().position(|step| (step.first..step.keys()).contains(&position)) else {
                return !of_cache;
            };
            let first = || self.rows[run].get(&(wrote, position)).into_iter().flatten();
            !of_cache || !e.side.capture.is_own(wrote) || first().any(|&i| e.rows[i].bad)
        };
        let passes: BTreeSet<usize> = self.wrong.iter().map(|(pass, ..)| *pass).collect();
        passes.len() >= PASSES && (0..self.all.len()).all(|run| self.all[run].bad_rows().all(|row| was_wrong(run, row)))
    }

    /// The rules that say something of these passes.
    pub(super) fn maps(&self) -> impl Iterator<Item = Map> {
        let most = self.fed.iter().map(|fed| fed.pass.rows()).max().unwrap_or(0);
        Map::all().filter(move |map| map.tile().is_none_or(|tile| tile < most))
    }

    /// The same for the sequences of these passes, of which each has one row.
    pub(super) fn maps_of_sequences(&self) -> impl Iterator<Item = Map> {
        let most = self.fed.iter().map(|fed| fed.pass.0.len()).max().unwrap_or(0);
        // With one row each the number of a row among those of its sequence is 0.
        let says = move |map: &Map| {
            map.tile().is_none_or(|tile| tile < most) && !matches!(map, Map::OfSequence | Map::OneEach)
        };
        Map::all().filter(says)
    }

    pub(super) fn capture(&self, run: usize) -> &'a Capture {
        self.all[run].side.capture
    }

    /// The rows of a token, head by head; of a state those of the step.
    pub(super) fn rows_of(&self, (pass, group, number): At, of_state: bool) -> Option<(usize, &[usize])> {
        let (run, index) = self.fed[pass].of[group];
        let step = &self.capture(run).steps[index];
        let position = step.first + if of_state { step.tokens.len() - 1 } else { number };
        Some((run, self.rows[run].get(&(index, position))?))
    }

    /// Every row of all passes.
    pub(super) fn every(&self, of_state: bool) -> impl Iterator<Item = At> {
        self.fed.iter().enumerate().flat_map(move |(pass, fed)| {
            fed.pass.0.iter().enumerate().flat_map(move |(group, own)| {
                let n = if of_state { 1 } else { own.rows };
                (0..n).map(move |number| (pass, group, number))
            })
        })
    }

    /// Whether what a rule says of the rows of a condition is there, in most wrong ones what the stage should be is not, and all other rows
    /// are right.
    pub(super) fn agrees(&self, condition: [When; 2], rule: &impl Fn(At, usize) -> Option<Instead>) -> bool {
        let of_state = self.all[0].node.is_own_state();
        let holds = |at: &At| condition.iter().all(|when| when.has(&self.fed[at.0].pass, (at.1, at.2)));
        let (mut given, mut wrong, mut differing) = (0, 0, 0);
        let mut gives = |at: &At| {
            let Some((run, rows)) = self.rows_of(*at, of_state) else { return true };
            let e = &self.all[run];
            rows.iter().map(|&i| &e.rows[i]).enumerate().all(|(head, row)| {
                self.meter.count(row.range.len() as u64);
                let Some(instead) = rule(*at, head) else { return !row.bad };
                let Some((value, reach)) = instead else { return false };
                let (got, want, bound) = e.row(row);
                let reach = |i: usize| bound[i].max(reach[i]);
                // What the right value would pass as well says nothing.
                let differs = row.bad && (0..got.len()).any(|i| !right(got[i], want[i], reach(i)));
                (given, wrong, differing) =
                    (given + got.len(), wrong + usize::from(row.bad), differing + usize::from(differs));
                got.len() == value.len() && (0..got.len()).all(|i| right(got[i], value[i], reach(i)))
            })
        };
        self.wrong.iter().all(holds)
            && self.wrong.iter().all(&mut gives)
            && self.others.iter().filter(|at| holds(at)).all(&mut gives)
            && given >= LEAST
            && 2 * differing > wrong
    }

    /// The conditions under which a rule gives all that is wrong, and nothing that is right. `None` if it is too much work.
    pub(super) fn fitting(
        &self, all: impl Iterator<Item = [When; 2]>, words: &str, rule: impl Fn(At, usize) -> Option<Instead>,
    ) -> Option<Vec<Fit>> {
        let (mut fits, mut of_one_part, mut everywhere) = (Vec::new(), false, false);
        for condition in all {
            // A condition of two parts counts only if none of one fits.
            if condition[0] != When::Always && of_one_part {
                continue;
            }
            if self.meter.over() {
                return None;
            }
            if self.agrees(condition, &rule) {
                fits.push(Fit { narrower: everywhere, ..Fit::new(words, told_of(condition)) });
                of_one_part |= condition[0] == When::Always;
                everywhere |= condition == [When::Always; 2];
            }
        }
        Some(fits)
    }

    /// The row that is taken for each row of each pass.
    pub(super) fn taken(&self, map: Map) -> Vec<Vec<Option<usize>>> {
        self.fed.iter().map(|fed| map.of_all(&fed.pass)).collect()
    }

    /// The row that another one is taken for, if that is not itself.
    pub(super) fn source(&self, taken: &[Vec<Option<usize>>], at: At, itself: bool) -> Option<At> {
        let pass = &self.fed[at.0].pass;
        let row = pass.first_of(at.1) + at.2;
        let from = (*taken[at.0].get(row)?)?;
        let (group, number) = pass.at(from).filter(|_| itself || from != row)?;
        Some((at.0, group, number))
    }

    /// What a row of another token is.
    pub(super) fn held(&self, at: At, head: usize) -> Instead {
        let (run, rows) = self.rows_of(at, false)?;
        let e = &self.all[run];
        let (got, ..) = e.row(&e.rows[*rows.get(head)?]);
        Some((got.iter().map(|v| f64::from(*v)).collect(), vec![0.0; got.len()]))
    }

    /// What a row of another token should be.
    pub(super) fn right(&self, at: At, head: usize, of_state: bool) -> Instead {
        let (run, rows) = self.rows_of(at, of_state)?;
        let e = &self.all[run];
        let (_, want, bound) = e.row(&e.rows[*rows.get(head)?]);
        Some((want.to_vec(), bound.to_vec()))
    }
}
/// Rules that fit.
pub(super) fn told(fits: Vec<Fit>, remedy: &'static str) -> Option<Told> {
    let words = rules(&fits.iter().collect::<Vec<_>>());
    let shown = Shown { what: OF_PASSES.to_owned(), links: Vec::new(), fits };
    (!words.is_empty()).then_some(Told { words, remedy, shown })
}

/// Conditions of one part.
pub(super) fn plain() -> impl Iterator<Item = [When; 2]> {
    When::ALL.into_iter().map(|when| [When::Always, when])
}

impl Stages<'_> {
    /// The operand of a token alone, if the step has a row of it for each token.
    pub(super) fn operand(&self, node: usize, (pass, group, number): At) -> Option<Tensor<f64>> {
        let (run, index) = self.fed[pass].of[group];
        let (step, of) = (&self.capture(run).steps[index], &self.all[run].oracle.graph.nodes[node]);
        let rows = step.get(of.id)?;
        if of.token_axis() != Some(0) || of.has_state() || rows.shape.first() != Some(&step.tokens.len()) {
            return None;
        }
        let width = rows.data.len() / step.tokens.len();
        let data = rows.data[number * width..(number + 1) * width].iter().map(|v| f64::from(*v)).collect();
        let mut shape = rows.shape.clone();
        shape[0] = 1;
        Some(Tensor { shape, data })
    }

    /// What a row is if an operand is another one, or if its position is.
    pub(super) fn made(
        &self, node: &Node, (at, head): (At, usize), (operand, position): (Option<(usize, Tensor<f64>)>, Option<usize>),
    ) -> Instead {
        let e = &self.all[self.fed[at.0].of[at.1].0];
        let own = |i: usize, input: usize| match &operand {
            Some((other, value)) if *other == i => Some(value.clone()),
            _ => self.operand(input, at),
        };
        let inputs = node.inputs.iter().enumerate().map(|(i, input)| own(i, *input));
        let inputs: Vec<Tensor<f64>> = inputs.collect::<Option<_>>()?;
        let (run, index) = self.fed[at.0].of[at.1];
        let step = &self.capture(run).steps[index];
        let parameters = e.parameters();
        let context = Context {
            tokens: &[step.tokens[at.2]],
            positions: &[position.unwrap_or(step.first + at.2) as u32],
            history: &[],
            source: &parameters,
            weights: &node.weights,
        };
        let (y, bound) = ops::forward_with_bound(&node.op, &inputs.iter().collect::<Vec<_>>(), &context);
        let (run, rows) = self.rows_of(at, false)?;
        let width = self.all[run].rows[*rows.get(head)?].range.len();
        let range = head * width..(head + 1) * width;
        Some((y.data.get(range.clone())?.to_vec(), bound[range].to_vec()))
    }
}
