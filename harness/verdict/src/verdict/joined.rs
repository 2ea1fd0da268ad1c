//! Attention in shares of the keys that are joined by the logarithms of their sums of exponentials.

use super::operands::forward;
use super::source::{Source, Stage};
use qdiff_engine::ops::anatomy::RowReduction;
use qdiff_engine::ops::{Anatomy, Context, Tensor};
use std::ops::Range;

/// What joining adds to the bound of a context, `[T, H·D]`, of `inputs`, the weights and the values. Let `l` be such a logarithm: it is
/// no larger than the largest score plus the logarithm of the number of keys. The factor `exp(l_i − l)` of a share takes over the
/// errors of both logarithms and of their difference, `3·2⁻²⁴·l` together, which all weights of the share have in common.
pub(super) fn shares(
    (stage, source): (Stage<'_>, &Source<'_>), (index, rows): (usize, &Range<usize>), inputs: &[&Tensor<f64>],
    context: &Context<'_>,
) -> Option<Vec<f32>> {
    let of = &stage.graph.nodes[stage.node.inputs[0]];
    let Anatomy::RowReduction(RowReduction::Exponentials(softmax)) = of.op.anatomy() else { return None };
    let scores = source.operand(stage.graph, of.inputs[0], index, rows)?;
    let (weights, values) = (inputs[0], inputs[1]);
    let (scores, keys) = (scores.wide(), weights.row_len().max(1));
    if scores.len() != weights.data.len() {
        return None;
    }
    let off = weights.data.chunks(keys).zip(scores.chunks(keys)).flat_map(|(weights, scores)| {
        let seen = weights.iter().zip(scores).filter(|(weight, _)| **weight > 0.0);
        let most = seen.map(|(_, score)| (score * softmax.scale).abs()).fold(0.0, f64::max);
        let error = 3.0 * 2f64.powi(-24) * (most + (keys as f64).ln());
        weights.iter().map(move |weight| weight * error)
    });
    let off = Tensor { shape: weights.shape.clone(), data: off.collect() };
    let sizes = Tensor { shape: values.shape.clone(), data: values.data.iter().map(|v| v.abs()).collect() };
    let (more, _) = forward(stage.node, &[&off, &sizes], context);
    Some(more.data.into_iter().map(|v| v as f32).collect())
}
