//! Invariants that need no reference: what no correct model does.
//!
//! One look at every captured stage. `values` knows what holds of any tensor (and of RoPE), `attention` what holds of
//! attention weights, `stream` what holds of the hidden state, the cache and the tokens from step to step.

mod attention;
mod seen;
mod stream;
mod values;

use super::{foreign, lost};
use crate::capture::Capture;
use qdiff_engine::dtype::DType;
use qdiff_engine::model::{Graph, Node, StageId};
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, Gather, RowReduction, State};
use rayon::prelude::*;
pub use seen::Symptom;
use seen::{COARSE, Seen, named};
use std::borrow::Cow;

/// Unit roundoff of what the values of a stage were rounded to; 0 of f32.
fn unit(capture: &Capture, id: StageId) -> f64 {
    let of = |format: DType| if format == DType::F32 { 0.0 } else { format.unit() };
    of(capture.rounding.output(id)) + of(capture.rounding.stored(id))
}

/// Looks at every captured stage, and gives suspicious ones in order. For each
/// stage it gives the first step that shows something. In stages that `overflowed`, values that are not finite break
/// nothing, and in those that are `right` on their own inputs no other values do: a right model may have them.
pub fn check(
    graph: &Graph, capture: &Capture, overflowed: impl Fn(StageId) -> bool + Sync,
    right: impl Fn(StageId) -> bool + Sync,
) -> Vec<Symptom> {
    let look = |node: &Node| of_stage(graph, capture, node, (overflowed(node.id), right(node.id)));
    let mut symptoms: Vec<Symptom> = graph.nodes.par_iter().filter_map(look).collect();
    symptoms.extend(stream::tokens(graph, capture));
    symptoms
}

/// Looks at one of them.
fn of_stage(graph: &Graph, capture: &Capture, node: &Node, (overflowed, right): (bool, bool)) -> Option<Symptom> {
    capture.steps.iter().enumerate().find_map(|(index, step)| {
        let stored = step.stages.get(&node.id)?;
        let t = match &step.last_row {
            Some((stages, _)) if stages.contains(&node.id) => Cow::Owned(stored.slice(0, step.rows() - 1..step.rows())),
            _ => stored.get(),
        };
        let before = |i: usize| step.get(graph.nodes[node.inputs[i]].id);
        let unit = unit(capture, node.id);
        let constant = |t: &_| values::constant(t).filter(|_| unit <= COARSE);
        let non_finite = values::non_finite(&t);
        let broken = if non_finite.is_some() { !overflowed } else { !right };
        let (what, input): Seen = non_finite.or_else(|| match node.op.anatomy() {
            Anatomy::RowReduction(RowReduction::Exponentials(_)) => {
                if let Some(words) = foreign::in_step(step, node) {
                    return Some((words, None));
                }
                // A part of such a row is in the capture of the tokens that were taken back.
                if step.foreign.contains_key(&node.id) {
                    return None;
                }
                let own = lost::own_rows(graph, node, capture, index);
                attention::check(&t, &step.positions(), own.as_deref(), unit)
            }
            Anatomy::Elementwise(Elementwise::Rotation(rope)) => {
                let unit = unit + self::unit(capture, graph.nodes[node.inputs[0]].id);
                let x = before(0).filter(|_| rope.scaling.is_none());
                x.and_then(|x| values::rotation(&x, &t, (rope.head_dim, unit), &step.positions()))
            }
            Anatomy::State(State::Rows(_)) => stream::cache(graph, node, &t, capture, index)
                .or_else(|| stream::unwritten(&t).filter(|_| unit <= COARSE)),
            // Zeros, before there is anything to keep.
            Anatomy::State(State::Own) => None,
            Anatomy::Elementwise(Elementwise::Sum) => {
                before(1).and_then(|x| stream::unchanged(&x, &t)).or_else(|| constant(&t))
            }
            // Large scores that lie together may round to one.
            Anatomy::Contraction(Contraction::Scores(_)) => constant(&t).filter(|_| unit == 0.0),
            Anatomy::Gather(Gather::Rows | Gather::Hashed) | Anatomy::Contraction(_) => constant(&t),
            // The first tokens see no whole block.
            Anatomy::RowReduction(RowReduction::Seen) => None,
            Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => constant(&t),
            // A few values, and integers: they may well be one.
            Anatomy::Gather(Gather::Elements | Gather::Columns(_)) | Anatomy::Decision(_) | Anatomy::Collective(_) => {
                None
            }
        })?;
        let likely = input.map_or(node.id, |i| graph.nodes[node.inputs[i]].id);
        Some(Symptom { stage: node.id, step: named(capture, step), what, likely, broken })
    })
}
