//! Roundings that are declared and not done: the stage in the arithmetic that is declared but for one of them. These laws go
//! first: to a law that leaves the rounding out with it, what was not rounded looks like its own.

use super::scene::Scene;
use super::{Law, Row};
use crate::arithmetic::Arithmetic;
use crate::verdict::{Expected, RowAt, Side, assembled, settle_all, work_of};
use qdiff_engine::dtype::DType;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::Contraction;
use qdiff_engine::quant::{ActivationFormat, KvType};

pub(super) fn laws<'a>(scene: &'a Scene<'a>) -> Vec<Law<'a>> {
    let (node, declared) = (scene.node(), scene.e.side.arithmetic);
    let mut all: Vec<(String, Arithmetic)> = Vec::new();
    let format = declared.parameters;
    if format != DType::F32 && !node.weights.is_empty() {
        let what = format!(
            "parameters are not rounded as declared: {format} is declared, but the values were computed from the unrounded parameters of the file"
        );
        all.push((what, Arithmetic { parameters: DType::F32, ..declared.clone() }));
    }
    if declared.kv.of(node.is_of_values()) != ActivationFormat::F32 && matches!(node.op.anatomy(), Anatomy::State(_)) {
        let what = format!("rows of the cache are not rounded as declared: {} is declared", declared.kv);
        all.push((what, Arithmetic { kv: KvType::F32, ..declared.clone() }));
    }
    let multiplies = match node.op.anatomy() {
        Anatomy::Contraction(Contraction::Weight(None)) => !declared.linear.is_empty(),
        Anatomy::Contraction(Contraction::Scores(_) | Contraction::Context(_)) => !declared.attention.is_empty(),
        _ => false,
    };
    if multiplies {
        let what = "operands are not rounded as declared before they are multiplied".to_owned();
        all.push((what, Arithmetic { linear: Vec::new(), attention: Vec::new(), ..declared.clone() }));
    }
    all.into_iter().map(|(what, other)| law(scene, what, &other)).collect()
}

/// The stage in another arithmetic.
fn law<'a>(scene: &'a Scene<'a>, what: String, other: &Arithmetic) -> Law<'a> {
    let e = scene.e;
    scene.count(work_of(e.node, e.oracle, e.side.capture) as usize);
    let side = Side { arithmetic: other, ..e.side };
    let mut made: Expected = assembled(e.node, e.oracle, side, e.filter);
    settle_all(e.node, &e.oracle.graph, side, &mut made);
    Law::new(what, 0, move |row: &RowAt| {
        let (value, bound) = made.get(row.step)?.as_ref()?;
        let value = value.data.get(row.range.clone())?.to_vec();
        Some(Row { value, bound: bound.get(row.range.clone())?.to_vec() })
    })
}
