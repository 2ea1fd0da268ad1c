//! States that an engine made again, after tokens were taken back or for a prefix.

use super::operands::widen;
use crate::arithmetic::Arithmetic;
use qdiff_engine::model::{Graph, WeightSource};
use qdiff_engine::ops::UNIT;
use qdiff_engine::quant::ActivationFormat;

/// How far a state may be off that was made again in a step of so many tokens, of rows that another pass gave: a product of other
/// rows is added up in another order, and activations that are nearly in the middle of two numbers become the other one. `more`
/// is the other uncertainty of the state.
pub(super) fn made_again(
    (graph, weights): (&Graph, &dyn WeightSource), arithmetic: &Arithmetic, tokens: usize,
    (shape, state): (&[usize], &[f64]), more: Option<&[f32]>,
) -> Vec<f32> {
    let products = graph.nodes.iter().filter(|node| node.op.anatomy().multiplies_weights());
    let coarsest = products.filter_map(|node| node.weights.first()).map(|weight| {
        match arithmetic.linear(weights.ggml_type(&weight.name), tokens).activations {
            ActivationFormat::F32 => 0.0,
            // Of eight bits, at the scale of the largest.
            format => format.unit().unwrap_or(1.0 / 128.0),
        }
    });
    let unit = coarsest.fold(UNIT * graph.config.n_embd as f64, f64::max);
    let row = shape.last().copied().unwrap_or(1).max(1);
    let rows = state.chunks(row).flat_map(|row| {
        let size = (row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64).sqrt();
        std::iter::repeat_n((unit * size) as f32, row.len())
    });
    let mut deltas: Vec<f32> = rows.collect();
    widen(&mut deltas, more.into_iter().flatten().copied());
    deltas
}
