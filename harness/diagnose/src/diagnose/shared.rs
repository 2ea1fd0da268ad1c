//! What is one number of the model, such as its epsilon, and comes out different from layer to layer: then it is none of
//! them, and each was fitted to something else. The same of a constant factor of some rows.

use super::searcher::{Candidate, Searcher};
use super::solve::{AFTER_ROTATION, anywhere, short};
use super::{Finding, Holds, Solution};
use crate::mutations::{Explains, find};
use crate::verdict::{StageResult, Status};
use qdiff_engine::model::StageId;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, Elementwise};
use qdiff_engine::quant::GgmlType;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers as near as this are one that is not known better.
const ONE: f64 = 1e-6;

/// Fitted numbers as near as this are one: they are reported in a few digits.
const SOLVED: f64 = 1e-3;

/// Values that are tried on all stages that one of them was found of.
const TRIED: usize = 4;

/// How to mend weights of one format that are all too large or too small.
const DECODED: &str = "look at how this format is decoded: the exponent's bias, the table of values, and the number that quants are divided by";

/// Outputs multiplied by one constant, where exactly the products with weights of one format are: then the constant is one of how
/// this format is read.
pub(super) fn of_one_format(searcher: &Searcher<'_>, stages: &[StageResult], findings: &mut [Finding]) {
    let (graph, weights) = (&searcher.oracle.graph, &searcher.oracle.weights);
    let format = |id: StageId| {
        let node = graph.index(id).map(|i| &graph.nodes[i]).filter(|node| node.op.anatomy().multiplies_weights())?;
        node.weights.first().map(|weight| weights.ggml_type(&weight.name))
    };
    let factor = |finding: &Finding| {
        let cause = finding.cause.as_ref().filter(|cause| cause.whole && cause.name.mutation == "scaled")?;
        let [(_, factor)] = cause.name.parameters[..] else { return None };
        let is_own = finding.inside.is_empty() && finding.solution.is_none() && cause.name.since.is_none();
        Some((format(finding.id).filter(|_| is_own)?, factor))
    };
    let scaled: Vec<(usize, (GgmlType, f64))> =
        findings.iter().enumerate().filter_map(|(i, finding)| Some((i, factor(finding)?))).collect();
    let Some(&(first, (ty, by))) = scaled.first() else { return };
    let is_one = scaled.len() > 1 && scaled.iter().all(|(_, (other, factor))| *other == ty && near(*factor, by, ONE));
    let several = scaled.iter().any(|(i, _)| findings[*i].id.name != findings[first].id.name);
    // Every product with such weights is one of them, and some with others were judged right.
    let is_scaled = |stage: &StageResult| scaled.iter().any(|(i, _)| findings[*i].id == stage.id);
    let all = stages.iter().filter(|stage| format(stage.id) == Some(ty)).all(is_scaled);
    let right = |stage: &&StageResult| {
        matches!(stage.status, Status::Match | Status::Alone | Status::Inherited | Status::Disputed)
    };
    let other = stages.iter().filter(right).any(|stage| format(stage.id).is_some());
    if ty.block_size() > 1 && is_one && several && all && other {
        for (i, _) in scaled {
            let Some(cause) = &mut findings[i].cause else { continue };
            let by = short(by);
            cause.story = format!(
                "weights in {ty} are read at {by} times their value: it changes all products with such weights, and no other product"
            );
            DECODED.clone_into(&mut cause.remedy);
        }
    }
}

/// Products that one kernel makes have one cause: of laws that differ from product to product, one that gives all of them is each one's.
/// Two ways to add may be the same for as many inputs as one of the products has.
pub(super) fn of_one_kernel(searcher: &Searcher<'_>, origins: &[&StageResult], findings: &mut [Finding]) {
    let graph = &searcher.oracle.graph;
    let multiplies = |id: StageId| graph.index(id).is_some_and(|i| graph.nodes[i].op.anatomy().multiplies_weights());
    let everywhere = |finding: &Finding| finding.solution.as_ref().is_some_and(|s| s.holds == Holds::Everywhere);
    let of_engine = |f: &Finding| f.inside.is_empty() && !f.unread && !f.kept && !f.unwritten && !f.evident;
    let solved: Vec<usize> = (0..findings.len())
        .filter(|i| of_engine(&findings[*i]) && multiplies(findings[*i].id) && everywhere(&findings[*i]))
        .collect();
    let told = |finding: &Finding| finding.solution.as_ref().map(|s| anywhere(&s.told(), finding.id.layer));
    let mut laws: Vec<usize> = Vec::new();
    for &i in &solved {
        let known = laws.iter().any(|j| told(&findings[*j]) == told(&findings[i]));
        if !known {
            laws.push(i);
        }
    }
    let akin = |i: usize, j: usize| {
        let of = |i: usize| findings[i].solution.as_ref();
        of(i).zip(of(j)).is_some_and(|(a, b)| a.is_akin(b))
    };
    if laws.len() < 2 || laws.iter().any(|i| !akin(*i, laws[0])) {
        return;
    }
    let one = laws.iter().rev().find_map(|&law| {
        let known = findings[law].solution.as_ref()?.known(findings[law].id.layer);
        let of = |&i: &usize| match told(&findings[i]) == told(&findings[law]) {
            true => findings[i].solution.clone(),
            false => searcher.law_again(origins[i], &known),
        };
        let all: Vec<Solution> = solved.iter().map(of).collect::<Option<_>>()?;
        Some((known, all))
    });
    let Some((known, all)) = one else { return };
    for (i, solution) in solved.into_iter().zip(all) {
        findings[i].solution = Some(solution);
    }
    for (i, finding) in findings.iter_mut().enumerate() {
        let open = finding.solution.is_none() && finding.cause.is_none();
        if !(of_engine(finding) && multiplies(finding.id) && open) {
            continue;
        }
        if let Some(solution) = searcher.law_again(origins[i], &known) {
            finding.leave_place(String::new());
            finding.solution = Some(solution);
        }
    }
}

/// Where a norm of heads comes after the rotation, the rotation reads what is not normed, and the scores read what is: one cause.
pub(super) fn of_exchanged_norms(searcher: &Searcher<'_>, findings: &mut [Finding]) {
    let graph = &searcher.oracle.graph;
    let mut nodes: BTreeSet<usize> = BTreeSet::new();
    for finding in findings.iter().filter(|f| f.solution.as_ref().is_some_and(|s| s.what == AFTER_ROTATION)) {
        nodes.extend(graph.index(finding.id));
    }
    // What follows up to the scores, in the order of the graph.
    for (i, node) in graph.nodes.iter().enumerate() {
        let follows = matches!(
            node.op.anatomy(),
            Anatomy::Elementwise(Elementwise::Rotation(_))
                | Anatomy::State(_)
                | Anatomy::Contraction(Contraction::Scores(_))
        );
        if follows && node.inputs.iter().any(|input| nodes.contains(input)) {
            nodes.insert(i);
        }
    }
    for finding in findings {
        let follows = graph.index(finding.id).is_some_and(|i| nodes.contains(&i));
        // What takes another stage for its own: a fault of its own, or one that is not known, stays.
        let takes_another = finding.solution.as_ref().is_some_and(|s| {
            let other = |what: &str| what.contains(" in the place of ") || what.ends_with(" is there instead");
            s.holds == Holds::Everywhere && other(&s.what)
        });
        if follows && takes_another && finding.cause.is_none() && finding.inside.is_empty() && !finding.unwritten {
            finding.explained_by(AFTER_ROTATION);
        }
    }
}

/// For each number of the model, the explanations by it: with the same value in all stages, or in none.
pub(super) fn of_one_model(searcher: &Searcher<'_>, origins: &[&StageResult], findings: &mut [Finding]) {
    let mut by_name: BTreeMap<String, Vec<(usize, f64)>> = BTreeMap::new();
    for (i, finding) in findings.iter().enumerate() {
        let of_values = finding.cause.as_ref().filter(|c| c.kind == Explains::Value);
        if let Some((name, [(_, value)])) = of_values.map(|c| (&c.name.mutation, c.name.parameters.as_slice()))
            && find(name).is_some_and(|m| m.of_model)
        {
            by_name.entry(name.clone()).or_default().push((i, *value));
        }
    }
    for (name, found) in by_name.iter().filter(|(_, found)| !is_one(found, ONE)) {
        let mut values: Vec<f64> = Vec::new();
        for (_, value) in found {
            if !values.iter().any(|known| near(*known, *value, ONE)) {
                values.push(*value);
            }
        }
        let shared = values.into_iter().take(TRIED).find_map(|value| {
            let candidate: Candidate = (find(name)?, vec![value]);
            let causes = found.iter().map(|&(i, own)| match near(own, value, ONE) {
                true => findings[i].cause.clone(),
                false if findings[i].inside.is_empty() => searcher.again(origins[i], &candidate),
                false => None,
            });
            causes.collect::<Option<Vec<_>>>()
        });
        match shared {
            Some(causes) => {
                found.iter().zip(causes).for_each(|((i, _), cause)| findings[*i].cause = Some(cause));
            }
            None => found.iter().for_each(|(i, _)| findings[*i].leave_place(searcher.shape(origins[*i]))),
        }
    }
    let mut by_law: BTreeMap<&'static str, Vec<(usize, f64)>> = BTreeMap::new();
    for (i, finding) in findings.iter().enumerate() {
        if let Some((name, value)) = finding.solution.as_ref().and_then(|s| s.of_model) {
            by_law.entry(name).or_default().push((i, value));
        }
    }
    for found in by_law.into_values().filter(|found| !is_one(found, SOLVED)) {
        found.iter().for_each(|(i, _)| findings[*i].leave_place(searcher.shape(origins[*i])));
    }
}

/// Constant factors of rows that no rule tells from others are no two causes: where stages differ in the factor, what is
/// known is that each row has its own.
pub(super) fn of_rows(searcher: &Searcher<'_>, origins: &[&StageResult], findings: &mut [Finding]) {
    let constant = |f: &Finding| f.solution.as_ref().and_then(Solution::listed_factor);
    let has_own = |f: &Finding| f.solution.as_ref().is_some_and(Solution::has_own_factors);
    let found: Vec<(usize, f64)> =
        findings.iter().enumerate().filter_map(|(i, finding)| Some((i, constant(finding)?))).collect();
    if !is_one(&found, SOLVED) || findings.iter().any(has_own) {
        for (i, _) in found {
            if let Some(solution) = searcher.own_factors(origins[i]) {
                (findings[i].solution, findings[i].cause) = (Some(solution), None);
            }
        }
    }
    let each = || findings.iter().filter(|f| has_own(f)).filter_map(|f| Some(&f.solution.as_ref()?.holds));
    let differ = each().any(|a| each().any(|b| a != b));
    for (finding, origin) in findings.iter_mut().zip(origins) {
        let Some(solution) = finding.solution.as_mut() else { continue };
        let listed = solution.tell_no_list();
        if differ && solution.has_own_factors() {
            solution.holds = Holds::Everywhere;
        }
        // Of elements that are no whole rows, what they look like says more than how many they are.
        if listed && matches!(solution.holds, Holds::Some { rows: None, .. }) && finding.inside.is_empty() {
            finding.shape = searcher.shape(origin);
        }
    }
}

fn near(a: f64, b: f64, within: f64) -> bool {
    a == b || (a - b).abs() <= within * a.abs().max(b.abs())
}

fn is_one(found: &[(usize, f64)], within: f64) -> bool {
    found.iter().all(|(_, value)| near(*value, found[0].1, within))
}
