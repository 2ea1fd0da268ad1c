//! Weights left out, or taken for each other.

use super::places::{head, norms, rotations};
use super::{Mutation, Param, each};
use qdiff_engine::model::{Graph, Node, Role, StageId, Weight};
use qdiff_engine::ops::anatomy::{Elementwise, Gather, RowReduction};
use qdiff_engine::ops::{self, Anatomy, Context, Definition as _, Tensor};

/// Weights that `node` could take for its own first one: those of its layer
/// that have the same extent, in the order of the graph.
fn alike<'g>(node: &Node, graph: &'g Graph) -> Vec<&'g Weight> {
    let Some(own) = node.weights.first() else {
        return Vec::new();
    };
    let beside = |n: &&Node| (n.id.layer, n.id.rank) == (node.id.layer, node.id.rank);
    let of_layer = graph.nodes.iter().filter(beside);
    of_layer.flat_map(|n| &n.weights).filter(|w| w.name != own.name && w.extent == own.extent).collect()
}

/// The node with the weights of another.
fn with_weights_of(node: &Node, other: &Node) -> Option<Node> {
    (other.weights != node.weights).then(|| Node { weights: other.weights.clone(), ..node.clone() })
}

/// What `node` does first, then the norm whose result is its operand `at`.
fn norm_after(node: &Node, at: usize, graph: &Graph) -> Option<Node> {
    let input = &graph.nodes[*node.inputs.get(at)?];
    let (first, norm, weights) = (node.op.clone(), input.op.clone(), input.weights.clone());
    let late = node.computing(move |inputs, c| {
        let (made, off) = ops::forward_with_bound(&first, inputs, c);
        let flat = Tensor { shape: vec![made.rows(), made.row_len()], data: made.data };
        let (mut y, mut bound) = ops::forward_with_bound(&norm, &[&flat], &Context { weights: &weights, ..*c });
        // What is rounded before the norm is scaled as the value itself is.
        for ((b, off), (y, x)) in bound.iter_mut().zip(off).zip(y.data.iter().zip(&flat.data)) {
            if *x != 0.0 {
                *b += off * (y / x).abs() as f32;
            }
        }
        y.shape = made.shape;
        (y, bound)
    });
    // The operand of a norm that comes too late is what should have been normed.
    let mut inputs = node.inputs.clone();
    inputs[at] = input.inputs[0];
    Some(Node { inputs, ..late })
}

/// Layers further on, the nearest first.
fn layers_off(graph: &Graph, _: &Node) -> Vec<Vec<f64>> {
    let layers = graph.config.n_layers as i32;
    let mut off: Vec<i32> = (1 - layers..layers).filter(|&off| off != 0).collect();
    off.sort_by_key(|off| (off.abs(), *off > 0));
    each(off.into_iter().map(f64::from))
}

/// Numbers of the tensors that are as large.
fn others(graph: &Graph, node: &Node) -> Vec<Vec<f64>> {
    each((0..alike(node, graph).len()).map(|i| i as f64))
}

/// Where `node` is the product of gate or up, or its half of a product of both, the other one's, of the same experts if it is one
/// of experts.
fn beside_the_gate<'a>(graph: &'a Graph, node: &Node) -> Option<&'a Node> {
    let role = match node.role {
        Role::Gate => Role::Up,
        Role::Up => Role::Gate,
        _ => return None,
    };
    let alike = |n: &&Node| match (n.op.anatomy(), node.op.anatomy()) {
        (Anatomy::Gather(Gather::Columns(_)), Anatomy::Gather(Gather::Columns(_))) => n.inputs == node.inputs,
        (other, own) => own.multiplies_weights() && other == own,
    };
    let mut layer = graph.nodes.iter().filter(|n| (n.id.layer, n.id.rank) == (node.id.layer, node.id.rank));
    layer.find(|n| n.role == role && alike(n))
}

/// The node with what another one takes in the place of its own.
fn exchanged(node: &Node, other: &Node) -> Option<Node> {
    if node.weights.is_empty() {
        return Some(Node { op: other.op.clone(), ..node.clone() });
    }
    with_weights_of(node, other)
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "qkv-bias-omitted",
        fits: Some(|_, n| n.op.anatomy() == Anatomy::Elementwise(Elementwise::Offset)),
        story: "the bias is not added",
        seen: "fluent nonsense, tokens repeated; biases above 100 are normal in Qwen2.5",
        remedy: "add {weight} after the projection; biases above 100 are normal in Qwen2.5",
        apply: |node, _, _| Some(node.left_out()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "qk-norm-omitted",
        fits: Some(|_, n| {
            matches!(
                (n.op.anatomy(), n.role),
                (Anatomy::RowReduction(RowReduction::MeanSquare(_)), Role::Query | Role::Key)
            )
        }),
        story: "the norm over each head is left out",
        seen: "q and k of Qwen3 are far too large, attention is nearly one-hot",
        remedy: "apply RMSNorm with {weight} to every head before RoPE (Qwen3)",
        apply: |node, _, _| Some(node.left_out()),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "qk-norm-after-rope",
        fits: Some(|g, n| rotations(g, n) && norms(g, &g.nodes[n.inputs[0]])),
        story: "the norm over each head is applied after the rotation",
        seen: "right at position 0 only, where nothing rotates, if the norm's weight were constant",
        remedy: "norm each head of q and k first, then rotate (Qwen3)",
        apply: |node, _, graph| norm_after(node, 0, graph),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gate-before-norm",
        fits: Some(|g, n| {
            let gates = matches!(n.op.anatomy(), Anatomy::Elementwise(Elementwise::Gated(_)));
            gates && n.inputs.get(1).is_some_and(|&of| norms(g, &g.nodes[of]))
        }),
        story: "the gate multiplies before the norm over each head, and not after it",
        seen: "each head of the gated output has the size that the norm's weight gives it, for any value of the gate",
        remedy: "norm each head of the delta net's output first, then multiply by the gate's SiLU",
        apply: |node, _, graph| norm_after(node, 1, graph),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "gate-up-weights-swapped",
        fits: Some(|g, n| beside_the_gate(g, n).is_some()),
        story: "the weights of gate and up are taken for each other",
        seen: "both projections wrong, each equal to what the other should be",
        remedy: "exchange gate and up where they are loaded: {stage} has the tensor of the other, or its half of a tensor of both",
        apply: |node, _, graph| exchanged(node, beside_the_gate(graph, node)?),
        entire: true,
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tied-head-wrong",
        fits: Some(head),
        story: "the token embedding serves as output projection although the file has {weight}",
        seen: "everything is right up to the last norm; logits are plausible and wrong at every id",
        remedy: "use {weight} where the file has it; the token embedding only where it has not",
        apply: |node, _, graph| with_weights_of(node, graph.first(Role::Embedding)?),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tensor-mapped-wrong",
        fits: Some(|_, n| n.id.layer.is_some() && !n.weights.is_empty()),
        story: "the weight of another layer is used: {other}",
        seen: "one stage, or all of a layer, wrong everywhere with the size of the right one",
        remedy: "check the map from tensor names to layers: the number in {weight} is the layer's",
        params: &[Param::new("off", "layers by which the weight is off", -1.0)],
        apply: |node, values, graph| {
            let other = f64::from(node.id.layer?) + values[0];
            if !(0.0..graph.config.n_layers as f64).contains(&other) {
                return None;
            }
            let other = graph.index(StageId { layer: Some(other as u16), ..node.id })?;
            with_weights_of(node, &graph.nodes[other])
        },
        guess: Some(layers_off),
        propose: Some(|e| layers_off(&e.oracle.graph, e.node)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tensor-taken-for-another",
        // Gate and up taken for each other have a name of their own.
        fits: Some(|_, n| n.id.layer.is_some() && !n.weights.is_empty() && !matches!(n.role, Role::Gate | Role::Up)),
        story: "another tensor of the same extent in the same layer is used: {other}",
        seen: "one stage wrong everywhere with a plausible size: k for v, q for the attention output",
        remedy: "check the names under which the layer's tensors are looked up: {stage} takes {weight}",
        params: &[Param::new(
            "which",
            "number of the other tensor among those of the layer with this extent, from 0",
            0.0,
        )],
        apply: |node, values, graph| {
            let other = *alike(node, graph).get(values[0] as usize)?;
            let rest = node.weights.iter().skip(1);
            Some(Node { weights: [other].into_iter().chain(rest).cloned().collect(), ..node.clone() })
        },
        guess: Some(others),
        propose: Some(|e| others(&e.oracle.graph, e.node)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "tensor-not-loaded",
        // A bias of zeros is a bias left out.
        fits: Some(|_, n| {
            let is_offset = n.op.anatomy() == Anatomy::Elementwise(Elementwise::Offset);
            !n.weights.is_empty() && !is_offset && n.op.name() != ops::Softplus.name()
        }),
        story: "the weight was never loaded: its buffer holds zeros",
        seen: "a projection that is zero throughout, or a norm that gives nothing",
        remedy: "check that {weight} is found and copied before the first step, as every tensor the graph names",
        whole_run: true,
        apply: |node, _, _| Some(node.reading(|_, _, _, out| out.fill(0.0))),
        ..Mutation::PLAIN
    },
];

#[cfg(test)]
mod tests {
    use crate::mutations::Injection;
    use qdiff_engine::model::{Role, StageId, qwen2, skeleton};
    use qdiff_engine::ops::Op;
    use qdiff_engine::quant::KvType;

    /// What an injection changes, in a graph of three layers.
    fn changed(text: &str) -> Vec<StageId> {
        let mut graph = skeleton(qwen2::graph, 3);
        let right = graph.clone();
        let told = Injection::parse(text).unwrap().rewrite(&mut graph, KvType::F32).unwrap();
        let touched = graph.nodes.iter().zip(&right.nodes);
        let touched = touched.filter(|(new, old)| !new.faults.none() || new.weights != old.weights);
        assert_eq!(touched.map(|(new, _)| new.id).collect::<Vec<_>>(), told, "{text}");
        told
    }

    #[test]
    fn tensors_are_spoiled_where_no_other_mutation_says_it_better() {
        let graph = skeleton(qwen2::graph, 3);
        let of = |id: &StageId| &graph.nodes[graph.index(*id).unwrap()];
        let unloaded = changed("tensor-not-loaded@L01");
        assert_eq!(unloaded.len(), 9, "two norms and seven matrices: {unloaded:?}");
        assert!(unloaded.iter().all(|id| of(id).op != Op::Bias));
        let mistaken = changed("tensor-taken-for-another");
        assert!(!mistaken.is_empty() && mistaken.iter().all(|id| id.layer.is_some()), "{mistaken:?}");
        let named = [Role::Embedding, Role::Logits, Role::Gate, Role::Up];
        assert!(mistaken.iter().all(|id| !named.contains(&of(id).role)), "{mistaken:?}");
    }
}
