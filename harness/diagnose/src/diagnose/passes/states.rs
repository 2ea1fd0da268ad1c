//! States that are exchanged or not kept, what the rows of a sequence begin with, and the rows that a state is made of.

use super::super::pass::{Fit, Group, Map, Numbers, Pass, conditions};
use super::super::resumed::{before, operands, parts};
use super::super::siblings::Runs;
use super::super::spots::Told;
use super::stages::{At, Fed, Instead, OF_ROWS, Stages, plain, told};
use qdiff_engine::model::{Node, StageId};
use qdiff_engine::ops::{self, Context, Tensor};
use std::collections::BTreeMap;
use std::fmt;

/// How to mend what a state begins with.
const OF_BEGINNINGS: &str = "begin the rows of each sequence of a pass with its own state, which is zero where the sequence begins: look at where the \
                             kernel takes the state from at the first row of a sequence";

/// How to mend states.
const OF_STATES: &str = "store the state of each sequence of a pass as that sequence's, in every pass: look at the indices of states that \
                         the kernel is given";

/// States that are stored as those of other sequences of the pass, or are not stored.
pub(super) fn states(node: &Node, runs: Runs<'_>) -> Option<Told> {
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
    /// The state that was last left by a sequence at the same place in its pass.
    Place,
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
            Self::Place => f.write_str(
                "the state that the last sequence at the same place in a pass left: states are kept by the place in the pass, and not by sequence",
            ),
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
pub(super) fn begins(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    let (inputs, state) = parts(node, nodes)?;
    let stages = Stages::of(node, runs)?;
    let of_state = node.is_own_state();
    let mut fits = Vec::new();
    let plain_starts = [Start::Before, Start::Line, Start::Above, Start::Zeros, Start::Place];
    let fitting = |start: Start| -> Option<Vec<Fit>> {
        let made = stages.begun((node, inputs, state.id), start)?;
        let rule = |at: At, head: usize| -> Option<Instead> {
            let (y, bound) = made.get(&(at.0, at.1))?;
            Some(stages.part(of_state, (at, head), (y, bound)))
        };
        stages.fitting(plain(), &format!("the rows of a sequence begin with {start}"), rule)
    };
    for start in plain_starts {
        fits.extend(fitting(start)?);
    }
    if fits.is_empty()
        && of_state
        && let Some(told) = counted_otherwise((node, inputs, state.id), &stages)
    {
        return Some(told);
    }
    for start in stages.maps_of_sequences().map(Start::Of) {
        fits.extend(fitting(start)?);
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
                    let y = stages.from(
                        (node, inputs),
                        (run, index),
                        (begin, Some(&|all: &mut [Tensor<f64>]| all[i].data = rows.concat())),
                    );
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

/// How to mend states that are made of fewer or of more rows.
const OF_COUNTS: &str = "update the state of a sequence by its own rows, each of them once: look at what a kernel does with the rows that a tile or a \
                         chunk leaves over, and with those that fill one up";

/// States that are made of fewer rows than their sequence has in the pass, or of its last one again.
fn counted_otherwise((node, inputs, state): (&Node, &[usize], StageId), stages: &Stages<'_>) -> Option<Told> {
    let mut fits = Vec::new();
    let rows_of = |tensor: &Tensor<f64>| tensor.shape.first().copied().unwrap_or(0);
    for (m, more) in [2usize, 4, 8, 16, 32, 64].into_iter().flat_map(|m| [(m, false), (m, true)]) {
        let change = |all: &mut [Tensor<f64>]| {
            for tensor in all {
                let n = rows_of(tensor);
                let width = tensor.data.len() / n.max(1);
                let count = if more { n.next_multiple_of(m) } else { n / m * m };
                let last = tensor.data[(n - 1) * width..].to_vec();
                tensor.data.truncate(count * width);
                (n..count).for_each(|_| tensor.data.extend(&last));
                tensor.shape[0] = count;
            }
        };
        let mut made = Made::new();
        for (number, fed) in stages.fed.iter().enumerate() {
            for (group, &(run, index)) in fed.of.iter().enumerate() {
                let n = fed.pass.0[group].rows;
                let Some(begin) = before(stages.capture(run), index, state).filter(|_| n % m != 0) else { continue };
                stages.meter.count(16 * n.next_multiple_of(m) as u64 * begin.data.len() as u64);
                if stages.meter.over() {
                    return None;
                }
                // Of no row the state stays what it was.
                let y = match n < m && !more {
                    true => Some((begin.clone(), vec![0.0; begin.data.len()])),
                    false => stages.from((node, inputs), (run, index), (begin, Some(&change))),
                };
                made.extend(y.map(|y| ((number, group), y)));
            }
        }
        let rule = |at: At, head: usize| -> Option<Instead> {
            let (y, bound) = made.get(&(at.0, at.1))?;
            Some(stages.part(true, (at, head), (y, bound)))
        };
        let words = match more {
            true => {
                format!("the last row of a sequence updates its state again, until its rows fill whole tiles of {m}")
            }
            false => format!(
                "the state is updated by whole chunks of {m} rows alone: the rows that are left over do not change it"
            ),
        };
        fits.extend(stages.fitting(conditions(), &words, rule)?);
    }
    told(fits, OF_COUNTS)
}

/// What each group of each pass is made of, with bounds.
type Made = BTreeMap<(usize, usize), (Tensor<f64>, Vec<f32>)>;

/// What becomes of operands.
type Change<'a> = &'a dyn Fn(&mut [Tensor<f64>]);

impl Stages<'_> {
    /// The rows of a token, or of a state, of what its step is made of.
    fn part(&self, of_state: bool, (at, head): (At, usize), (y, bound): (&Tensor<f64>, &[f32])) -> Instead {
        let (run, rows) = self.rows_of(at, of_state)?;
        let range = self.all[run].rows[*rows.get(head)?].range.clone();
        Some((y.data.get(range.clone())?.to_vec(), bound.get(range)?.to_vec()))
    }

    /// What a group is if it begins with this state, and its operands are changed.
    fn from(
        &self, (node, inputs): (&Node, &[usize]), (run, index): (usize, usize),
        (begin, change): (Tensor<f64>, Option<Change<'_>>),
    ) -> Option<(Tensor<f64>, Vec<f32>)> {
        let (capture, e) = (self.capture(run), &self.all[run]);
        let tokens = capture.steps[index].tokens.len();
        let mut rows = operands(capture, index, (inputs, &e.oracle.graph.nodes), tokens)?;
        change.into_iter().for_each(|change| change(&mut rows));
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
                    Start::Place if fed.pass.0[group].first == 0 => None,
                    Start::Place => {
                        let last = self.fed[..number].iter().rev().find_map(|fed| fed.of.get(group));
                        let left =
                            |&(run, index): &(usize, usize)| Some(self.capture(run).steps[index].get(state)?.wide());
                        match last {
                            Some(last) => left(last),
                            None => of(group).map(|own| Tensor::zeros(own.shape)),
                        }
                    }
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
