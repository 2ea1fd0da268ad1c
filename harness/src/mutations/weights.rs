//! Weights left out, or taken for each other.

use super::{Mutation, Param};
use qdiff_engine::model::fault::{Compute, Read};
use qdiff_engine::model::{Graph, Node, WeightSource};
use qdiff_engine::ops::{self, Context, Op, RmsNorm, Rope, Tensor};
use std::sync::Arc;

fn leave_out(node: &mut Node, _: &[f64], _: &Graph) -> bool {
    node.op = Op::Copy;
    true
}

/// Other tensors that `node` could take for its own: those of its layer that
/// have the same extent, in the order of the graph.
fn alike(node: &Node, graph: &Graph) -> Vec<String> {
    let all = graph.weights();
    let Some((own, extent)) = all.iter().find(|(n, _)| Some(n) == node.weight.as_ref()) else {
        return Vec::new();
    };
    let layer = |name: &str| name.rsplitn(3, '.').nth(2).map(str::to_owned);
    all.iter().filter(|(n, e)| n != own && e == extent && layer(n) == layer(own)).map(|(n, _)| n.clone()).collect()
}

/// A buffer that nothing was loaded into.
#[derive(Debug)]
struct Nothing;

impl Read for Nothing {
    fn row(&self, _: &dyn WeightSource, _: &str, _: usize, out: &mut [f32]) {
        out.fill(0.0);
    }
}

/// The rotation first, then the norm over each head.
#[derive(Debug)]
struct NormOfRotated {
    rope: Rope,
    norm: RmsNorm,
    weight: String,
}

impl Compute for NormOfRotated {
    fn evaluate(&self, inputs: &[&Tensor<f64>], c: &Context<'_>) -> (Tensor<f64>, Vec<f32>) {
        let (turned, first) = ops::forward_with_bound(&Op::Rope(self.rope.clone()), inputs, c);
        let shape = turned.shape.clone();
        let flat = Tensor { shape: vec![shape[0], shape[1] * shape[2]], data: turned.data };
        let context = Context { weight: &self.weight, ..*c };
        let (mut y, mut bound) = ops::forward_with_bound(&Op::RmsNorm(self.norm.clone()), &[&flat], &context);
        // What the rotation rounds is scaled as the value itself is.
        for ((b, first), (y, x)) in bound.iter_mut().zip(first).zip(y.data.iter().zip(&flat.data)) {
            if *x != 0.0 {
                *b += first * (y / x).abs() as f32;
            }
        }
        y.shape = shape;
        (y, bound)
    }
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "qkv-bias-omitted",
        stages: &["q_biased", "k_biased", "v_biased"],
        story: "the bias is not added",
        seen: "fluent nonsense, tokens repeated; the biases look too large to be real and are real",
        remedy: "add blk.N.attn_{q,k,v}.bias after the projection; values of -30 and beyond are real",
        apply: leave_out,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "qk-norm-omitted",
        stages: &["q_normed", "k_normed"],
        story: "the norm over each head is left out",
        seen: "q and k of Qwen3 are far too large, attention is nearly one-hot",
        remedy: "apply RMSNorm with blk.N.attn_{q,k}_norm.weight to every head before RoPE (Qwen3)",
        apply: leave_out,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "qk-norm-after-rope",
        stages: &["q_rope", "k_rope"],
        story: "the norm over each head is applied after the rotation",
        seen: "right at position 0 only, where nothing rotates, if the norm's weight were constant",
        remedy: "norm each head of q and k first, then rotate (Qwen3)",
        apply: |node, _, graph| {
            let input = &graph.nodes[node.inputs[0]];
            let (Op::Rope(rope), Op::RmsNorm(norm), Some(weight)) = (&node.op, &input.op, &input.weight) else {
                return false;
            };
            node.faults.compute =
                Some(Arc::new(NormOfRotated { rope: rope.clone(), norm: norm.clone(), weight: weight.clone() }));
            // The operand of a norm that comes too late is what should have been normed.
            node.inputs[0] = input.inputs[0];
            true
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gate-up-weights-swapped",
        stages: &["ffn_gate", "ffn_up"],
        story: "ffn_gate.weight and ffn_up.weight are taken for each other",
        seen: "both projections wrong, each equal to what the other should be",
        remedy: "load blk.N.ffn_gate.weight as gate and blk.N.ffn_up.weight as up",
        apply: |node, _, _| {
            let Some(name) = &mut node.weight else {
                return false;
            };
            *name = if name.contains("gate") { name.replace("gate", "up") } else { name.replace("up", "gate") };
            true
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tied-head-wrong",
        stages: &["logits"],
        story: "the token embedding serves as output projection although the file has output.weight",
        seen: "everything is right up to the last norm; logits are plausible and wrong at every id",
        remedy: "use output.weight where the file has it; token_embd.weight only where it has not",
        apply: |node, _, graph| {
            let embedding = graph.nodes.iter().find_map(|n| match &n.op {
                Op::Embed { .. } => n.weight.clone(),
                _ => None,
            });
            let other = embedding.is_some() && embedding != node.weight;
            node.weight = embedding;
            other
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tensor-mapped-wrong",
        stages: &["*"],
        story: "the weight of another layer is used",
        seen: "one stage, or all of a layer, wrong everywhere with the size of the right one",
        remedy: "check the map from tensor names to layers: blk.N belongs to layer N",
        params: &[Param { name: "off", help: "layers by which the weight is off", default: -1.0, search: &[] }],
        apply: |node, values, graph| {
            let (Some(layer), Some(name)) = (node.id.layer, &mut node.weight) else {
                return false;
            };
            let other = f64::from(layer) + values[0];
            if values[0] == 0.0 || !(0.0..graph.config.n_layers as f64).contains(&other) {
                return false;
            }
            *name = name.replacen(&format!("blk.{layer}."), &format!("blk.{other}."), 1);
            true
        },
        propose: Some(|e| {
            let layers = e.oracle.graph.config.n_layers as i32;
            let mut off: Vec<i32> = (1 - layers..layers).filter(|&off| off != 0).collect();
            off.sort_by_key(|off| (off.abs(), *off > 0));
            off.into_iter().map(|off| vec![f64::from(off)]).collect()
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tensor-taken-for-another",
        stages: &["*"],
        story: "another tensor of the same extent in the same layer is used",
        seen: "one stage wrong everywhere with a plausible size: k for v, q for the attention output",
        remedy: "check the names under which the layer's tensors are looked up",
        params: &[Param {
            name: "which",
            help: "number of the other tensor among those of the layer with this extent, from 0",
            default: 0.0,
            search: &[],
        }],
        apply: |node, values, graph| {
            // That pair has a name of its own.
            if node.id.name == "ffn_gate" || node.id.name == "ffn_up" {
                return false;
            }
            let Some(other) = alike(node, graph).into_iter().nth(values[0] as usize) else {
                return false;
            };
            node.weight = Some(other);
            node.id.layer.is_some()
        },
        propose: Some(|e| {
            let count = alike(e.node, &e.oracle.graph).len();
            (0..count).map(|i| vec![i as f64]).collect()
        }),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tensor-not-loaded",
        stages: &["*"],
        story: "the weight was never loaded: its buffer holds zeros",
        seen: "a projection that is zero throughout, or a bias that does nothing",
        remedy: "check that every tensor the graph names is found and copied before the first step",
        apply: |node, _, _| {
            node.faults.read = Some(Arc::new(Nothing));
            // A bias of zeros is a bias left out.
            node.weight.is_some() && node.op != Op::Bias
        },
        ..Mutation::PLAIN
    },
];
