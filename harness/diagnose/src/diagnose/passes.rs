//! What the rows of whole passes show: that a row is made of another row of its pass, that states are exchanged or not kept, and
//! that a convolution runs on from one sequence to the next.

use super::pass::{Fit, Group, Map, Numbers, PAGES, Pass, Position, When, conditions, earlier, rules, told as told_of};
use super::resumed::{before, operands, parts};
use super::siblings::Runs;
use super::solve::{BLOCK, coded_by};
use super::spots::{OF_PASSES, Shown, Told};
use super::work::Meter;
use crate::capture::{Capture, Whose};
use crate::verdict::{Evidence, RowAt, right, work_of};
use qdiff_engine::model::{Axis, Node, Role, StageId, row_len};
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, RowReduction, State};
use qdiff_engine::ops::{self, Anatomy, Attention, Context, Tensor, UNIT};
use qdiff_engine::quant::ActivationFormat;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How to mend rows that are exchanged.
const OF_ROWS: &str = "look at which row of a pass is taken for a token: the order of its sequences, the rows that are gathered \
                       from it, and where results are scattered to";

/// How to mend rows that are not written.
const OF_UNWRITTEN: &str = "write the row of every token of a pass: look at how many rows the kernel is launched for, and which of them it skips";

/// How to mend rows of earlier passes.
const OF_BUFFERS: &str = "copy what every pass needs, as many rows as it has, before its kernels run: look at buffers of recorded launches, and at the \
                          tokens that a sequence keeps when it takes some back";

/// How to mend scales.
const OF_SCALES: &str = "take the scale of each block from the slot that its codes are in";

/// How to mend positions.
const OF_POSITIONS: &str = "positions go on from the tokens that a sequence has: look at how they are counted in passes of several sequences, in \
                            chunks, and after tokens were taken back";

/// How to mend masks.
const OF_MASKS: &str = "mask the keys of each row by the position and the length of its own sequence: look at which row or sequence of the pass \
                        the mask is made for";

/// How to mend what a state begins with.
const OF_BEGINNINGS: &str = "begin the rows of each sequence of a pass with its own state, which is zero where the sequence begins: look at where the \
                             kernel takes the state from at the first row of a sequence";

/// How to mend states.
const OF_STATES: &str = "store the state of each sequence of a pass as that sequence's, in every pass: look at the indices of states that \
                         the kernel is given";

/// Wrong elements that a rule must give, and the passes that must have some.
const LEAST: usize = 16;
const PASSES: usize = 2;

/// A pass, with the run and the step that have each of its groups.
struct Fed {
    pass: Pass,
    of: Vec<(usize, usize)>,
}

/// The passes of a run, if all of their rows are captured.
fn passes(runs: Runs<'_>) -> Option<Vec<Fed>> {
    let mut all: BTreeMap<usize, Vec<(usize, usize, usize, Group)>> = BTreeMap::new();
    let mut rows: BTreeMap<usize, usize> = BTreeMap::new();
    for (run, (searcher, _)) in runs.0.iter().enumerate() {
        let capture = searcher.subject.capture;
        for (index, step) in capture.steps.iter().enumerate().filter(|(index, _)| capture.is_own(*index)) {
            let at = step.in_pass?;
            let (sequence, taken_back) = (step.whose.sequence, taken_back(runs, step.whose));
            let group = Group { sequence, first: step.first, rows: step.tokens.len(), taken_back, room: 0 };
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
fn taken_back((runs, _): Runs<'_>, whose: Whose) -> usize {
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
struct Stages<'a> {
    all: Vec<Evidence<'a>>,
    /// The rows of each run, by step and position.
    rows: Vec<BTreeMap<(usize, usize), Vec<usize>>>,
    fed: Vec<Fed>,
    /// The tokens, of states the sequences, with a wrong row, and all others.
    wrong: Vec<At>,
    others: Vec<At>,
    meter: &'a Meter,
}

/// A row of a pass: the pass, the number of the row's group, and its number in that.
type At = (usize, usize, usize);

/// What a row should be instead, with bounds: none where a rule says nothing.
type Instead = Option<(Vec<f64>, Vec<f32>)>;

impl<'a> Stages<'a> {
    fn of(node: &'a Node, runs: Runs<'a>) -> Option<Self> {
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
    fn tells(&self, node: &Node) -> bool {
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
    fn maps(&self) -> impl Iterator<Item = Map> {
        let most = self.fed.iter().map(|fed| fed.pass.rows()).max().unwrap_or(0);
        Map::all().filter(move |map| map.tile().is_none_or(|tile| tile < most))
    }

    /// The same for the sequences of these passes, of which each has one row.
    fn maps_of_sequences(&self) -> impl Iterator<Item = Map> {
        let most = self.fed.iter().map(|fed| fed.pass.0.len()).max().unwrap_or(0);
        // With one row each the number of a row among those of its sequence is 0.
        let says = move |map: &Map| {
            map.tile().is_none_or(|tile| tile < most) && !matches!(map, Map::OfSequence | Map::OneEach)
        };
        Map::all().filter(says)
    }

    fn capture(&self, run: usize) -> &'a Capture {
        self.all[run].side.capture
    }

    /// The rows of a token, head by head; of a state those of the step.
    fn rows_of(&self, (pass, group, number): At, of_state: bool) -> Option<(usize, &[usize])> {
        let (run, index) = self.fed[pass].of[group];
        let step = &self.capture(run).steps[index];
        let position = step.first + if of_state { step.tokens.len() - 1 } else { number };
        Some((run, self.rows[run].get(&(index, position))?))
    }

    /// Every row of all passes.
    fn every(&self, of_state: bool) -> impl Iterator<Item = At> {
        self.fed.iter().enumerate().flat_map(move |(pass, fed)| {
            fed.pass.0.iter().enumerate().flat_map(move |(group, own)| {
                let n = if of_state { 1 } else { own.rows };
                (0..n).map(move |number| (pass, group, number))
            })
        })
    }

    /// Whether what a rule says of the rows of a condition is there, in most wrong ones what the stage should be is not, and all other rows
    /// are right.
    fn agrees(&self, condition: [When; 2], rule: &impl Fn(At, usize) -> Option<Instead>) -> bool {
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

    /// The conditions under which a rule gives all that is wrong, and nothing that is right: if it does everywhere, that alone. `None` if it
    /// is too much work.
    fn fitting(
        &self, all: impl Iterator<Item = [When; 2]>, words: &str, rule: impl Fn(At, usize) -> Option<Instead>,
    ) -> Option<Vec<Fit>> {
        let mut fits = Vec::new();
        for condition in all {
            // A rule with a condition counts only if none fits without.
            if condition[0] != When::Always && !fits.is_empty() {
                break;
            }
            if self.meter.over() {
                return None;
            }
            if self.agrees(condition, &rule) {
                fits.push(Fit { rule: words.to_owned(), when: told_of(condition) });
                if condition == [When::Always; 2] {
                    break;
                }
            }
        }
        Some(fits)
    }

    /// The row that is taken for each row of each pass.
    fn taken(&self, map: Map) -> Vec<Vec<Option<usize>>> {
        self.fed.iter().map(|fed| map.of_all(&fed.pass)).collect()
    }

    /// The row that another one is taken for, if that is not itself.
    fn source(&self, taken: &[Vec<Option<usize>>], at: At, itself: bool) -> Option<At> {
        let pass = &self.fed[at.0].pass;
        let row = pass.first_of(at.1) + at.2;
        let from = (*taken[at.0].get(row)?)?;
        let (group, number) = pass.at(from).filter(|_| itself || from != row)?;
        Some((at.0, group, number))
    }

    /// What a row of another token is.
    fn held(&self, at: At, head: usize) -> Instead {
        let (run, rows) = self.rows_of(at, false)?;
        let e = &self.all[run];
        let (got, ..) = e.row(&e.rows[*rows.get(head)?]);
        Some((got.iter().map(|v| f64::from(*v)).collect(), vec![0.0; got.len()]))
    }

    /// What a row of another token should be.
    fn right(&self, at: At, head: usize, of_state: bool) -> Instead {
        let (run, rows) = self.rows_of(at, of_state)?;
        let e = &self.all[run];
        let (_, want, bound) = e.row(&e.rows[*rows.get(head)?]);
        Some((want.to_vec(), bound.to_vec()))
    }
}

/// Rules that fit.
fn told(fits: Vec<Fit>, remedy: &'static str) -> Option<Told> {
    let words = rules(&fits.iter().collect::<Vec<_>>());
    let shown = Shown { what: OF_PASSES.to_owned(), links: Vec::new(), fits };
    (!words.is_empty()).then_some(Told { words, remedy, shown })
}

/// Conditions of one part.
fn plain() -> impl Iterator<Item = [When; 2]> {
    When::ALL.into_iter().map(|when| [When::Always, when])
}

/// Which rows of its passes are made of which.
pub(super) fn words(e: &Evidence<'_>, runs: Runs<'_>) -> Option<Told> {
    if runs.0.len() < 2 || !e.bad_rows().any(|row| e.side.capture.is_own(row.step)) {
        return None;
    }
    let node = e.node;
    match node.op.anatomy() {
        Anatomy::State(State::Own) => states(node, runs).or_else(|| begins(node, runs)),
        Anatomy::RowReduction(RowReduction::Recurrent) => begins(node, runs),
        Anatomy::State(State::Rows(_)) => rows(node, runs),
        Anatomy::Contraction(Contraction::Scores(attention)) => {
            queries(node, attention, runs).or_else(|| by_pages(node, attention, runs))
        }
        Anatomy::Contraction(Contraction::Context(attention)) => by_pages(node, attention, runs),
        Anatomy::RowReduction(RowReduction::Exponentials(_)) => masked(node, runs),
        Anatomy::Elementwise(Elementwise::Rotation(_)) => turned(node, runs).or_else(|| rows(node, runs)),
        _ if node.token_axis() == Some(0) && !node.has_state() && !node.shape.contains(&Axis::Keys) => {
            rows(node, runs).or_else(|| sorted(node, runs))
        }
        _ => None,
    }
}

/// Rows that are made of other rows of the pass: the whole row, one operand, or the position.
fn rows(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    let mut fits = Vec::new();
    let operands = if node.weights.is_empty() { node.inputs.len() } else { 0 };
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    // The whole row, and each of several operands.
    let mut takes: Vec<Takes> = vec![Takes::Row];
    takes.extend((0..operands).filter(|_| operands > 1).map(Takes::Operand));
    let coded = node.has_state() && stages.all[0].side.arithmetic.kv.of(node.is_of_values()) == ActivationFormat::Q8_0;
    takes.extend(coded.then_some(Takes::Scale));
    for take in takes {
        for map in stages.maps() {
            let taken = stages.taken(map);
            let rule = |at: At, head: usize| -> Option<Instead> {
                // By its own scale as it is stored a row may have other codes.
                let from = stages.source(&taken, at, matches!(take, Takes::Scale))?;
                Some(match take {
                    Takes::Row => stages.right(from, head, false),
                    Takes::Operand(i) => {
                        let other = stages.operand(node.inputs[i], from);
                        other.and_then(|other| stages.made(node, (at, head), (Some((i, other)), None)))
                    }
                    Takes::Scale => stages.coded(node, (at, head), from),
                })
            };
            let what = match take {
                Takes::Row => "each row is".to_owned(),
                Takes::Scale => "each block is coded by the scale that it has in".to_owned(),
                Takes::Operand(i) => format!("each row takes the {} of", nodes[node.inputs[i]].id.name),
            };
            fits.extend(stages.fitting(plain(), &format!("{what} {map}"), rule)?);
        }
        if !fits.is_empty() {
            break;
        }
    }
    if fits.is_empty() {
        return stale(node, &stages);
    }
    told(fits, OF_ROWS)
}

/// Rows that are not written, or hold what a buffer held before: the row of the pass before, or of the token that its sequence took back.
fn stale(node: &Node, stages: &Stages<'_>) -> Option<Told> {
    let narrow = || {
        let few = [2, 4, 8, 16, 32].map(When::RowsUpTo);
        let of = |few| [When::Always, When::PassLast, When::PassLastOfMore].map(|when| [when, few]);
        conditions().chain(few.into_iter().flat_map(of))
    };
    let zeros = |at: At, head: usize| -> Option<Instead> {
        let (_, want) = stages.right(at, head, false)?;
        Some(Some((vec![0.0; want.len()], vec![0.0; want.len()])))
    };
    let mut fits = stages.fitting(narrow(), "each row is zeros: it is not written", zeros)?;
    if !fits.is_empty() || node.has_state() {
        return told(fits, OF_UNWRITTEN);
    }
    let before = |(pass, group, number): At| {
        let row = stages.fed[pass].pass.first_of(group) + number;
        let of = |earlier: usize| stages.fed[earlier].pass.at(row).map(|(group, number)| (earlier, group, number));
        (0..pass).rev().find_map(of)
    };
    let taken_back = |(pass, group, number): At| {
        let own = &stages.fed[pass].pass.0[group];
        let position = own.first + number;
        (0..pass).rev().find_map(|earlier| {
            let mut groups = stages.fed[earlier].pass.0.iter().enumerate();
            let has = |other: &Group| {
                other.sequence == own.sequence && (other.first..other.first + other.rows).contains(&position)
            };
            let (group, other) = groups.find(|(_, other)| has(other))?;
            Some((earlier, group, position - other.first))
        })
    };
    type From<'a> = &'a dyn Fn(At) -> Option<At>;
    let from: [(&str, From<'_>); 2] = [
        ("the row of its number in the last pass before that has one", &before),
        ("the row that its sequence had at this position before it took tokens back", &taken_back),
    ];
    for (words, of) in from {
        // What a buffer holds is what the engine put there.
        let rule = |at: At, head: usize| of(at).map(|from| stages.held(from, head));
        fits.extend(stages.fitting(narrow(), &format!("each row is still {words}"), rule)?);
    }
    told(fits, OF_BUFFERS)
}

/// An order in which the choices of a pass are, where they should be row by row.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// That of the experts' numbers.
    Experts,
    /// The first choices of all rows before the second ones.
    Choices,
}

impl Order {
    /// The number of the choice at each place, of rows that chose these experts.
    fn of(self, experts: &[f64], picks: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..experts.len()).collect();
        match self {
            Self::Experts => order.sort_by(|a, b| experts[*a].total_cmp(&experts[*b])),
            Self::Choices => order.sort_by_key(|i| i % picks),
        }
        order
    }

    /// What is done, of values in this order or put back from it.
    fn told(self, back: bool) -> &'static str {
        match (self, back) {
            (Self::Experts, true) => "as if they were in the order of the experts' numbers, and put back from it",
            (Self::Experts, false) => "in the order of the experts' numbers, and not put back",
            (Self::Choices, true) => {
                "as if the first choices of all rows came before the second ones: [choices, rows] is read in the place of [rows, choices]"
            }
            (Self::Choices, false) => {
                "with the first choices of all rows before the second ones: [choices, rows] in the place of [rows, choices]"
            }
        }
    }
}

/// Choices of experts whose values are in another order, or put back from it wrongly.
fn sorted(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let graph = &runs.0[0].0.oracle.graph;
    let k = row_len(node);
    let chosen = graph.nodes.iter().position(|other| {
        let of_layer = (other.id.layer, other.id.rank) == (node.id.layer, node.id.rank);
        of_layer && matches!(other.op.anatomy(), Anatomy::Decision(_)) && other.role == Role::Router
    })?;
    let picks = row_len(&graph.nodes[chosen]);
    let stages = Stages::of(node, runs)?;
    // A row for each choice, or one with a value for each.
    let lines = k != picks
        && stages.every(false).all(|at| stages.rows_of(at, false).is_some_and(|(_, rows)| rows.len() == picks));
    let of_operand = node.inputs.iter().position(|i| *i != chosen && row_len(&graph.nodes[*i]) == picks);
    let operand = if k == picks || lines { None } else { Some(of_operand.filter(|_| node.weights.is_empty())?) };
    // The choice whose value another one has, for each pass and in either direction.
    let orders = |order: Order, back: bool| -> Option<Vec<Vec<usize>>> {
        let of = |(pass, fed): (usize, &Fed)| {
            let rows =
                (0..fed.pass.rows()).map(|r| fed.pass.at(r).and_then(|(g, n)| stages.operand(chosen, (pass, g, n))));
            let rows: Vec<Tensor<f64>> = rows.collect::<Option<_>>()?;
            if rows.iter().any(|row| row.data.len() != picks) {
                return None;
            }
            let experts: Vec<f64> = rows.into_iter().flat_map(|row| row.data).collect();
            let order = order.of(&experts, picks);
            let mut put_back = vec![0; order.len()];
            order.iter().enumerate().for_each(|(i, from)| put_back[*from] = i);
            Some(if back { put_back } else { order })
        };
        stages.fed.iter().enumerate().map(of).collect()
    };
    let mut fits = Vec::new();
    for (order, back) in [Order::Experts, Order::Choices].into_iter().flat_map(|order| [(order, false), (order, true)])
    {
        let orders = orders(order, back)?;
        let rule = |at: At, head: usize| -> Option<Instead> {
            let pass = &stages.fed[at.0].pass;
            let first = (pass.first_of(at.1) + at.2) * picks;
            let from = orders[at.0].get(first..first + picks)?;
            let there = |from: usize| pass.at(from / picks).map(|(group, number)| (at.0, group, number));
            if lines {
                let from = *from.get(head).filter(|from| **from != first + head)?;
                return Some(there(from).and_then(|there| stages.right(there, from % picks, false)));
            }
            if from.iter().enumerate().all(|(i, from)| *from == first + i) {
                return None;
            }
            let value = |from: usize| -> Option<(f64, f32)> {
                let there = there(from)?;
                match operand {
                    None => {
                        let (value, bound) = stages.right(there, head, false)?;
                        Some((*value.get(from % picks)?, *bound.get(from % picks)?))
                    }
                    Some(i) => Some((*stages.operand(node.inputs[i], there)?.data.get(from % picks)?, 0.0)),
                }
            };
            let all: Option<Vec<(f64, f32)>> = from.iter().map(|from| value(*from)).collect();
            Some(all.and_then(|all| {
                let (values, bounds): (Vec<f64>, Vec<f32>) = all.into_iter().unzip();
                let Some(i) = operand else { return Some((values, bounds)) };
                let mut other = stages.operand(node.inputs[i], at)?;
                other.data = values;
                stages.made(node, (at, head), (Some((i, other)), None))
            }))
        };
        let what = match operand {
            None => "the values of the pass's choices are".to_owned(),
            Some(i) => format!("the {} of the pass's choices are taken", graph.nodes[node.inputs[i]].id.name),
        };
        fits.extend(stages.fitting(plain(), &format!("{what} {}", order.told(back)), rule)?);
    }
    told(fits, OF_ROWS)
}

/// What is taken of another row.
#[derive(Clone, Copy)]
enum Takes {
    Row,
    Operand(usize),
    /// The scales of its blocks.
    Scale,
}

/// Scores of the queries of other rows of the pass.
fn queries(node: &Node, a: &Attention, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    let [queries, cache] = [*node.inputs.first()?, *node.inputs.get(1)?];
    let mut fits = Vec::new();
    for map in stages.maps() {
        let taken = stages.taken(map);
        let rule = |at: At, head: usize| -> Option<Instead> {
            let from = stages.source(&taken, at, false)?;
            Some(stages.scores((queries, nodes[cache].id), a, (at, head), from))
        };
        fits.extend(stages.fitting(plain(), &format!("each row takes the query of {map}"), rule)?);
    }
    told(fits, OF_ROWS)
}

/// The row that a slot of a cache holds: its run and position.
type Held = BTreeMap<usize, (usize, usize)>;

/// Scores or contexts whose keys or values have codes of their own, and the scales of the first slot of their page, whosever that is.
fn by_pages(node: &Node, a: &Attention, runs: Runs<'_>) -> Option<Told> {
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    let (left, cache) = (&nodes[*node.inputs.first()?], &nodes[*node.inputs.get(1)?]);
    let of_scores = matches!(node.op.anatomy(), Anatomy::Contraction(Contraction::Scores(_)));
    if runs.0[0].0.subject.arithmetic.kv.of(!of_scores) != ActivationFormat::Q8_0 {
        return None;
    }
    let stages = Stages::of(node, runs)?;
    // What each slot holds after each pass.
    let mut held: Vec<Held> = Vec::new();
    for fed in &stages.fed {
        let mut now = held.last().cloned().unwrap_or_default();
        let slots = fed.pass.1.slots.as_ref()?;
        for (row, slot) in slots.iter().enumerate() {
            let (group, number) = fed.pass.at(row)?;
            now.insert(*slot, (fed.of[group].0, fed.pass.0[group].first + number));
        }
        held.push(now);
    }
    let mut fits = Vec::new();
    for page in PAGES {
        let rule = |at: At, head: usize| -> Option<Instead> {
            Some(stages.of_page((left, cache), (a, of_scores), (at, head), (page, &held[at.0])))
        };
        let what = if of_scores { "keys" } else { "values" };
        let words = format!(
            "the codes of {what} are multiplied with the scales of the first slot of their page, of {page} slots, whichever token that holds"
        );
        fits.extend(stages.fitting(plain(), &words, rule)?);
    }
    told(fits, OF_SCALES)
}

/// Rows that are rotated by other positions.
fn turned(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    let mut fits = Vec::new();
    for position in Position::all() {
        let given: Vec<Vec<Option<usize>>> = stages.fed.iter().map(|fed| position.of_all(&fed.pass)).collect();
        let rule = |at: At, head: usize| -> Option<Instead> {
            let pass = &stages.fed[at.0].pass;
            let own = pass.0[at.1].first + at.2;
            let other = given[at.0].get(pass.first_of(at.1) + at.2).copied().flatten().filter(|other| *other != own)?;
            Some(stages.made(node, (at, head), (None, Some(other))))
        };
        fits.extend(stages.fitting(conditions(), &format!("each row is rotated by {position}"), rule)?);
    }
    told(fits, OF_POSITIONS)
}

/// Weights of rows that are masked by other positions.
fn masked(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    let mut fits = Vec::new();
    for position in Position::all() {
        let given: Vec<Vec<Option<usize>>> = stages.fed.iter().map(|fed| position.of_all(&fed.pass)).collect();
        let rule = |at: At, head: usize| -> Option<Instead> {
            let pass = &stages.fed[at.0].pass;
            let own = pass.0[at.1];
            let other = given[at.0].get(pass.first_of(at.1) + at.2).copied().flatten()?;
            let other = other.min(own.first + own.rows - 1);
            (other != own.first + at.2).then(|| stages.seen(node, (at, head), other))
        };
        fits.extend(stages.fitting(conditions(), &format!("each row sees the keys up to {position}"), rule)?);
    }
    told(fits, OF_MASKS)
}

impl Stages<'_> {
    /// The weights of a row that sees the keys up to a position.
    fn seen(&self, node: &Node, (at, head): (At, usize), position: usize) -> Instead {
        let (run, rows) = self.rows_of(at, false)?;
        let e = &self.all[run];
        let row = &e.rows[*rows.get(head)?];
        let step = &e.side.capture.steps[row.step];
        let scores = step.get(e.oracle.graph.nodes[*node.inputs.first()?].id)?;
        let &[_, tokens, keys] = &scores.shape[..] else { return None };
        let first = (row.place.head? * tokens + at.2) * keys;
        let data = scores.data.get(first..first + keys).filter(|_| tokens == step.tokens.len())?;
        self.meter.count(8 * keys as u64);
        let data = data.iter().map(|v| f64::from(*v)).collect();
        let source = e.parameters();
        let positions = [position as u32];
        let context =
            Context { tokens: &[], positions: &positions, history: &[], source: &source, weights: &node.weights };
        let (y, bound) = ops::forward_with_bound(&node.op, &[&Tensor { shape: vec![1, 1, keys], data }], &context);
        (y.data.len() == row.range.len()).then_some((y.data, bound))
    }

    /// The operand of a token alone, if the step has a row of it for each token.
    fn operand(&self, node: usize, (pass, group, number): At) -> Option<Tensor<f64>> {
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

    /// The scores of a row with the query of another one.
    fn scores(&self, (queries, cache): (usize, StageId), a: &Attention, (at, head): (At, usize), from: At) -> Instead {
        let (run, rows) = self.rows_of(at, false)?;
        let e = &self.all[run];
        let row = &e.rows[*rows.get(head)?];
        let head = row.place.head?;
        let all = self.operand(queries, from)?;
        let q = all.data.get(head * a.head_dim..(head + 1) * a.head_dim)?;
        let keys = e.side.capture.steps[row.step].get(cache).filter(|keys| keys.rows() > row.place.position)?;
        let (_, want, bound) = e.row(row);
        let (mut value, mut reach) = (want.to_vec(), bound.to_vec());
        for k in 0..value.len().min(row.place.position + 1) {
            let key = keys.row(k).get(a.kv_head(head) * a.head_dim..)?;
            let products = || q.iter().zip(key).map(|(q, k)| q * f64::from(*k));
            value[k] = products().sum();
            reach[k] = reach[k].max((4.0 * UNIT * products().map(f64::abs).sum::<f64>()) as f32);
        }
        Some((value, reach))
    }

    /// A row of scores, or of a context, by the scales of the first slots of pages.
    fn of_page(
        &self, (left, cache): (&Node, &Node), (a, of_scores): (&Attention, bool), (at, head): (At, usize),
        (page, held): (usize, &Held),
    ) -> Instead {
        let (run, rows) = self.rows_of(at, false)?;
        let e = &self.all[run];
        let row = &e.rows[*rows.get(head)?];
        let step = &e.side.capture.steps[row.step];
        let (own, factors) = (step.get(cache.id)?, step.get(left.id)?);
        // The slot of each position, as the sequence wrote it.
        let slots: BTreeMap<usize, usize> =
            held.iter().filter(|(_, of)| of.0 == run).map(|(slot, of)| (of.1, *slot)).collect();
        let width = a.n_kv_heads * a.head_dim;
        let largest = |rows: &Tensor<f32>, position: usize, block: usize| -> Option<f64> {
            let row = rows.row(position).get(block * BLOCK..width.min((block + 1) * BLOCK))?;
            Some(f64::from(row.iter().fold(0f32, |most, v| most.max(v.abs()))))
        };
        let (_, want, bound) = e.row(row);
        let (mut value, mut reach) = (want.to_vec(), bound.to_vec());
        let keys = row.place.position + 1;
        let first = if of_scores { 0 } else { row.range.start % (a.n_heads * a.head_dim) };
        let scale = |key: usize, block: usize| -> Option<f64> {
            let slot = slots.get(&key)?;
            let (other, position) = held.get(&(slot / page * page))?;
            let theirs = self.capture(*other);
            let there = theirs.steps.iter().find(|step| step.keys() > *position)?.get(cache.id)?;
            let (mine, other) = (largest(&own, key, block)?, largest(&there, *position, block)?);
            Some(if mine == 0.0 { 1.0 } else { other / mine })
        };
        let mut scales: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        for (i, value) in value.iter_mut().enumerate() {
            // The head, and the element of the cache's row that each term has.
            let head = if of_scores { row.place.head? } else { (first + i) / a.head_dim };
            let from = a.kv_head(head) * a.head_dim;
            let (mut sum, mut size) = (0.0, 0.0);
            let terms = if of_scores { a.head_dim } else { keys };
            if of_scores && i >= keys {
                break;
            }
            for term in 0..terms {
                let (key, column) = if of_scores { (i, from + term) } else { (term, from + (first + i) % a.head_dim) };
                let factor = match of_scores {
                    true => factors.row(at.2).get(head * a.head_dim + term)?,
                    false => {
                        let &[_, tokens, n] = &factors.shape[..] else { return None };
                        factors.data.get((head * tokens + at.2) * n + key)?
                    }
                };
                let scale = match scales.get(&(key, column / BLOCK)) {
                    Some(scale) => *scale,
                    None => {
                        let scale = scale(key, column / BLOCK)?;
                        scales.insert((key, column / BLOCK), scale);
                        scale
                    }
                };
                let product = f64::from(*factor) * f64::from(*own.row(key).get(column)?) * scale;
                (sum, size) = (sum + product, size + product.abs());
            }
            self.meter.count(terms as u64);
            *value = sum;
            reach[i] = reach[i].max((4.0 * UNIT * size) as f32);
        }
        Some((value, reach))
    }

    /// A row of a cache whose blocks are coded by the scales of another row.
    fn coded(&self, node: &Node, (at, head): (At, usize), from: At) -> Instead {
        let input = *node.inputs.first()?;
        let [own, other] = [at, from].map(|at| self.operand(input, at));
        let (run, rows) = self.rows_of(at, false)?;
        let n = self.all[run].rows[*rows.get(head)?].range.len();
        let part = |of: Tensor<f64>| -> Option<Vec<f32>> {
            Some(of.data.get(head * n..(head + 1) * n)?.iter().map(|v| *v as f32).collect())
        };
        Some(coded_by(&part(own?)?, &part(other?)?))
    }

    /// What a row is if an operand is another one, or if its position is.
    fn made(
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

/// States that are stored as those of other sequences of the pass, or are not stored.
fn states(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    // What each sequence had before the pass.
    let mut had = Made::new();
    for (number, fed) in stages.fed.iter().enumerate() {
        for (group, &(run, index)) in fed.of.iter().enumerate() {
            let Some(state) = before(stages.capture(run), index, node.id) else { continue };
            stages.meter.count(state.data.len() as u64);
            let exact = vec![0.0; state.data.len()];
            had.insert((number, group), (state, exact));
        }
    }
    let stays = |at: At, head: usize| -> Option<Instead> {
        let (state, exact) = had.get(&(at.0, at.1))?;
        Some(stages.part(true, (at, head), (state, exact)))
    };
    let mut fits =
        stages.fitting(plain(), "the state after a pass is not stored, and stays what it was before it", stays)?;
    for map in stages.maps_of_sequences() {
        let each: Vec<Vec<Option<usize>>> = stages.fed.iter().map(|fed| map.of_all(&each(&fed.pass))).collect();
        let rule = |at: At, head: usize| -> Option<Instead> {
            let from = (*each[at.0].get(at.1)?)?;
            (from != at.1).then(|| stages.right((at.0, from, 0), head, true))
        };
        let words =
            format!("the state of a sequence is stored as another's, each has the one of {}", of_sequences(map));
        fits.extend(stages.fitting(plain(), &words, rule)?);
    }
    told(fits, OF_STATES)
}

/// A pass in which each sequence has its last row alone.
fn each(pass: &Pass) -> Pass {
    let last = |group: &Group| Group { rows: 1, first: group.first + group.rows - 1, ..*group };
    Pass(pass.0.iter().map(last).collect(), Numbers::default())
}

/// What the rows of a sequence begin with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// The state that the sequence before it leaves in the pass.
    Before,
    /// The rows before it in the pass, whosever they are.
    Line,
    /// The rows above them in the pass, as far as there are any, and before those their own window.
    Above,
    /// Zeros.
    Zeros,
    /// The state that another sequence of the pass had before it.
    Of(Map),
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before => f.write_str("the state that the sequence before it leaves in the same pass"),
            Self::Line => {
                f.write_str("the rows before them in the pass, which are another sequence's, for their window")
            }
            Self::Above => f.write_str(
                "the rows above them in the pass, which are another sequence's, for their window, and with their own where there are no more of these",
            ),
            Self::Zeros => f.write_str("a state of zeros"),
            Self::Of(map) => {
                write!(f, "the state that another sequence had before the pass: that of {}", of_sequences(*map))
            }
        }
    }
}

/// A rule for the sequences of a pass, of which each has one row.
fn of_sequences(map: Map) -> String {
    match map {
        Map::OfLongest => "the longest sequence in the pass".to_owned(),
        map => map.to_string().replace("row r", "sequence r").replace("rows", "sequences").replace("row", "sequence"),
    }
}

/// Recurrent rows and states that begin with other states of the pass.
fn begins(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    let (inputs, state) = parts(node, nodes)?;
    let stages = Stages::of(node, runs)?;
    let of_state = node.is_own_state();
    let mut fits = Vec::new();
    for start in [Start::Before, Start::Line, Start::Above, Start::Zeros]
        .into_iter()
        .chain(stages.maps_of_sequences().map(Start::Of))
    {
        let made = stages.begun((node, inputs, state.id), start)?;
        let rule = |at: At, head: usize| -> Option<Instead> {
            let (y, bound) = made.get(&(at.0, at.1))?;
            Some(stages.part(of_state, (at, head), (y, bound)))
        };
        fits.extend(stages.fitting(plain(), &format!("the rows of a sequence begin with {start}"), rule)?);
    }
    if fits.is_empty() {
        return fed_others((node, inputs, state.id), &stages);
    }
    told(fits, OF_BEGINNINGS)
}

/// Recurrent rows and states of which an operand is that of other rows of the pass.
fn fed_others((node, inputs, state): (&Node, &[usize], StageId), stages: &Stages<'_>) -> Option<Told> {
    let nodes = &stages.all[0].oracle.graph.nodes;
    let of_state = node.is_own_state();
    let mut fits = Vec::new();
    let maps = [
        Map::OfSequence,
        Map::First,
        Map::Last,
        Map::OneEach,
        Map::OneApart,
        Map::Padded,
        Map::Before,
        Map::After,
        Map::Next,
    ];
    for (i, input) in inputs.iter().enumerate() {
        for map in maps {
            let taken = stages.taken(map);
            let mut made = Made::new();
            for (number, fed) in stages.fed.iter().enumerate() {
                for (group, &(run, index)) in fed.of.iter().enumerate() {
                    let own: Vec<At> = (0..fed.pass.0[group].rows).map(|row| (number, group, row)).collect();
                    let from = |at: &At| stages.source(&taken, *at, true);
                    let Some(from) = own.iter().map(from).collect::<Option<Vec<At>>>() else { continue };
                    if from == own {
                        continue;
                    }
                    let rows = from.iter().map(|at| Some(stages.operand(*input, *at)?.data));
                    let Some(rows) = rows.collect::<Option<Vec<_>>>() else { continue };
                    let Some(begin) = before(stages.capture(run), index, state) else { continue };
                    stages.meter.count(16 * own.len() as u64 * begin.data.len() as u64);
                    if stages.meter.over() {
                        return None;
                    }
                    let y = stages.from((node, inputs), (run, index), (begin, Some((i, rows.concat()))));
                    made.extend(y.map(|y| ((number, group), y)));
                }
            }
            let rule = |at: At, head: usize| -> Option<Instead> {
                let (y, bound) = made.get(&(at.0, at.1))?;
                Some(stages.part(of_state, (at, head), (y, bound)))
            };
            let words = format!("each row takes the {} of {map}", nodes[*input].id.name);
            fits.extend(stages.fitting(plain(), &words, rule)?);
        }
    }
    told(fits, OF_ROWS)
}

/// What each group of each pass is made of, with bounds.
type Made = BTreeMap<(usize, usize), (Tensor<f64>, Vec<f32>)>;

impl Stages<'_> {
    /// The rows of a token, or of a state, of what its step is made of.
    fn part(&self, of_state: bool, (at, head): (At, usize), (y, bound): (&Tensor<f64>, &[f32])) -> Instead {
        let (run, rows) = self.rows_of(at, of_state)?;
        let range = self.all[run].rows[*rows.get(head)?].range.clone();
        Some((y.data.get(range.clone())?.to_vec(), bound.get(range)?.to_vec()))
    }

    /// What a group is if it begins with this state, and has other rows of an operand.
    fn from(
        &self, (node, inputs): (&Node, &[usize]), (run, index): (usize, usize),
        (begin, operand): (Tensor<f64>, Option<(usize, Vec<f64>)>),
    ) -> Option<(Tensor<f64>, Vec<f32>)> {
        let (capture, e) = (self.capture(run), &self.all[run]);
        let tokens = capture.steps[index].tokens.len();
        let mut rows = operands(capture, index, (inputs, &e.oracle.graph.nodes), tokens)?;
        if let Some((i, data)) = operand {
            rows[i].data = Some(data).filter(|data| data.len() == rows[i].data.len())?;
        }
        rows.push(begin);
        let source = e.parameters();
        let context = Context { tokens: &[], positions: &[], history: &[], source: &source, weights: &node.weights };
        Some(ops::forward_with_bound(&node.op, &rows.iter().collect::<Vec<_>>(), &context))
    }

    /// The rows before a group in its pass, as many as a window has, behind the window of another group.
    fn line(
        &self, fed: &Fed, (group, inputs): (usize, &[usize]), (behind, window): (usize, StageId),
    ) -> Option<Tensor<f64>> {
        let (&[rows], &(run, index)) = (inputs, fed.of.get(behind)?) else { return None };
        let first = before(self.capture(run), index, window)?;
        let (held, mut line) = (first.data.len(), first.data.clone());
        for &(run, index) in fed.of[..group].iter().filter(|_| group > 0) {
            let rows = self.all[run].oracle.graph.nodes[rows].id;
            line.extend(self.capture(run).steps[index].get(rows)?.data.iter().map(|v| f64::from(*v)));
        }
        (group > 0).then(|| Tensor { shape: first.shape, data: line.split_off(line.len() - held) })
    }

    /// What each group is that begins otherwise. `None` if it is too much work.
    fn begun(&self, (node, inputs, state): (&Node, &[usize], StageId), start: Start) -> Option<Made> {
        let mut made = Made::new();
        for (number, fed) in self.fed.iter().enumerate() {
            let each = each(&fed.pass);
            for (group, &(run, index)) in fed.of.iter().enumerate() {
                let of = |other: usize| before(self.capture(fed.of[other].0), fed.of[other].1, state);
                let begin = match start {
                    Start::Before => group.checked_sub(1).and_then(|other| {
                        let left = self.capture(fed.of[other].0).steps[fed.of[other].1].get(state)?;
                        Some(left.wide())
                    }),
                    Start::Line => self.line(fed, (group, inputs), (0, state)),
                    Start::Above => self.line(fed, (group, inputs), (group, state)),
                    Start::Zeros if fed.pass.0[group].first == 0 => None,
                    Start::Zeros => of(group).map(|own| Tensor::zeros(own.shape)),
                    Start::Of(map) => map.of(&each, group).filter(|other| *other != group).and_then(of),
                };
                let Some(begin) = begin else { continue };
                let tokens = self.capture(run).steps[index].tokens.len();
                self.meter.count(16 * tokens as u64 * begin.data.len() as u64);
                if self.meter.over() {
                    return None;
                }
                made.extend(self.from((node, inputs), (run, index), (begin, None)).map(|y| ((number, group), y)));
            }
        }
        Some(made)
    }
}
