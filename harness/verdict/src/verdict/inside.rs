//! The values at the end of a segment if some of its nodes compute otherwise.
//!
//! The segment is evaluated once as it should be. Each way to be otherwise is then evaluated from the first node on that
//! differs: on all tokens as far as tokens see each other, and after that only on the requested rows.

use super::apply::{State, apply};
use super::counted::work_in;
use super::operands::{Expected, Side, Valued};
use super::segment::{Plan, plan};
use super::source::{Computed, Source, Stage, put};
use crate::arithmetic::Arithmetic;
use crate::capture::{Capture, Step};
use crate::oracle::Oracle;
use qdiff_engine::model::fault::FaultyWeights;
use qdiff_engine::model::{Node, WeightSource};
use qdiff_engine::ops::anatomy::Elementwise;
use qdiff_engine::ops::{Anatomy, Tensor};
use qdiff_engine::quant::SomeRows;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};

/// Elements that a segment may have.
const ELEMENTS: usize = 1 << 25;

/// Nodes in the place of those of the graph, by index.
pub type Otherwise = BTreeMap<usize, Node>;

/// A segment as it should be.
pub struct Inside<'a> {
    oracle: &'a Oracle<'a>,
    node: &'a Node,
    capture: &'a Capture,
    arithmetic: &'a Arithmetic,
    plan: Plan,
    right: Computed<'a>,
}

/// Some rows of the captured tensors around a segment.
pub struct Rows {
    /// They alone.
    pub(crate) capture: Capture,
    /// Which of its rows, step by step.
    chosen: Vec<Vec<usize>>,
}

/// The rows of these positions, of these stages.
pub(super) fn part(capture: &Capture, nodes: &[&Node], positions: &BTreeSet<usize>) -> Capture {
    let mut all = capture.sibling();
    for step in &capture.steps {
        let rows: Vec<usize> =
            (0..step.rows()).filter(|&r| positions.contains(&(step.first + step.offset(r)))).collect();
        let mut less = Step {
            kept: Some(rows.iter().map(|&r| step.offset(r)).collect()),
            last_row: step.last_row.clone(),
            ..step.bare()
        };
        for node in nodes {
            let Some(stored) = step.stages.get(&node.id) else {
                continue;
            };
            let axis = node.token_axis().filter(|a| stored.shape().get(*a) == Some(&step.rows()));
            let tensor = match axis {
                Some(_) if rows.is_empty() => continue,
                Some(axis) => stored.parts(axis, &rows.iter().map(|&r| r..r + 1).collect::<Vec<_>>()),
                None => stored.get().into_owned(),
            };
            less.stages.insert(node.id, capture.store.keep(tensor));
        }
        all.steps.push(less);
    }
    all
}

/// Whether a token's values are made of other tokens'.
fn crosses(node: &Node) -> bool {
    node.op.anatomy().crosses_tokens()
}

impl<'a> Inside<'a> {
    /// The segment that ends in `node`; `None` where its operands were captured, or where it is too large to be kept.
    pub fn of(node: &'a Node, oracle: &'a Oracle<'a>, side: Side<'a>) -> Option<Self> {
        let plan = plan(node, &oracle.graph, side.capture);
        let elements = |i: &usize| -> usize {
            let steps = side.capture.steps.iter();
            steps.map(|step| step.extent(&oracle.graph.nodes[*i]).iter().product::<usize>()).sum()
        };
        if plan.is_empty() || plan.keys().map(elements).sum::<usize>() > ELEMENTS {
            return None;
        }
        let (capture, arithmetic) = (side.capture, side.arithmetic);
        let mut inside = Self { oracle, node, capture, arithmetic, plan, right: Computed::default() };
        let mut right = Computed::default();
        for &index in inside.plan.keys() {
            let values = inside.evaluated(&oracle.graph.nodes[index], inside.steps(index), capture, &right);
            right.own.insert(index, values);
        }
        inside.right = right;
        Some(inside)
    }

    /// Nodes that the segment is made of, the last one included.
    pub fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.plan.keys().copied().chain(self.oracle.graph.index(self.node.id))
    }

    /// The capture with the stages inside of the segment as they should be.
    pub fn filled(&self) -> Capture {
        let (graph, mut all) = (&self.oracle.graph, self.capture.sibling());
        let nodes: BTreeSet<usize> =
            self.nodes().flat_map(|i| graph.nodes[i].inputs.clone()).chain(self.nodes()).collect();
        for (index, step) in self.capture.steps.iter().enumerate() {
            let mut own = Step { kept: step.kept.clone(), last_row: step.last_row.clone(), ..step.bare() };
            for &i in &nodes {
                let id = graph.nodes[i].id;
                let right = || self.right.get(i)?.get(index)?.as_ref().map(|(value, _)| value.narrow());
                let tensor = step.stages.get(&id).map(|stored| stored.get().into_owned()).or_else(right);
                own.stages.extend(tensor.map(|tensor| (id, self.capture.store.keep(tensor))));
            }
            all.steps.push(own);
        }
        all
    }

    /// The rows of these positions.
    pub fn rows(&self, positions: &BTreeSet<usize>) -> Rows {
        let graph = &self.oracle.graph;
        let operands = self.nodes().flat_map(|i| &graph.nodes[i].inputs).map(|&i| &graph.nodes[i]);
        let nodes: Vec<&Node> = operands.chain([self.node]).collect();
        let chosen = self.capture.steps.iter().map(|step| {
            (0..step.rows()).filter(|&r| positions.contains(&(step.first + step.offset(r)))).collect::<Vec<_>>()
        });
        Rows { chosen: chosen.collect(), capture: part(self.capture, &nodes, positions) }
    }

    /// What the last node gives with `others` in the place of nodes of the graph: of all rows, or of some.
    pub fn with(&self, others: &Otherwise, some: Option<&Rows>) -> Expected {
        let graph = &self.oracle.graph;
        let node = |i: usize| others.get(&i).unwrap_or(&graph.nodes[i]);
        let mut differ = self.differ(others);
        let Some(last) = differ.pop_last() else { return self.nothing() };
        let end = if crosses(node(last)) { Some(last) } else { differ.iter().copied().rfind(|&i| crosses(node(i))) };
        let of_all = |i: usize| some.is_none() || end.is_some_and(|end| i <= end);
        let values = self.up_to(others, differ.iter().copied().filter(|&i| of_all(i)));
        let all_steps = || (0..self.capture.steps.len()).collect();
        let Some(rows) = some.filter(|_| !of_all(last)) else {
            let whole = self.evaluated(node(last), all_steps(), self.capture, &values);
            return some.map_or_else(|| whole.clone(), |rows| rows.of(self.node, &whole));
        };
        let rest: Vec<usize> = differ.iter().copied().filter(|&i| !of_all(i)).chain([last]).collect();
        let mut few = Computed::default();
        for i in self.read_by(&rest) {
            if let Some(known) = values.get(i) {
                few.own.insert(i, rows.of(&graph.nodes[i], known));
            }
        }
        self.rest(node, &rest, &rows.capture, few)
    }

    /// The last node that sees other tokens.
    fn end(&self) -> Option<usize> {
        self.nodes().filter(|&i| crosses(&self.oracle.graph.nodes[i])).max()
    }

    /// Multiply-adds that evaluating a way takes, on all tokens.
    pub fn work(&self, others: &Otherwise) -> u64 {
        let steps: Vec<&Step> = self.capture.steps.iter().collect();
        let nodes = &self.oracle.graph.nodes;
        self.differ(others).iter().map(|&i| work_in(&nodes[i], self.oracle, &steps)).sum()
    }

    /// The same of one row, up to the last node that sees other tokens on all of them.
    pub fn work_of_one(&self, others: &Otherwise) -> u64 {
        let (end, nodes) = (self.end(), &self.oracle.graph.nodes);
        let steps: Vec<&Step> = self.capture.steps.iter().collect();
        let rows = steps.iter().map(|step| step.rows() as u64).sum::<u64>().max(1);
        let of = |&i: &usize| match work_in(&nodes[i], self.oracle, &steps) {
            all if Some(i) <= end => all,
            all => all / rows,
        };
        self.differ(others).iter().map(of).sum()
    }

    /// Whether the last node sees one token alone, so that [`Self::many`] gives its values.
    pub fn ends_token_by_token(&self) -> bool {
        !crosses(self.node)
    }

    /// Whether nodes differ only up to the last that sees other tokens.
    pub fn is_early(&self, others: &Otherwise) -> bool {
        self.ends_token_by_token() && self.end().is_some_and(|end| others.keys().all(|&i| i <= end))
    }

    /// What the last node gives in one row, of step `step`, for each of several ways; nothing of those that need what is
    /// not at hand. Nodes that ways leave as they are take one pass over their weights for all of these ways. With
    /// `some`, only these columns, and nothing for ways that make the last layer alone.
    pub fn many(
        &self, ways: &[&Otherwise], (step, row): (usize, usize), some: Option<&Range<usize>>,
    ) -> Vec<Option<Valued>> {
        let graph = &self.oracle.graph;
        let end = self.end();
        let rest: Vec<usize> = self.nodes().filter(|&i| Some(i) > end).collect();
        let of = &self.capture.steps[step];
        let read: Vec<usize> = self.read_by(&rest).filter(|&i| !of.stages.contains_key(&graph.nodes[i].id)).collect();
        let before = |others: &Otherwise| -> Option<HashMap<usize, Valued>> {
            let values = self.up_to(others, self.differ(others).into_iter().filter(|&i| Some(i) <= end));
            let cut = |&i: &usize| {
                let (value, bound) = values.get(i)?[step].as_ref()?;
                let width = value.row_len();
                let at = row * width..(row + 1) * width;
                let value = Tensor { shape: vec![1, width], data: value.data.get(at.clone())?.to_vec() };
                Some((i, (value, bound[at].to_vec())))
            };
            read.iter().map(cut).collect()
        };
        let by_columns = some.map_or_else(Vec::new, |_| self.by_columns(&rest));
        // Another op may read more than its column.
        let cut =
            |i: usize, node: &Node| node.faults.compute.is_none() && node.op.anatomy() == graph.nodes[i].op.anatomy();
        let told = |others: &Otherwise| by_columns.iter().all(|&i| others.get(&i).is_none_or(|node| cut(i, node)));
        let mut known: Vec<Option<HashMap<usize, Valued>>> =
            ways.iter().map(|others| told(others).then(|| before(others)).flatten()).collect();
        for i in rest {
            // Of ways that know all that the node is made of.
            let going: Vec<usize> = (0..ways.len()).filter(|&w| known[w].is_some()).collect();
            let (own, usual): (Vec<usize>, Vec<usize>) = going.into_iter().partition(|&w| ways[w].contains_key(&i));
            let at = |w: usize| known[w].as_ref().expect("it goes on");
            let some = some.filter(|_| by_columns.contains(&i));
            let all = self.rows_of(&graph.nodes[i], (of, row), &usual.iter().map(|&w| at(w)).collect::<Vec<_>>(), some);
            let alone = |w: usize| self.rows_of(&ways[w][&i], (of, row), &[at(w)], some)?.pop();
            let each: Vec<Option<Valued>> = own.par_iter().map(|&w| alone(w)).collect();
            let all = all.map_or_else(|| vec![None; usual.len()], |all| all.into_iter().map(Some).collect());
            for (w, made) in usual.into_iter().zip(all).chain(own.into_iter().zip(each)) {
                match (made, &mut known[w]) {
                    (Some(made), Some(known)) => drop(known.insert(i, made)),
                    (None, known) => *known = None,
                    (Some(_), None) => {}
                }
            }
        }
        let last = graph.index(self.node.id);
        known.into_iter().map(|known| known?.remove(&last?)).collect()
    }

    /// Nodes at the end of `rest` whose columns are made separately: the last layer, and a sum that it goes into.
    fn by_columns(&self, rest: &[usize]) -> Vec<usize> {
        let nodes = &self.oracle.graph.nodes;
        let plain = |i: usize| nodes[i].op.anatomy().is_layer();
        let of_layer = |i: &&usize| plain(**i);
        let sum = |i: usize| nodes[i].op.anatomy() == Anatomy::Elementwise(Elementwise::Sum);
        match rest {
            [.., last] if plain(*last) => vec![*last],
            [before @ .., last] if sum(*last) => {
                let read = nodes[*last].inputs.iter().filter(|i| before.last() == Some(i)).find(of_layer);
                read.into_iter().chain([last]).copied().collect()
            }
            _ => Vec::new(),
        }
    }

    /// What a node gives of one row of a step, where operands that were not captured are each of `known`: a row for each.
    /// Of `some` columns alone, where its operands may be of these alone as well.
    fn rows_of(
        &self, node: &Node, (of, row): (&Step, usize), known: &[&HashMap<usize, Valued>], some: Option<&Range<usize>>,
    ) -> Option<Vec<Valued>> {
        if known.is_empty() {
            return None;
        }
        let mut one = of.bare();
        one.kept = Some(vec![of.offset(row); known.len()]);
        let mut own: HashMap<usize, Expected> = HashMap::new();
        let layer = node.op.anatomy().multiplies_weights();
        let cut = some.filter(|_| !layer);
        for &i in &node.inputs {
            let input = &self.oracle.graph.nodes[i];
            if let Some(given) = of.stages.get(&input.id) {
                input.token_axis().filter(|axis| *axis == 0)?;
                let mut given = given.parts(0, &vec![row..row + 1; known.len()]);
                if let Some(some) = cut {
                    let rows = given.data.chunks(given.row_len());
                    let data = rows.flat_map(|row| row[some.clone()].iter().copied()).collect();
                    given = Tensor { shape: vec![known.len(), some.len()], data };
                }
                one.stages.insert(input.id, self.capture.store.keep(given));
                continue;
            }
            let (mut all, mut bounds): Valued = Default::default();
            for known in known {
                let (value, bound) = known.get(&i)?;
                let of = cut.filter(|some| value.data.len() != some.len()).cloned().unwrap_or(0..value.data.len());
                all.data.extend_from_slice(&value.data[of.clone()]);
                bounds.extend_from_slice(&bound[of]);
            }
            all.shape = vec![known.len(), all.data.len() / known.len()];
            own.insert(i, vec![Some((all, bounds))]);
        }
        let mut capture = self.capture.sibling();
        capture.steps.push(one);
        let computed = Computed { own, beneath: None };
        let some = some.filter(|_| layer);
        let (value, bound) = self.evaluated_in(node, vec![0], &capture, &computed, some).pop()??;
        let width = value.row_len();
        let rows = value.data.chunks(width).zip(bound.chunks(width));
        Some(rows.map(|(v, b)| (Tensor { shape: vec![1, width], data: v.to_vec() }, b.to_vec())).collect())
    }

    /// Nodes that differ with `others`: these, and those made of them.
    fn differ(&self, others: &Otherwise) -> BTreeSet<usize> {
        let mut differ: BTreeSet<usize> = BTreeSet::new();
        for i in self.nodes() {
            let inputs = &self.oracle.graph.nodes[i].inputs;
            if others.contains_key(&i) || inputs.iter().any(|input| differ.contains(input)) {
                differ.insert(i);
            }
        }
        differ
    }

    /// What is not among these nodes and goes into them.
    fn read_by<'s>(&'s self, nodes: &'s [usize]) -> impl Iterator<Item = usize> + 's {
        let inputs = nodes.iter().flat_map(|&i| &self.oracle.graph.nodes[i].inputs).copied();
        inputs.filter(|i| !nodes.contains(i)).collect::<BTreeSet<_>>().into_iter()
    }

    /// The values of nodes that differ, on all tokens.
    fn up_to(&self, others: &Otherwise, nodes: impl Iterator<Item = usize>) -> Computed<'_> {
        let mut values = Computed { beneath: Some(&self.right), ..Computed::default() };
        for i in nodes {
            let node = others.get(&i).unwrap_or(&self.oracle.graph.nodes[i]);
            let made = self.evaluated(node, self.steps(i), self.capture, &values);
            values.own.insert(i, made);
        }
        values
    }

    /// The last of `nodes`, which follow the known operands.
    fn rest<'n>(
        &self, node: impl Fn(usize) -> &'n Node, nodes: &[usize], capture: &Capture, mut known: Computed<'_>,
    ) -> Expected {
        let steps = || (0..capture.steps.len()).collect();
        let Some((&last, before)) = nodes.split_last() else { return self.nothing() };
        for &i in before {
            let made = self.evaluated(node(i), steps(), capture, &known);
            known.own.insert(i, made);
        }
        self.evaluated(node(last), steps(), capture, &known)
    }

    fn nothing(&self) -> Expected {
        self.capture.steps.iter().map(|_| None).collect()
    }

    /// The requested steps of a node; a state goes through all.
    fn steps(&self, index: usize) -> Vec<usize> {
        let has_state = self.oracle.graph.nodes[index].has_state();
        let wanted = &self.plan[&index];
        (0..wanted.len()).filter(|&s| has_state || wanted[s]).collect()
    }

    fn evaluated(&self, node: &Node, steps: Vec<usize>, capture: &Capture, computed: &Computed<'_>) -> Expected {
        self.evaluated_in(node, steps, capture, computed, None)
    }

    /// The same, of a layer in some columns alone.
    fn evaluated_in(
        &self, node: &Node, steps: Vec<usize>, capture: &Capture, computed: &Computed<'_>, some: Option<&Range<usize>>,
    ) -> Expected {
        let mut values: Expected = capture.steps.iter().map(|_| None).collect();
        let source: &dyn WeightSource = &self.oracle.weights;
        let faulty = node.faults.read.as_ref().map(|fault| FaultyWeights { source, fault: fault.as_ref() });
        let source = faulty.as_ref().map_or(source, |m| m);
        let some = some.map(|outputs| SomeRows { source, rows: outputs.clone() });
        let weights = some.as_ref().map_or(source, |s| s);
        let stage =
            Stage { node, graph: &self.oracle.graph, weights, products: self.oracle.products.judging(self.node.id) };
        let side = Side { capture, arithmetic: self.arithmetic };
        let source = Source {
            index: 0,
            side,
            steps,
            computed: Some(computed),
            resumes: node.id != self.node.id,
            filter: None,
            passed: None,
        };
        let flow = apply(stage, &[source], &mut State::new(), &mut |block| {
            // Attention over unknown rows cannot be evaluated.
            if block.known.is_none_or(|known| !known.contains(&false)) {
                put(node, block, &mut values);
            }
            ControlFlow::Continue(())
        });
        debug_assert!(flow.is_continue(), "nothing breaks off");
        values
    }
}

impl Rows {
    /// What `all` holds of them.
    pub(crate) fn of(&self, node: &Node, all: &Expected) -> Expected {
        let Some(axis) = node.token_axis() else { return all.clone() };
        let cut = |(known, rows): (&Option<Valued>, &Vec<usize>)| {
            let (value, bound) = known.as_ref()?;
            let extent = *value.shape.get(axis)?;
            let inner: usize = value.shape[axis + 1..].iter().product();
            let outer: usize = value.shape[..axis].iter().product();
            let at = |o: usize, r: usize| (o * extent + r) * inner..(o * extent + r + 1) * inner;
            let places = || (0..outer).flat_map(|o| rows.iter().map(move |&r| at(o, r)));
            let mut shape = value.shape.clone();
            shape[axis] = rows.len();
            let data = places().flat_map(|range| value.data[range].iter().copied()).collect();
            Some((Tensor { shape, data }, places().flat_map(|range| bound[range].iter().copied()).collect()))
        };
        all.iter().zip(&self.chosen).map(cut).collect()
    }
}
