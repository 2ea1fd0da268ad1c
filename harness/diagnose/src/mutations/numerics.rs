//! The right operands, through the wrong function.

use super::places::{activation, gates, norms, residuals};
use super::position::rounded;
use super::{Mutation, Param, each};
use crate::verdict::Evidence;
use qdiff_engine::model::{Node, WeightSource as _};
use qdiff_engine::ops::anatomy::RowReduction;
use qdiff_engine::ops::{self, Anatomy, Context, Op, RmsNorm, TINY, Tensor, UNIT};
use std::f64::consts::PI;

/// A norm whose weight is read as `scale · w + offset`.
fn reweighted(node: &Node, scale: f32, offset: f32) -> Option<Node> {
    Some(node.reading(move |source, tensor, row, out| {
        source.rows(tensor, row, out);
        out.iter_mut().for_each(|w| *w = scale * *w + offset);
    }))
}

/// The norm of what is left once the mean is taken off. The difference rounds in
/// units of its terms, the mean's own being all of the run.
fn centred(norm: &RmsNorm, x: &Tensor<f64>, c: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
    let run = (x.row_len() / norm.groups).max(1);
    let mut apart = x.clone();
    for row in apart.data.chunks_mut(run) {
        let mean = row.iter().sum::<f64>() / run as f64;
        row.iter_mut().for_each(|v| *v -= mean);
    }
    let (y, mut bound) = ops::forward_with_bound(&Op::RmsNorm(norm.clone()), &[&apart], c);
    let factor = norm.roundings(x.row_len());
    let rows = x.data.chunks(run).zip(apart.data.chunks(run)).zip(y.data.chunks(run).zip(bound.chunks_mut(run)));
    for ((x, apart), (y, bound)) in rows {
        let reach = x.iter().map(|x| x.abs()).sum::<f64>() / run as f64;
        for (((x, apart), y), b) in x.iter().zip(apart).zip(y).zip(bound) {
            let cancelled = factor * (x.abs() + reach) / apart.abs().max(f64::MIN_POSITIVE);
            *b += (UNIT * cancelled * y.abs()) as f32;
        }
    }
    (y, bound)
}

/// GELU in its tanh form (Hendrycks & Gimpel 2016).
fn gelu(g: f64) -> f64 {
    0.5 * g * (1.0 + ((2.0 / PI).sqrt() * (g + 0.044_715 * g * g * g)).tanh())
}

/// `other` in the place of SiLU. These may cancel, and are good to roundings of |g|.
fn activated(node: &Node, other: fn(f64) -> f64) -> Option<Node> {
    Some(node.computing(move |inputs, _| {
        let pairs = || inputs[0].data.iter().zip(&inputs[1].data);
        let data = pairs().map(|(&g, u)| other(g) * u).collect();
        let bound = pairs().map(|(g, u)| (UNIT * 8.0 * (g * u).abs() + TINY) as f32).collect();
        (Tensor { shape: inputs[0].shape.clone(), data }, bound)
    }))
}

fn norm(node: &Node) -> Option<&RmsNorm> {
    if let Anatomy::RowReduction(RowReduction::MeanSquare(norm)) = node.op.anatomy() { Some(norm) } else { None }
}

/// The epsilon that makes the scale of each run, weighted by how far it can be
/// told: 1/s² − mean(x²), with s the factor between w·x and the output.
fn fitted_eps(e: &Evidence<'_>) -> Option<f64> {
    let (norm, first) = (norm(e.node)?, e.node.weights.first()?);
    let mut weight = vec![0f32; e.oracle.weights.extent(&first.name).0];
    e.oracle.weights.rows(&first.name, 0, &mut weight);
    let (mut top, mut bottom) = (0.0, 0.0);
    for row in e.bad_rows() {
        let x = e.operand(row, 0)?;
        let (y, ..) = e.row(row);
        let run = x.len() / norm.groups;
        for (x, y) in x.chunks(run).zip(y.chunks(run)) {
            let (mut xy, mut xx, mut mean) = (0.0, 0.0, 0.0);
            for ((x, y), w) in x.iter().zip(y).zip(&weight) {
                let weighted = f64::from(*x) * f64::from(*w);
                xy += weighted * f64::from(*y);
                xx += weighted * weighted;
                mean += f64::from(*x).powi(2) / run as f64;
            }
            let eps = (xx / xy).powi(2) - mean;
            if eps.is_finite() && mean > 0.0 {
                top += eps / (mean * mean);
                bottom += 1.0 / (mean * mean);
            }
        }
    }
    Some(top / bottom).filter(|eps| eps.is_finite() && *eps >= 0.0)
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "rms-weight-missing",
        fits: Some(norms),
        story: "the norm's weight is not multiplied in",
        seen: "every row has a root mean square of 1",
        remedy: "multiply the normalised value by the norm's weight",
        apply: |node, _, _| reweighted(node, 0.0, 1.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rms-weight-plus-one",
        fits: Some(norms),
        story: "the norm multiplies by 1 + weight, as Gemma does",
        seen: "the output is too large by the normalised input",
        remedy: "multiply by the weight as the file has it: where a model multiplies by 1 + weight, the converter to GGUF has added the 1",
        apply: |node, _, _| reweighted(node, 1.0, 1.0),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rms-mean-subtracted",
        fits: Some(norms),
        story: "the mean is subtracted, as LayerNorm does",
        seen: "the normalised input sums to zero",
        remedy: "RMSNorm divides by the root mean square and subtracts nothing",
        apply: |node, _, _| {
            let own = norm(node)?.clone();
            Some(node.computing(move |inputs, c| centred(&own, inputs[0], c)))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "rms-eps-wrong",
        fits: Some(norms),
        story: "epsilon of the norm is not the model's",
        seen: "early layers, where the input is small, are off by a factor near 1; late ones are not",
        remedy: "read <arch>.attention.layer_norm_rms_epsilon from the GGUF",
        params: &[Param::new("eps", "epsilon", 1e-5).searched(&[1e-6, 1e-8, 0.0])],
        apply: |node, values, _| {
            let (eps, own) = (values[0], norm(node)?);
            (own.eps != eps).then(|| node.with(Op::RmsNorm(RmsNorm { eps, ..own.clone() })))
        },
        of_model: true,
        propose: Some(|e| {
            let mut all = vec![1e-5, 1e-6, 0.0];
            if let Some(eps) = fitted_eps(e) {
                all.extend([rounded(eps, 1), rounded(eps, 2), rounded(eps, 4), eps]);
            }
            each(all)
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gelu-for-silu",
        fits: Some(activation),
        story: "{kind} is used in place of SiLU",
        seen: "right for large gates, wrong for small ones",
        remedy: "compute x * sigmoid(x) of {input}, and multiply it by the other factor, if there is one",
        params: &[Param::new("kind", "0: GELU, 1: quick GELU, 2: ReLU", 0.0).searched(&[1.0, 2.0])],
        apply: |node, values, _| match values[0] as i64 {
            0 => activated(node, gelu),
            1 => activated(node, |g| g / (1.0 + (-1.702 * g).exp())),
            2 => activated(node, |g| g.max(0.0)),
            _ => None,
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gate-up-operands-swapped",
        fits: Some(gates),
        story: "the activation is applied to the other factor instead of {input}",
        seen: "both factors are right and their product is not",
        remedy: "apply the activation to {input}, and multiply the result by the other factor",
        apply: |node, _, _| Some(Node { inputs: node.inputs.iter().rev().copied().collect(), ..node.clone() }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "residual-missing",
        fits: Some(residuals),
        story: "the residual is not added: only the block's output is left",
        seen: "the hidden state forgets the token within a layer",
        remedy: "add the block's input to its output",
        apply: |node, _, _| Some(node.left_out()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "residual-wrong-side",
        fits: Some(residuals),
        story: "the residual is taken from the wrong side of the norm: what is added is the norm's output",
        seen: "the hidden state stays small and changes too fast from layer to layer",
        remedy: "add the input of the norm, not its output, to the block's output",
        apply: |node, _, graph| {
            let mut nodes = graph.nodes.iter();
            let normed = nodes.position(|n| {
                norm(n).is_some() && n.id.layer == node.id.layer && n.inputs.first() == node.inputs.get(1)
            })?;
            Some(Node { inputs: vec![node.inputs[0], normed], ..node.clone() })
        },
        ..Mutation::PLAIN
    },
];

#[cfg(test)]
mod tests {
    use crate::mutations::find;
    use qdiff_engine::model::{qwen3, skeleton};

    /// The headline said "another activation is used in place of SiLU (0: GELU, 1: quick GELU, 2: ReLU)", and the remedy
    /// "read <arch>.rope.freq_base".
    #[test]
    fn a_choice_and_the_architecture_are_told_by_name() {
        let mutation = find("gelu-for-silu").unwrap();
        assert_eq!(mutation.story(&[2.0]), "ReLU is used in place of SiLU");
        assert_eq!(mutation.choices(), "GELU or quick GELU or ReLU is used in place of SiLU");
        let graph = skeleton(qwen3::graph, 1);
        let (_, remedy) = find("rope-base").unwrap().told(&[1e4], (&graph.nodes[0], true), &graph);
        assert_eq!(remedy, "read qwen3.rope.freq_base from the GGUF; frequency i of n is base^(-i/n)");
    }
}
