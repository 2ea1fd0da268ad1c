//! What stands at the end of a segment if some of its nodes are otherwise.
//!
//! The segment is evaluated once as it should be. Each way to be otherwise is then evaluated from the first node on that
//! differs: on all tokens as far as tokens see each other, and after that on as few rows as are asked for.

use super::apply::{State, apply};
use super::evaluate::{Expected, put};
use super::evidence::part;
use super::operands::{Computed, Side, Source, Stage};
use super::segment::{Plan, plan};
use crate::arithmetic::Arithmetic;
use crate::capture::Capture;
use crate::oracle::Oracle;
use qdiff_engine::model::fault::FaultyWeights;
use qdiff_engine::model::{Node, WeightSource};
use qdiff_engine::ops::{Op, Tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Elements that a segment may have.
const ELEMENTS: usize = 1 << 25;

/// Nodes in the place of those of the graph, by index.
pub(crate) type Otherwise = BTreeMap<usize, Node>;

/// A segment as it should be.
pub(crate) struct Inside<'a> {
    oracle: &'a Oracle<'a>,
    node: &'a Node,
    capture: &'a Capture,
    arithmetic: &'a Arithmetic,
    plan: Plan,
    right: Computed<'a>,
}

/// Some rows of what was captured around a segment.
pub(crate) struct Rows {
    /// They alone.
    pub(crate) capture: Capture,
    /// Which of its rows, step by step.
    chosen: Vec<Vec<usize>>,
}

/// Whether a token's values are made of other tokens'.
fn crosses(node: &Node) -> bool {
    matches!(node.op, Op::KvCache(_) | Op::AttnScores(_) | Op::AttnWeights(_) | Op::AttnContext(_))
}

impl<'a> Inside<'a> {
    /// The segment that ends in `node`; `None` where its operands were captured, or where it is too large to be kept.
    pub(crate) fn of(node: &'a Node, oracle: &'a Oracle<'a>, side: Side<'a>) -> Option<Self> {
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
    pub(crate) fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.plan.keys().copied().chain(self.oracle.graph.index(self.node.id))
    }

    /// The rows of these positions.
    pub(crate) fn rows(&self, positions: &BTreeSet<usize>) -> Rows {
        let graph = &self.oracle.graph;
        let operands = self.nodes().flat_map(|i| &graph.nodes[i].inputs).map(|&i| &graph.nodes[i]);
        let nodes: Vec<&Node> = operands.chain([self.node]).collect();
        let chosen = self.capture.steps.iter().map(|step| {
            (0..step.rows()).filter(|&r| positions.contains(&(step.first + step.offset(r)))).collect::<Vec<_>>()
        });
        Rows { chosen: chosen.collect(), capture: part(self.capture, &nodes, positions) }
    }

    /// What the last node gives with `others` in the place of nodes of the graph: of all rows, or of some.
    pub(crate) fn with(&self, others: &Otherwise, some: Option<&Rows>) -> Expected {
        let graph = &self.oracle.graph;
        let node = |i: usize| others.get(&i).unwrap_or(&graph.nodes[i]);
        let mut differ: BTreeSet<usize> = BTreeSet::new();
        for i in self.nodes() {
            if others.contains_key(&i) || graph.nodes[i].inputs.iter().any(|input| differ.contains(input)) {
                differ.insert(i);
            }
        }
        let Some(last) = differ.pop_last() else { return self.capture.steps.iter().map(|_| None).collect() };
        let end = if crosses(node(last)) { Some(last) } else { differ.iter().copied().rfind(|&i| crosses(node(i))) };
        let of_all = |i: usize| some.is_none() || end.is_some_and(|end| i <= end);
        let mut values = Computed { beneath: Some(&self.right), ..Computed::default() };
        for i in differ.iter().copied().filter(|&i| of_all(i)) {
            let made = self.evaluated(node(i), self.steps(i), self.capture, &values);
            values.own.insert(i, made);
        }
        let all_steps = || (0..self.capture.steps.len()).collect();
        let Some(rows) = some.filter(|_| !of_all(last)) else {
            let whole = self.evaluated(node(last), all_steps(), self.capture, &values);
            return some.map_or_else(|| whole.clone(), |rows| rows.of(self.node, &whole));
        };
        let mut few = Computed::default();
        let rest: Vec<usize> = differ.iter().copied().filter(|&i| !of_all(i)).chain([last]).collect();
        for &i in rest.iter().flat_map(|&i| &node(i).inputs).filter(|i| !rest.contains(i)) {
            if let Some(known) = values.get(i) {
                few.own.insert(i, rows.of(&graph.nodes[i], known));
            }
        }
        for &i in &rest[..rest.len() - 1] {
            let made = self.evaluated(node(i), all_steps(), &rows.capture, &few);
            few.own.insert(i, made);
        }
        self.evaluated(node(last), all_steps(), &rows.capture, &few)
    }

    /// Steps of a node that are asked for; a state goes through all.
    fn steps(&self, index: usize) -> Vec<usize> {
        let has_state = self.oracle.graph.nodes[index].has_state();
        let wanted = &self.plan[&index];
        (0..wanted.len()).filter(|&s| has_state || wanted[s]).collect()
    }

    fn evaluated(&self, node: &Node, steps: Vec<usize>, capture: &Capture, computed: &Computed<'_>) -> Expected {
        let mut values: Expected = capture.steps.iter().map(|_| None).collect();
        let source: &dyn WeightSource = &self.oracle.weights;
        let faulty = node.faults.read.as_ref().map(|fault| FaultyWeights { source, fault: fault.as_ref() });
        let stage = Stage { node, graph: &self.oracle.graph, weights: faulty.as_ref().map_or(source, |m| m) };
        let side = Side { capture, arithmetic: self.arithmetic };
        let source =
            Source { index: 0, side, steps, computed: Some(computed), resumes: node.id != self.node.id, filter: None };
        let flow = apply(stage, &[source], &mut State::new(), &mut |block| {
            // Attention over rows that nobody knows cannot be evaluated.
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
        let cut = |(known, rows): (&Option<(Tensor<f64>, Vec<f32>)>, &Vec<usize>)| {
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
