//! Stages whose rows do not look at each other, of all rows of a pass, of whichever sequence they are: kernels count the rows of a
//! batch, and not those of a sequence.

use super::siblings::Runs;
use super::solve::{Confidence, solve};
use super::spots::{Shown, Told};
use crate::capture::{Capture, Step};
use crate::verdict::{Evidence, Side, work_of};
use qdiff_engine::model::{Axis, Graph, Node};
use qdiff_engine::ops::anatomy::Elementwise;
use qdiff_engine::ops::{Anatomy, Tensor};
use std::collections::BTreeMap;

/// How to mend it.
const REMEDY: &str = "look at what counts the rows of a pass over all its sequences: the grid, the tiles, the buffers that are as long as a batch";

/// What the words of a law say that has to do with positions and steps: the rows of a pass have no common ones. And an open law, which
/// takes what it says from each value, holds under any condition.
const OF_POSITIONS: [&str; 7] = ["position", "decode", "prefill", "prompt", "token before", "step", "no rule is known"];

/// Whether each row of a stage is made of the same row of its operands, wherever the row is.
fn by_rows(node: &Node) -> bool {
    let turned = matches!(node.op.anatomy(), Anatomy::Elementwise(Elementwise::Rotation(_)));
    node.token_axis() == Some(0) && !node.shape.contains(&Axis::Keys) && !node.has_state() && !turned
}

/// The own steps of all sequences, by pass and in the order of its rows.
fn passes<'a>(runs: &[&'a Capture]) -> BTreeMap<usize, BTreeMap<usize, &'a Step>> {
    let mut all: BTreeMap<usize, BTreeMap<usize, &Step>> = BTreeMap::new();
    for capture in runs {
        for step in capture.steps.iter().enumerate().filter(|(i, _)| capture.is_own(*i)).map(|(_, step)| step) {
            if let Some(pass) = step.in_pass {
                all.entry(pass.number).or_default().insert(pass.before, step);
            }
        }
    }
    all
}

/// A run of one sequence whose steps are the passes, with the stages near `node`; nothing where a pass lacks rows.
fn joined(graph: &Graph, node: &Node, runs: &[&Capture]) -> Option<Capture> {
    let near = |n: &&Node| {
        by_rows(n)
            && match (n.id.layer, node.id.layer) {
                (Some(other), Some(own)) => other == own || other + 1 == own,
                _ => n.id == node.id || node.inputs.iter().any(|&i| graph.nodes[i].id == n.id),
            }
    };
    let nodes: Vec<&Node> = graph.nodes.iter().filter(near).collect();
    let mut all = runs.first()?.sibling();
    all.elements.clone_from(&runs.first()?.elements);
    let mut first = 0;
    for (number, turns) in passes(runs).into_values().enumerate() {
        let mut rows = 0;
        let mut tokens = Vec::new();
        for (before, turn) in &turns {
            if *before != rows || turn.kept.is_some() || turn.cut_short {
                return None;
            }
            rows += turn.tokens.len();
            tokens.extend(&turn.tokens);
        }
        let mut step = Step { index: number, ..Step::new(first, tokens) };
        for node in &nodes {
            let parts: Option<Vec<_>> = turns
                .values()
                .map(|turn| {
                    turn.get(node.id)
                        .filter(|_| turn.tokens.iter().enumerate().all(|(i, _)| turn.has_row(node.id, turn.first + i)))
                })
                .collect();
            let Some(parts) = parts else { continue };
            let mut shape = parts[0].shape.clone();
            *shape.first_mut()? = rows;
            let data: Vec<f32> = parts.iter().flat_map(|part| part.data.iter().copied()).collect();
            if data.len() == shape.iter().product::<usize>() {
                step.stages.insert(node.id, all.store.keep(Tensor { shape, data }));
            }
        }
        first += rows;
        all.steps.push(step);
    }
    Some(all)
}

/// The law of the stage over the rows of a pass.
pub(super) fn words(e: &Evidence<'_>, (runs, run): Runs<'_>) -> Option<Told> {
    let (node, searcher) = (e.node, runs[run].0);
    let graph = &searcher.oracle.graph;
    let inputs = node.inputs.iter().map(|&i| &graph.nodes[i]);
    if !by_rows(node) || !inputs.into_iter().all(by_rows) {
        return None;
    }
    let captures: Vec<&Capture> = runs.iter().map(|(searcher, _)| searcher.subject.capture).collect();
    // Else the rows of a pass are those of a sequence.
    if !passes(&captures).values().any(|turns| turns.len() > 1) {
        return None;
    }
    let work = captures.iter().map(|capture| work_of(node, searcher.oracle, capture)).sum();
    if work > searcher.meter.left() {
        return None;
    }
    searcher.meter.count(work);
    let all = joined(graph, node, &captures)?;
    let side = Side { capture: &all, ..searcher.subject };
    let e = Evidence::new(searcher.oracle, node, side, searcher.filter, searcher.policy);
    let solution = solve(&e, (&[], &[]), searcher.meter)?;
    let told = solution.told();
    let is_law = solution.confidence == Confidence::Proved && !solution.has_own_factors() && solution.also.is_empty();
    // What names no row says nothing of a pass: more elements alone showed it.
    if !["the part", "each part", "token", "row", " line"].iter().any(|word| told.contains(word)) {
        return None;
    }
    if !is_law || OF_POSITIONS.iter().any(|word| told.contains(word)) {
        return None;
    }
    let words = format!(
        "counted over all rows of a pass, of whichever sequence they are: {}",
        told.replace("the part", "the pass").replace("each part", "each pass").replace("in parts of", "in passes of")
    );
    let shown = Shown { what: words.clone(), links: Vec::new(), ..Shown::default() };
    Some(Told { words, remedy: REMEDY, shown })
}
