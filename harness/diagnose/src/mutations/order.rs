//! The right values at the wrong place of the output.

use super::region::Parts;
use super::{Mutation, Param};
use crate::verdict::Evidence;
use qdiff_engine::model::Node;

/// The node with the values of part `source(i, n)` in the place of part i of n.
fn misplace(node: &Node, parts: Parts, source: impl Fn(usize, usize) -> usize + Send + Sync + 'static) -> Node {
    node.writing(move |out| {
        let (values, bounds) = (out.value.data.clone(), out.bound.clone());
        let shape = &out.value.shape;
        let n = parts.count(shape);
        for at in 0..values.len() {
            let from = parts.moved(shape, at, source(parts.part(shape, at), n));
            out.value.data[at] = values[from];
            out.bound[at] = bounds[from];
        }
    })
}

/// Where the subject's part `i` stands among the expected ones, for the parts that are wrong: pairs (part, source).
fn sources(e: &Evidence<'_>, parts: Parts) -> Vec<(usize, usize)> {
    let Some(step) = e.bad_rows().next().map(|r| r.step) else {
        return Vec::new();
    };
    let (Some(got), Some((want, bound))) = (&e.given[step], &e.expected[step]) else {
        return Vec::new();
    };
    let shape = &want.shape;
    let n = parts.count(shape);
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); n];
    for at in 0..want.data.len() {
        members[parts.part(shape, at)].push(at);
    }
    let agrees = |part: usize, source: usize| {
        members[part].iter().all(|&at| {
            let from = parts.moved(shape, at, source);
            crate::verdict::right(got.data[at], want.data[from], bound[from])
        })
    };
    (0..n)
        .filter(|&part| !agrees(part, part))
        .filter_map(|part| Some((part, (0..n).find(|&s| agrees(part, s))?)))
        .collect()
}

fn proposals(e: &Evidence<'_>, parts: Option<Parts>) -> Vec<Vec<f64>> {
    let found = parts.and_then(|parts| sources(e, parts).first().copied());
    let found = found.map(|(part, source)| (part as f64, source as f64));
    found.map_or_else(Vec::new, |(part, source)| vec![vec![part, source, 0.0], vec![0.0, 0.0, part - source]])
}

/// Two parts of the output in each other's place, or all of them moved on by some.
fn misplaced(node: &Node, parts: Parts, values: &[f64]) -> Option<Node> {
    let (a, b, by) = (values[0] as usize, values[1] as usize, values[2] as i64);
    if values[2] != 0.0 {
        return Some(misplace(node, parts, move |i, n| (i as i64 - by).rem_euclid(n.max(1) as i64) as usize));
    }
    let swapped = move |i: usize, n: usize| match i {
        i if i == a => b.min(n.saturating_sub(1)),
        i if i == b => a.min(n.saturating_sub(1)),
        i => i,
    };
    (values[0] != values[1]).then(|| misplace(node, parts, swapped))
}

const PARAMS: &[Param] = &[
    Param::new("a", "one of the two that are swapped", 0.0),
    Param::new("b", "the other", 1.0),
    Param::new("by", "instead of a swap: places by which all are moved on, wrapping around", 0.0),
];

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "heads-misplaced",
        story: "heads are in the wrong places",
        seen: "the wrong heads hold what other heads should",
        remedy: "check the order of heads in the reshape and in the kernel's grid",
        params: PARAMS,
        entire: true,
        apply: |node, values, graph| misplaced(node, Parts::heads(node, graph)?, values),
        propose: Some(|e| proposals(e, Parts::heads(e.node, &e.oracle.graph))),
        ..Mutation::ANYWHERE
    },
    Mutation {
        name: "rows-misplaced",
        story: "rows of tokens are in the wrong places",
        seen: "the wrong positions hold what other positions should; decode steps are right",
        remedy: "check the index of the token in the kernel's grid",
        params: PARAMS,
        entire: true,
        apply: |node, values, _| misplaced(node, Parts::rows(node), values),
        propose: Some(|e| proposals(e, Some(Parts::rows(e.node)))),
        ..Mutation::ANYWHERE
    },
    Mutation {
        name: "columns-misplaced",
        story: "columns are in the wrong places",
        seen: "the wrong columns hold what other columns should, at every position",
        remedy: "check the index of the output in the kernel's grid",
        params: PARAMS,
        entire: true,
        apply: |node, values, _| misplaced(node, Parts::Columns, values),
        propose: Some(|e| {
            // Looking every column up in every other is for narrow stages.
            let narrow = e.rows.first().is_some_and(|r| r.range.len() <= 1024);
            proposals(e, narrow.then_some(Parts::Columns))
        }),
        ..Mutation::ANYWHERE
    },
];
