//! Two laws in one stage, and a term of low rank.

use super::bench::{At, Bench, Stage};
use super::plants::{Plant, drawn};
use super::{CONDITIONS, Solution, models, planted, stages};
use qdiff_engine::gguf::Gguf;
use qdiff_engine::model::Role;
use qdiff_engine::ops::Op;

/// The cause of a linear stage that gives these values instead.
fn told(value: impl Fn(&Stage, &At) -> f64 + 'static) -> String {
    let (model, tokens) = models(1).swap_remove(0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    model.write(&path).unwrap();
    let file = Gguf::open(&path).unwrap();
    let mut bench = Bench::new(&model, &file, tokens);
    let of = |n: &qdiff_engine::model::Node| n.op == Op::Linear && n.role == Role::Query;
    let node = stages(&bench.oracle.graph.nodes).into_iter().find(of).unwrap();
    let stage = bench.stage(&node);
    let given = planted(&stage, &Plant::new("", "", value), &CONDITIONS[0]);
    bench.judged(&stage, given).solution.as_ref().map_or_else(String::new, Solution::told)
}

#[test]
fn a_stale_row_and_a_halved_tail_are_two_things_at_once() {
    let said = told(|s, at| {
        let token = if at.token % 2 == 1 { at.token - 1 } else { at.token };
        let tail = at.column + 16 >= s.width(at.step);
        s.elsewhere(at, token as i64, at.column as i64).unwrap() * if tail { 0.5 } else { 1.0 }
    });
    assert!(said.starts_with("two things at once: ") && said.contains("times 0.5"), "{said}");
    assert!(said.contains("previous token in the part"), "{said}");
}

#[test]
fn a_term_of_rank_two_is_told_as_that() {
    let said = told(|s, at| {
        let term = |r: u64| drawn(at.position, 40 + r) * drawn(at.column, 50 + r);
        s.own(at) + 0.3 * (term(0) + term(1))
    });
    assert!(said.starts_with("to every row a combination of 2 vectors is added"), "{said}");
}
