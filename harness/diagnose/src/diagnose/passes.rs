//! What the rows of whole passes show: that a row is made of another row of its pass, that states are exchanged or not kept, and
//! that a convolution runs on from one sequence to the next.

use super::pass::{Group, Map, Pass, Position, When, conditions, told as told_of};
use super::resumed::{before, operands, parts};
use super::siblings::Runs;
use super::solve::coded_by;
use super::spots::{Shown, Told, rules};
use crate::capture::Capture;
use crate::verdict::{Evidence, RowAt, right, work_of};
use qdiff_engine::model::{Axis, Node, Role, StageId, row_len};
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, RowReduction, State};
use qdiff_engine::ops::{self, Anatomy, Attention, Context, Tensor, UNIT};
use qdiff_engine::quant::ActivationFormat;
use std::collections::BTreeMap;
use std::fmt;

/// How to mend rows that are exchanged.
const OF_ROWS: &str = "look at which row of a pass is taken for a token: the order of its sequences, the rows that are gathered \
                       from it, and where results are scattered to";

/// How to mend positions.
const OF_POSITIONS: &str = "positions go on from the tokens that a sequence has: look at how they are counted in passes of several sequences, in \
                            chunks, and after tokens were taken back";

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
    for (run, (searcher, _)) in runs.0.iter().enumerate() {
        let capture = searcher.subject.capture;
        for (index, step) in capture.steps.iter().enumerate().filter(|(index, _)| capture.is_own(*index)) {
            let at = step.in_pass?;
            let group = Group { sequence: step.whose.sequence, first: step.first, rows: step.tokens.len() };
            all.entry(at.number).or_default().push((at.before, run, index, group));
        }
    }
    let fed = |mut groups: Vec<(usize, usize, usize, Group)>| {
        groups.sort_by_key(|(before, ..)| *before);
        let pass = Pass(groups.iter().map(|(.., group)| *group).collect());
        let whole = groups.iter().enumerate().all(|(i, (before, ..))| pass.first_of(i) == *before);
        whole.then(|| Fed { pass, of: groups.iter().map(|(_, run, step, _)| (*run, *step)).collect() })
    };
    all.into_values().map(fed).collect()
}

/// The stage of all runs, with where its rows are.
struct Stages<'a> {
    all: Vec<Evidence<'a>>,
    /// The rows of each run, by step and position.
    rows: Vec<BTreeMap<(usize, usize), Vec<usize>>>,
    fed: Vec<Fed>,
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
        Some(Self { all, rows, fed })
    }

    /// The rules that say something of these passes.
    fn maps(&self) -> impl Iterator<Item = Map> {
        let most = self.fed.iter().map(|fed| fed.pass.rows()).max().unwrap_or(0);
        Map::all().filter(move |map| map.tile().is_none_or(|tile| tile < most))
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

    /// Whether what a rule says of some rows is there, and all other rows are right; at least one wrong row of each wrong pass is needed.
    fn agrees(&self, of_state: bool, rule: impl Fn(At, usize) -> Option<Instead>) -> bool {
        let (mut given, mut wrong) = (0, 0);
        let mut passes = std::collections::BTreeSet::new();
        for at in self.every(of_state) {
            let Some((run, rows)) = self.rows_of(at, of_state) else { continue };
            let e = &self.all[run];
            for (head, row) in rows.iter().map(|&i| &e.rows[i]).enumerate() {
                let Some(instead) = rule(at, head) else {
                    if row.bad {
                        return false;
                    }
                    continue;
                };
                let Some((value, reach)) = instead else { return false };
                let (got, _, bound) = e.row(row);
                if got.len() != value.len() || !(0..got.len()).all(|i| right(got[i], value[i], bound[i].max(reach[i])))
                {
                    return false;
                }
                given += got.len();
                wrong += usize::from(row.bad);
                if row.bad {
                    passes.insert(at.0);
                }
            }
        }
        // A row of a cache is seen again in later steps.
        let written = |e: &Evidence<'_>, row: &RowAt| {
            let step = &e.side.capture.steps[row.step];
            e.side.capture.is_own(row.step) && (step.first..step.keys()).contains(&row.place.position)
        };
        let bad: usize = self.all.iter().map(|e| e.bad_rows().filter(|row| written(e, row)).count()).sum();
        given >= LEAST && wrong > 0 && wrong == bad && passes.len() >= PASSES
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
fn told(fits: Vec<String>, remedy: &'static str) -> Option<Told> {
    let words = rules(&fits.iter().map(String::as_str).collect::<Vec<_>>());
    let shown = Shown { what: "a rule of passes".to_owned(), links: Vec::new(), fits };
    (!words.is_empty()).then_some(Told { words, remedy, shown })
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
        Anatomy::Contraction(Contraction::Scores(attention)) => queries(node, attention, runs),
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
            for when in When::ALL {
                if runs.0[0].0.meter.over() {
                    return None;
                }
                let rule = |at: At, head: usize| -> Option<Instead> {
                    let pass = &stages.fed[at.0].pass;
                    if !when.has(pass, (at.1, at.2)) {
                        return None;
                    }
                    let row = pass.first_of(at.1) + at.2;
                    let from = map.of(pass, row)?;
                    // By its own scale as it is stored a row may have other codes.
                    if from == row && !matches!(take, Takes::Scale) {
                        return None;
                    }
                    let (group, number) = pass.at(from)?;
                    let from = (at.0, group, number);
                    Some(match take {
                        Takes::Row => stages.right(from, head, false),
                        Takes::Operand(i) => {
                            let other = stages.operand(node.inputs[i], from);
                            other.and_then(|other| stages.made(node, (at, head), (Some((i, other)), None)))
                        }
                        Takes::Scale => stages.coded(node, (at, head), from),
                    })
                };
                if stages.agrees(false, rule) {
                    let what = match take {
                        Takes::Row => "each row is".to_owned(),
                        Takes::Scale => "each block is coded by the scale that it has in".to_owned(),
                        Takes::Operand(i) => format!("each row takes the {} of", nodes[node.inputs[i]].id.name),
                    };
                    fits.push(format!("{what} {map}, {when}"));
                    // Narrower conditions of the same rule fit as well.
                    break;
                }
            }
        }
        if !fits.is_empty() {
            break;
        }
    }
    told(fits, OF_ROWS)
}

/// Choices of experts whose values are in the order of the experts' numbers, or put back from it wrongly.
fn sorted(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let graph = &runs.0[0].0.oracle.graph;
    let k = row_len(node);
    let chosen = graph.nodes.iter().position(|other| {
        let of_layer = (other.id.layer, other.id.rank) == (node.id.layer, node.id.rank);
        of_layer && matches!(other.op.anatomy(), Anatomy::Decision(_)) && other.role == Role::Router
    })?;
    let picks = row_len(&graph.nodes[chosen]);
    let of_operand = node.inputs.iter().position(|i| *i != chosen && row_len(&graph.nodes[*i]) == picks);
    let operand = if k == picks { None } else { Some(of_operand.filter(|_| node.weights.is_empty())?) };
    let stages = Stages::of(node, runs)?;
    // Of each pass, the choice whose value another one has: in either direction.
    let orders = |back: bool| -> Option<Vec<Vec<usize>>> {
        let of = |(pass, fed): (usize, &Fed)| {
            let rows =
                (0..fed.pass.rows()).map(|r| fed.pass.at(r).and_then(|(g, n)| stages.operand(chosen, (pass, g, n))));
            let experts: Vec<f64> = rows.collect::<Option<Vec<_>>>()?.into_iter().flat_map(|row| row.data).collect();
            let mut order: Vec<usize> = (0..experts.len()).collect();
            order.sort_by(|a, b| experts[*a].total_cmp(&experts[*b]));
            let mut put_back = vec![0; order.len()];
            order.iter().enumerate().for_each(|(i, from)| put_back[*from] = i);
            Some(if back { put_back } else { order })
        };
        stages.fed.iter().enumerate().map(of).collect()
    };
    let mut fits = Vec::new();
    for back in [false, true] {
        let orders = orders(back)?;
        for when in When::ALL {
            let rule = |at: At, head: usize| -> Option<Instead> {
                let pass = &stages.fed[at.0].pass;
                let first = (pass.first_of(at.1) + at.2) * picks;
                let from = orders[at.0].get(first..first + picks)?;
                let moves = from.iter().enumerate().any(|(i, from)| *from != first + i);
                if !moves || !when.has(pass, (at.1, at.2)) {
                    return None;
                }
                let value = |from: usize| -> Option<(f64, f32)> {
                    let (group, number) = pass.at(from / picks)?;
                    let there = (at.0, group, number);
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
            if stages.agrees(false, rule) {
                let what = match operand {
                    None => "the values of the pass's choices are".to_owned(),
                    Some(i) => format!("the {} of the pass's choices are taken", graph.nodes[node.inputs[i]].id.name),
                };
                let how = if back {
                    "as if they were in the order of the experts' numbers, and put back from it"
                } else {
                    "in the order of the experts' numbers, and not put back"
                };
                fits.push(format!("{what} {how}, {when}"));
                break;
            }
        }
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
        for when in When::ALL {
            if runs.0[0].0.meter.over() {
                return None;
            }
            let rule = |at: At, head: usize| -> Option<Instead> {
                let pass = &stages.fed[at.0].pass;
                if !when.has(pass, (at.1, at.2)) {
                    return None;
                }
                let row = pass.first_of(at.1) + at.2;
                let from = map.of(pass, row).filter(|from| *from != row)?;
                let (group, number) = pass.at(from)?;
                Some(stages.scores((queries, nodes[cache].id), a, (at, head), (at.0, group, number)))
            };
            if stages.agrees(false, rule) {
                fits.push(format!("each row takes the query of {map}, {when}"));
                break;
            }
        }
    }
    told(fits, OF_ROWS)
}

/// Rows that are rotated by other positions.
fn turned(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    let mut fits = Vec::new();
    for position in Position::all() {
        for condition in conditions() {
            if runs.0[0].0.meter.over() {
                return None;
            }
            let rule = |at: At, head: usize| -> Option<Instead> {
                let pass = &stages.fed[at.0].pass;
                let row = pass.first_of(at.1) + at.2;
                let own = pass.0[at.1].first + at.2;
                let other = position.of(pass, row).filter(|other| *other != own)?;
                let holds = condition.iter().all(|when| when.has(pass, (at.1, at.2)));
                holds.then(|| stages.made(node, (at, head), (None, Some(other))))
            };
            if stages.agrees(false, rule) {
                fits.push(format!("each row is rotated by {position}, {}", told_of(condition)));
                break;
            }
        }
    }
    told(fits, OF_POSITIONS)
}

impl Stages<'_> {
    /// The operand of a token alone, if the step has a row of it for each token.
    fn operand(&self, node: usize, (pass, group, number): At) -> Option<Tensor<f64>> {
        let (run, index) = self.fed[pass].of[group];
        let step = &self.capture(run).steps[index];
        let rows = step.get(self.all[run].oracle.graph.nodes[node].id)?;
        if rows.shape.first() != Some(&step.tokens.len()) {
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
        // Nobody looks at keys that the query may not see.
        reach.iter_mut().skip(row.place.position + 1).for_each(|reach| *reach = f32::INFINITY);
        for k in 0..value.len().min(row.place.position + 1) {
            let key = keys.row(k).get(a.kv_head(head) * a.head_dim..)?;
            let products = || q.iter().zip(key).map(|(q, k)| q * f64::from(*k));
            value[k] = products().sum();
            reach[k] = reach[k].max((4.0 * UNIT * products().map(f64::abs).sum::<f64>()) as f32);
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

/// Rows of a state as they lie in a step.
fn as_left(e: &Evidence<'_>, row: &RowAt) -> Instead {
    let state = before(e.side.capture, row.step, e.node.id)?;
    let value = state.data.get(row.range.clone())?.to_vec();
    Some((value.clone(), vec![0.0; value.len()]))
}

/// States that are stored as those of other sequences of the pass, or are not stored.
fn states(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let stages = Stages::of(node, runs)?;
    let mut fits = Vec::new();
    for when in When::ALL {
        let rule = |at: At, head: usize| -> Option<Instead> {
            let pass = &stages.fed[at.0].pass;
            let (run, rows) = stages.rows_of(at, true)?;
            let e = &stages.all[run];
            when.has(pass, (at.1, at.2)).then(|| as_left(e, &e.rows[*rows.get(head)?]))
        };
        if stages.agrees(true, rule) {
            fits.push(format!("the state is not stored {when}: it stays what it was before the pass"));
            break;
        }
    }
    for map in stages.maps() {
        for when in When::ALL {
            let rule = |at: At, head: usize| -> Option<Instead> {
                let pass = &stages.fed[at.0].pass;
                // Each sequence has one state.
                let each = Pass(
                    pass.0
                        .iter()
                        .map(|group| Group { rows: 1, first: group.first + group.rows - 1, ..*group })
                        .collect(),
                );
                if !when.has(pass, (at.1, at.2)) {
                    return None;
                }
                let from = map.of(&each, at.1)?;
                (from != at.1).then(|| stages.right((at.0, from, 0), head, true))
            };
            if stages.agrees(true, rule) {
                let of = of_sequences(map);
                fits.push(format!("the state of a sequence is stored as another's, {when}: each has the one of {of}"));
                break;
            }
        }
    }
    told(fits, OF_STATES)
}

/// What the rows of a sequence begin with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// The state that the sequence before it leaves in the pass.
    Before,
    /// The rows before it in the pass, whosever they are.
    Line,
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
            Self::Zeros => f.write_str("a state of zeros"),
            Self::Of(map) => {
                write!(f, "the state that another sequence had before the pass: that of {}", of_sequences(*map))
            }
        }
    }
}

/// A rule for the sequences of a pass, of which each has one row.
fn of_sequences(map: Map) -> String {
    map.to_string().replace("row r", "sequence r").replace("rows", "sequences").replace("row", "sequence")
}

/// Recurrent rows and states that begin with other states of the pass.
fn begins(node: &Node, runs: Runs<'_>) -> Option<Told> {
    let nodes = &runs.0[0].0.oracle.graph.nodes;
    let (inputs, state) = parts(node, nodes)?;
    let stages = Stages::of(node, runs)?;
    let of_state = node.is_own_state();
    let mut fits = Vec::new();
    for start in [Start::Before, Start::Line, Start::Zeros].into_iter().chain(stages.maps().map(Start::Of)) {
        let made = stages.begun((node, inputs, state.id), start, runs)?;
        for when in When::ALL {
            let rule = |at: At, head: usize| -> Option<Instead> {
                let has = when.has(&stages.fed[at.0].pass, (at.1, at.2));
                let (y, bound) = made.get(&(at.0, at.1)).filter(|_| has)?;
                Some(stages.part(of_state, (at, head), (y, bound)))
            };
            if stages.agrees(of_state, rule) {
                fits.push(format!("the rows of a sequence begin with {start}, {when}"));
                break;
            }
        }
    }
    told(fits, OF_BEGINNINGS)
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

    /// What a group is if it begins with this state.
    fn from(
        &self, (node, inputs): (&Node, &[usize]), (run, index): (usize, usize), begin: Tensor<f64>,
    ) -> Option<(Tensor<f64>, Vec<f32>)> {
        let (capture, e) = (self.capture(run), &self.all[run]);
        let tokens = capture.steps[index].tokens.len();
        let mut rows = operands(capture, index, (inputs, &e.oracle.graph.nodes), tokens)?;
        rows.push(begin);
        let source = e.parameters();
        let context = Context { tokens: &[], positions: &[], history: &[], source: &source, weights: &node.weights };
        Some(ops::forward_with_bound(&node.op, &rows.iter().collect::<Vec<_>>(), &context))
    }

    /// The rows before a group in its pass, as many as a window has, behind the window of the first group.
    fn line(&self, fed: &Fed, (group, inputs): (usize, &[usize]), window: StageId) -> Option<Tensor<f64>> {
        let (&[rows], &(run, index)) = (inputs, fed.of.first()?) else { return None };
        let first = before(self.capture(run), index, window)?;
        let (held, mut line) = (first.data.len(), first.data.clone());
        for &(run, index) in fed.of[..group].iter().filter(|_| group > 0) {
            let rows = self.all[run].oracle.graph.nodes[rows].id;
            line.extend(self.capture(run).steps[index].get(rows)?.data.iter().map(|v| f64::from(*v)));
        }
        (group > 0).then(|| Tensor { shape: first.shape, data: line.split_off(line.len() - held) })
    }

    /// What each group is that begins otherwise. `None` if it is too much work.
    fn begun(&self, (node, inputs, state): (&Node, &[usize], StageId), start: Start, runs: Runs<'_>) -> Option<Made> {
        let mut made = Made::new();
        for (number, fed) in self.fed.iter().enumerate() {
            let each = Pass(fed.pass.0.iter().map(|group| Group { rows: 1, ..*group }).collect());
            for (group, &(run, index)) in fed.of.iter().enumerate() {
                let of = |other: usize| before(self.capture(fed.of[other].0), fed.of[other].1, state);
                let begin = match start {
                    Start::Before => group.checked_sub(1).and_then(|other| {
                        let left = self.capture(fed.of[other].0).steps[fed.of[other].1].get(state)?;
                        Some(left.wide())
                    }),
                    Start::Line => self.line(fed, (group, inputs), state),
                    Start::Zeros if fed.pass.0[group].first == 0 => None,
                    Start::Zeros => of(group).map(|own| Tensor::zeros(own.shape)),
                    Start::Of(map) => map.of(&each, group).filter(|other| *other != group).and_then(of),
                };
                let Some(begin) = begin else { continue };
                let tokens = self.capture(run).steps[index].tokens.len();
                runs.0[0].0.meter.count(16 * tokens as u64 * begin.data.len() as u64);
                if runs.0[0].0.meter.over() {
                    return None;
                }
                made.extend(self.from((node, inputs), (run, index), begin).map(|y| ((number, group), y)));
            }
        }
        Some(made)
    }
}
