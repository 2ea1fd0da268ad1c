//! Which fault of the catalogue reads a tensor so: every mutation that changes
//! the reading of a weight alone, tried on rows that differ.

use super::Compared;
use crate::mutations::{CauseId, Mutation, catalogue};
use crate::number::same;
use qdiff_engine::model::fault::Read;
use qdiff_engine::model::{Graph, Node};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Differing rows, spread over the tensor, that a fault must reproduce.
const ROWS: usize = 64;

/// A fault that reproduces the values.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WeightCause {
    /// Name of the mutation, with its parameters.
    pub name: CauseId,
    /// What is wrong, in one sentence.
    pub story: String,
    /// How to mend it.
    pub remedy: String,
    /// Rows on which it was tried, all of which it reproduces bit by bit.
    pub rows: usize,
    /// Whether rows that are right would be right under the fault as well; else it holds of a part of the tensor.
    pub whole: bool,
}

/// How `new` reads what `old` reads as `tensor`, if that is all in which they differ.
pub(super) fn misread(old: &Node, new: &Node, tensor: &str) -> Option<Arc<Read>> {
    let alike =
        old.op == new.op && old.inputs == new.inputs && new.faults.compute.is_none() && new.faults.write.is_none();
    let at = old.weights.iter().position(|w| w.name == tensor)?;
    let other = new.weights.get(at).filter(|w| w.extent == old.weights[at].extent)?.name.clone();
    let changed = new.faults.read.is_some() || other != tensor;
    let fault = new.faults.read.clone().unwrap_or_else(|| Arc::new(|from, name, row, out| from.rows(name, row, out)));
    let read: Arc<Read> = Arc::new(move |from, _, row, out| fault(from, &other, row, out));
    (alike && !new.faults.left_out && changed).then_some(read)
}

/// The likeliest fault that reads the rows `differing` as the subject does.
pub(super) fn find(c: &Compared<'_>, graph: &Graph, differing: &[usize]) -> Option<WeightCause> {
    let node = graph.nodes.iter().find(|n| n.weights.iter().any(|w| w.name == c.tensor))?;
    let step = differing.len().div_ceil(ROWS).max(1);
    let sample: Vec<usize> = differing.iter().copied().step_by(step).collect();
    let (_, rows) = c.reference.extent(c.tensor);
    let right: Vec<usize> =
        (0..rows).step_by(rows.div_ceil(ROWS).max(1)).filter(|r| differing.binary_search(r).is_err()).collect();
    let all: Vec<_> = candidates(node, graph, c.tensor).collect();
    let (mutation, values, fault) =
        all.into_par_iter().find_first(|(_, _, fault)| reproduces(c, fault.as_ref(), &sample))?;
    let (story, remedy) = mutation.told(&values, (node, true), graph);
    Some(WeightCause {
        name: CauseId::new(mutation, &values),
        story,
        remedy,
        rows: sample.len(),
        whole: reproduces(c, fault.as_ref(), &right),
    })
}

type Candidate = (&'static Mutation, Vec<f64>, Arc<Read>);

/// Every way of the catalogue to read `tensor`, a weight of `node`, wrongly.
fn candidates<'a>(node: &'a Node, graph: &'a Graph, tensor: &'a str) -> impl Iterator<Item = Candidate> + 'a {
    let concerned = catalogue().filter(|m| m.may_explain(graph, node));
    concerned.flat_map(move |m| {
        let lists = values(m, graph);
        lists.into_iter().filter_map(move |values| {
            let fault = misread(node, &m.applied(node, &values, graph)?, tensor)?;
            Some((m, values, fault))
        })
    })
}

/// Values of its parameters worth trying: where they are read off a run's
/// evidence, which there is none of here, the distances between layers.
fn values(m: &Mutation, graph: &Graph) -> Vec<Vec<f64>> {
    let mut lists = m.usual();
    if m.params.len() == 1 && m.propose.is_some() {
        let layers = graph.config.n_layers as i64;
        lists.extend((-layers..=layers).map(|v| vec![v as f64]));
    }
    lists
}

fn reproduces(c: &Compared<'_>, fault: &Read, rows: &[usize]) -> bool {
    let (n, _) = c.reference.extent(c.tensor);
    let (mut got, mut assumed) = (vec![0f32; n], vec![0f32; n]);
    rows.iter().all(|&row| {
        c.subject.rows(c.tensor, row, &mut got);
        fault(c.reference, c.tensor, row, &mut assumed);
        got.iter().zip(&assumed).all(|(a, b)| same(*a, *b))
    })
}
