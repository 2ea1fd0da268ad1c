//! Rows that are made of other rows of the pass, or of what a buffer held before, and rows at other positions.

use super::super::pass::{Group, Position, conditions};
use super::super::siblings::Runs;
use super::super::solve::coded_by;
use super::super::spots::Told;
use super::stages::{At, Fed, Instead, OF_ROWS, Stages, plain, told};
use qdiff_engine::model::{Node, Role, row_len};
use qdiff_engine::ops::{Anatomy, Tensor};
use qdiff_engine::quant::ActivationFormat;

/// How to mend rows that are not written.
const OF_UNWRITTEN: &str = "write the row of every token of a pass: look at how many rows the kernel is launched for, and which of them it skips";

/// How to mend rows of earlier passes.
const OF_BUFFERS: &str = "copy what every pass needs, as many rows as it has, before its kernels run: look at buffers of recorded launches, and at the \
                          tokens that a sequence keeps when it takes some back";

/// How to mend positions.
const OF_POSITIONS: &str = "positions go on from the tokens that a sequence has: look at how they are counted in passes of several sequences, in \
                            chunks, and after tokens were taken back";

/// Rows that are made of other rows of the pass: the whole row, one operand, or the position.
pub(super) fn rows(node: &Node, runs: Runs<'_>) -> Option<Told> {
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
            fits.extend(stages.fitting(conditions(), &format!("{what} {map}"), rule)?);
        }
        if !fits.is_empty() {
            break;
        }
    }
    if fits.is_empty() && coded {
        let rule = |at: At, head: usize| -> Option<Instead> { Some(stages.coded_by_pass(node, (at, head))) };
        let words = "each block is coded by the largest scale that it has in a row of the pass, of whichever sequence";
        fits.extend(stages.fitting(conditions(), words, rule)?);
    }
    if fits.is_empty() {
        return stale(node, &stages);
    }
    told(fits, OF_ROWS)
}

/// Rows that are not written, or hold what a buffer held before: the row of the pass before, or of the token that its sequence took back.
fn stale(node: &Node, stages: &Stages<'_>) -> Option<Told> {
    let zeros = |at: At, head: usize| -> Option<Instead> {
        let (_, want) = stages.right(at, head, false)?;
        Some(Some((vec![0.0; want.len()], vec![0.0; want.len()])))
    };
    let mut fits = stages.fitting(conditions(), "each row is zeros: it is not written", zeros)?;
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
        fits.extend(stages.fitting(conditions(), &format!("each row is still {words}"), rule)?);
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
pub(super) fn sorted(node: &Node, runs: Runs<'_>) -> Option<Told> {
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

/// Rows that are rotated by other positions.
pub(super) fn turned(node: &Node, runs: Runs<'_>) -> Option<Told> {
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
        fits.extend(stages.fitting(position.conditions(), &format!("each row is rotated by {position}"), rule)?);
    }
    told(fits, OF_POSITIONS)
}

impl Stages<'_> {
    /// A row of a cache whose blocks are coded by the largest values that they have in a row of the pass.
    fn coded_by_pass(&self, node: &Node, (at, head): (At, usize)) -> Instead {
        let input = *node.inputs.first()?;
        let own = self.operand(input, at)?;
        let mut most = vec![0f32; own.data.len()];
        let pass = &self.fed[at.0].pass;
        for (group, number) in (0..pass.rows()).filter_map(|row| pass.at(row)) {
            let other = self.operand(input, (at.0, group, number))?;
            most.iter_mut().zip(&other.data).for_each(|(most, v)| *most = most.max(v.abs() as f32));
        }
        let (run, rows) = self.rows_of(at, false)?;
        let n = self.all[run].rows[*rows.get(head)?].range.len();
        let range = head * n..(head + 1) * n;
        let own: Vec<f32> = own.data.get(range.clone())?.iter().map(|v| *v as f32).collect();
        Some(coded_by(&own, most.get(range)?))
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
}
