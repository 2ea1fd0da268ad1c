//! Orders of summation that differ by more than the bound of one stage: read off the output where the operands
//! are known to the last bit, allowed for where they are not.

use super::operands::{Operand, widen};
use super::source::{Source, Stage};
use qdiff_engine::model::Node;
use qdiff_engine::ops::anatomy::{Contraction, Elementwise, RowReduction};
use qdiff_engine::ops::{Anatomy, Tensor, UNIT, rms_norm};

/// Gives `value`, what a norm makes of its captured operand in rows that the runner `given`, as that sum of squares makes
/// it that is nearest to all of them: the exact one, or one of those term by term.
pub(super) fn settle(node: &Node, operands: &[Operand<'_>], given: &[f32], value: &mut [f64]) {
    let (Anatomy::RowReduction(RowReduction::MeanSquare(norm)), [Operand::Captured(x)]) = (node.op.anatomy(), operands)
    else {
        return;
    };
    // What a fault computes is summed as it says.
    if node.faults.compute.is_some() || node.faults.left_out || given.len() != value.len() {
        return;
    }
    let run = (x.row_len() / norm.groups).max(1);
    let scales: Vec<[f64; 4]> = (x.data.chunks(run))
        .map(|x| {
            let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
            rms_norm::one_by_one(x).map(|other| ((mean + norm.eps) / (other + norm.eps)).sqrt())
        })
        .collect();
    let runs = || given.chunks(run).zip(value.chunks(run)).zip(&scales);
    // Relative to its own size in each run: the massive ones do not decide alone.
    let misfit = |scale: &dyn Fn(&[f64; 4]) -> f64| -> f64 {
        let of_run = |((given, value), scales): ((&[f32], &[f64]), &[f64; 4])| {
            let by = scale(scales);
            let off: f64 = given.iter().zip(value).map(|(g, v)| (f64::from(*g) - v * by).powi(2)).sum();
            off / value.iter().map(|v| v * v).sum::<f64>().max(f64::MIN_POSITIVE)
        };
        runs().map(of_run).sum()
    };
    let exact = misfit(&|_| 1.0);
    let others = (0..4).map(|i| (misfit(&|scales| scales[i]), i));
    let best = others.filter(|(off, _)| *off < exact).min_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, i)) = best {
        for (value, scales) in value.chunks_mut(run).zip(&scales) {
            value.iter_mut().for_each(|v| *v *= scales[i]);
        }
    }
}

/// Makes `bound` wider by what is legal over a segment alone: squares summed term by term, and a sum of products that
/// begins with what is added to it, so that its roundings are those of a sum as large as that: a bias or the residual
/// stream in the accumulator of a matrix product.
pub(super) fn allow(
    stage: Stage<'_>, (source, step): (&Source<'_>, usize), inputs: &[&Tensor<f64>], value: &Tensor<f64>,
    bound: &mut [f32],
) {
    let node = stage.node;
    match node.op.anatomy() {
        Anatomy::RowReduction(RowReduction::MeanSquare(norm)) => {
            widen(bound, rms_norm::bound_one_by_one(norm, inputs[0], value))
        }
        Anatomy::Elementwise(Elementwise::Sum | Elementwise::Offset) => {
            for (input, x) in node.inputs.iter().zip(inputs) {
                let terms = terms(stage, (source, step), *input);
                if terms > 0 {
                    let factor = UNIT * (terms as f64).sqrt();
                    widen(bound, value.data.iter().zip(&x.data).map(|(y, x)| (factor * (y - x).abs()) as f32));
                }
            }
        }
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => {}
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => {}
    }
}

/// Products that are summed in the node `index` and may be summed on in its reader; none where its value was captured.
fn terms(stage: Stage<'_>, (source, step): (&Source<'_>, usize), index: usize) -> usize {
    let node = &stage.graph.nodes[index];
    if source.step(step).stages.contains_key(&node.id) {
        return 0;
    }
    match node.op.anatomy() {
        Anatomy::Contraction(Contraction::Weight(_)) => stage.weights.extent(&node.weights[0].name).0,
        Anatomy::Elementwise(Elementwise::Sum | Elementwise::Offset) => {
            node.inputs.iter().map(|&i| terms(stage, (source, step), i)).sum()
        }
        Anatomy::Gather(_) | Anatomy::Contraction(_) | Anatomy::RowReduction(_) | Anatomy::Elementwise(_) => 0,
        Anatomy::State(_) | Anatomy::Decision(_) | Anatomy::Collective(_) => 0,
    }
}
