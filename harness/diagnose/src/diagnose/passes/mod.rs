//! What the rows of whole passes show: that a row is made of another row of its pass, that states are exchanged or not kept, and
//! that a convolution runs on from one sequence to the next.

mod keys;
mod rows;
mod stages;
mod states;

use super::siblings::Runs;
use super::spots::Told;
use crate::verdict::Evidence;
use qdiff_engine::model::Axis;
use qdiff_engine::ops::Anatomy;
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, RowReduction, State};

/// Which rows of its passes are made of which.
pub(super) fn words(e: &Evidence<'_>, runs: Runs<'_>) -> Option<Told> {
    if runs.0.len() < 2 || !e.bad_rows().any(|row| e.side.capture.is_own(row.step)) {
        return None;
    }
    let node = e.node;
    match node.op.anatomy() {
        Anatomy::State(State::Own) => states::states(node, runs).or_else(|| states::begins(node, runs)),
        Anatomy::RowReduction(RowReduction::Recurrent) => states::begins(node, runs),
        Anatomy::State(State::Rows(_)) => rows::rows(node, runs),
        Anatomy::Contraction(Contraction::Scores(attention)) => keys::queries(node, attention, runs)
            .or_else(|| keys::by_pages(node, attention, runs))
            .or_else(|| keys::by_tables(node, attention, runs)),
        Anatomy::Contraction(Contraction::Context(attention)) => {
            keys::by_pages(node, attention, runs).or_else(|| keys::by_tables(node, attention, runs))
        }
        Anatomy::RowReduction(RowReduction::Exponentials(_)) => keys::masked(node, runs),
        Anatomy::Elementwise(Elementwise::Rotation(_)) => rows::turned(node, runs).or_else(|| rows::rows(node, runs)),
        _ if node.token_axis() == Some(0) && !node.has_state() && !node.shape.contains(&Axis::Keys) => {
            rows::rows(node, runs).or_else(|| rows::sorted(node, runs))
        }
        _ => None,
    }
}
