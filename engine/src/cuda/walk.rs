//! Goes back through a graph along inputs and ops: what the decoders that the fused path knows have in common.

use super::known::{Known, known};
use crate::model::{Graph, Node};
use crate::ops::Op;

/// What follows the second norm of a layer.
#[derive(Clone, Debug)]
pub enum Ffn {
    Dense(Mlp),
    Experts(Experts),
}

/// A gated network, whose result is that of `down`.
#[derive(Clone, Debug)]
pub struct Mlp {
    pub gate: usize,
    pub up: usize,
    /// Gated up.
    pub act: usize,
    pub down: usize,
}

/// A mixture of experts, whose result is `sum`.
#[derive(Clone, Debug)]
pub struct Experts {
    pub router: usize,
    pub probs: usize,
    pub chosen: usize,
    /// Probabilities of the chosen ones.
    pub weights: usize,
    /// These by their sum.
    pub shares: Option<usize>,
    /// The network of each chosen one.
    pub each: Mlp,
    pub sum: usize,
}

impl Ffn {
    /// Its nodes.
    pub fn nodes(&self) -> Vec<usize> {
        let of = |mlp: &Mlp| [mlp.gate, mlp.up, mlp.act, mlp.down];
        match self {
            Self::Dense(mlp) => of(mlp).to_vec(),
            Self::Experts(e) => {
                let router = [e.router, e.probs, e.chosen, e.weights].into_iter().chain(e.shares);
                router.chain(of(&e.each)).chain([e.sum]).collect()
            }
        }
    }
}

/// Ops that more than one of a layer's nodes has.
pub(super) const LINEAR: fn(&Op) -> bool = |op| matches!(op, Op::Linear);
pub(super) const NORM: fn(&Op) -> bool = |op| matches!(op, Op::RmsNorm(_));
pub(super) const CACHE: fn(&Op) -> bool = |op| matches!(op, Op::KvCache(_));
pub(super) const ROPE: fn(&Op) -> bool = |op| matches!(op, Op::Rope(_));
pub(super) const BIAS: fn(&Op) -> bool = |op| matches!(op, Op::Bias);
const OF_EXPERTS: fn(&Op) -> bool = |op| matches!(defined(op), Some(Known::ExpertLinear(_)));

/// Which of the ops it is that are known by their definitions.
pub(super) fn defined(op: &Op) -> Option<Known<'_>> {
    match op {
        Op::Defined(op) => known(op),
        _ => None,
    }
}

/// Goes back through a graph.
pub(super) struct Walk<'a>(pub(super) &'a Graph);

impl Walk<'_> {
    pub(super) fn node(&self, i: usize) -> &Node {
        &self.0.nodes[i]
    }

    /// Input `k` of node `i`, if `is` holds of its op.
    pub(super) fn input(&self, i: usize, k: usize, is: fn(&Op) -> bool) -> Option<usize> {
        let from = *self.node(i).inputs.get(k)?;
        is(&self.node(from).op).then_some(from)
    }

    /// From the input of `i` back over what `is` holds of, if anything.
    pub(super) fn skip(&self, i: usize, is: fn(&Op) -> bool) -> (Option<usize>, usize) {
        match self.input(i, 0, is) {
            Some(node) => (Some(node), node),
            None => (None, i),
        }
    }

    /// The embedding, the layers, and the last norm and the logits. `layer` gives the layer that ends with a sum, and the node that it reads.
    pub(super) fn down<L>(&self, layer: impl Fn(usize) -> Option<(L, usize)>) -> Option<(usize, Vec<L>, [usize; 2])> {
        let logits = self.0.nodes.len().checked_sub(1)?;
        let final_norm = self.input(logits, 0, NORM)?;
        let (mut layers, mut at) = (Vec::new(), *self.node(final_norm).inputs.first()?);
        while !matches!(self.node(at).op, Op::Embed) {
            let (found, below) = layer(at)?;
            layers.push(found);
            at = below;
        }
        layers.reverse();
        Some((at, layers, [final_norm, logits]))
    }

    /// The gated network that ends with the product `down`; `is` holds of the ops of its products.
    fn mlp(&self, down: usize, is: fn(&Op) -> bool) -> Option<Mlp> {
        let act = self.input(down, 0, |op| matches!(op, Op::SwiGlu))?;
        let (gate, up) = (self.input(act, 0, is)?, self.input(act, 1, is)?);
        let inputs = |i: usize| &self.node(i).inputs;
        // Of experts, both are of the same ones.
        (inputs(gate) == inputs(up) && inputs(gate)[1..] == inputs(down)[1..]).then_some(Mlp { gate, up, act, down })
    }

    /// What ends in the sum `out`, and the norm that it begins with.
    pub(super) fn ffn(&self, out: usize) -> Option<(Ffn, usize)> {
        if let Some(down) = self.input(out, 0, LINEAR) {
            let mlp = self.mlp(down, LINEAR)?;
            let norm = self.input(mlp.gate, 0, NORM)?;
            return Some((Ffn::Dense(mlp), norm));
        }
        let sum = self.input(out, 0, |op| matches!(defined(op), Some(Known::WeightedSum(_))))?;
        let each = self.mlp(self.input(sum, 1, OF_EXPERTS)?, OF_EXPERTS)?;
        let norm = self.input(each.gate, 0, NORM)?;
        let chosen = self.input(each.gate, 1, |op| matches!(defined(op), Some(Known::TopK(_))))?;
        let probs = self.input(chosen, 0, |op| matches!(defined(op), Some(Known::RowSoftmax)))?;
        let router = self.input(probs, 0, LINEAR)?;
        let shares = self.input(sum, 0, |op| matches!(defined(op), Some(Known::RowShares)));
        let weights = self.input(shares.unwrap_or(sum), 0, |op| matches!(defined(op), Some(Known::Gather)))?;
        let whole = self.node(weights).inputs == [probs, chosen] && self.node(router).inputs == [norm];
        whole.then_some((Ffn::Experts(Experts { router, probs, chosen, weights, shares, each, sum }), norm))
    }
}
