//! The shape of a decoder, read off the graph: which node of a layer is which.
//!
//! The fused path knows one shape, that of Qwen2 and Qwen3, with a network or a mixture of experts in a layer. It finds the nodes
//! by walking from the logits backwards along inputs and ops, so that stages are named in the graph alone.

use super::hybrid;
use super::walk::{BIAS, CACHE, LINEAR, NORM, ROPE, Walk};
pub use super::walk::{Experts, Ffn, Mlp};
use crate::model::Graph;
use crate::ops::Op;

/// Nodes of a layer, by index: named as the stages, or for several of them.
#[derive(Clone, Debug)]
pub struct Layer {
    pub attn_norm: usize,
    /// Projections to q, k and v.
    pub proj: [usize; 3],
    /// Their biases.
    pub biased: [Option<usize>; 3],
    /// Norms per head, of q and k.
    pub normed: [Option<usize>; 2],
    /// Rotations, of q and k.
    pub rope: [usize; 2],
    /// Caches, of k and v.
    pub cache: [usize; 2],
    pub scores: usize,
    /// Softmax of the scores.
    pub weights: usize,
    pub context: usize,
    pub attn_out: usize,
    pub attn_residual: usize,
    pub ffn_norm: usize,
    pub ffn: Ffn,
    /// Sum with the attention's result.
    pub out: usize,
}

impl Layer {
    /// The nodes from the first norm to the caches.
    pub fn up_to_caches(&self) -> Vec<usize> {
        let made = [self.attn_norm].into_iter().chain(self.proj);
        let made = made.chain(self.biased.into_iter().chain(self.normed).flatten());
        made.chain(self.rope).chain(self.cache).collect()
    }
}

/// The nodes of a model, by index; layers first first.
#[derive(Clone, Debug)]
pub struct Decoder {
    pub embed: usize,
    pub layers: Vec<Layer>,
    /// In place of these, where delta nets stand between layers of gated attention.
    pub mixed: Vec<hybrid::Layer>,
    pub final_norm: usize,
    pub logits: usize,
}

impl Walk<'_> {
    fn layer(&self, out: usize) -> Option<(Layer, usize)> {
        let attn_residual = self.input(out, 1, |op| matches!(op, Op::Residual))?;
        let (ffn, ffn_norm) = self.ffn(out)?;
        let attn_out = self.input(attn_residual, 0, LINEAR)?;
        let context = self.input(attn_out, 0, |op| matches!(op, Op::AttnContext(_)))?;
        let weights = self.input(context, 0, |op| matches!(op, Op::AttnWeights(_)))?;
        let v_cache = self.input(context, 1, CACHE)?;
        let scores = self.input(weights, 0, |op| matches!(op, Op::AttnScores(_)))?;
        let q_rope = self.input(scores, 0, ROPE)?;
        let k_cache = self.input(scores, 1, CACHE)?;
        let k_rope = self.input(k_cache, 0, ROPE)?;
        let (q_normed, q) = self.skip(q_rope, NORM);
        let (k_normed, k) = self.skip(k_rope, NORM);
        let (q_biased, q) = self.skip(q, BIAS);
        let (k_biased, k) = self.skip(k, BIAS);
        let (v_biased, v) = self.skip(v_cache, BIAS);
        let proj = [self.input(q, 0, LINEAR)?, self.input(k, 0, LINEAR)?, self.input(v, 0, LINEAR)?];
        let attn_norm = self.input(proj[0], 0, NORM)?;
        let below = *self.node(attn_norm).inputs.first()?;
        let same = |x: &[usize], y: usize| x.iter().all(|&i| self.node(i).inputs[0] == y);
        let whole = same(&proj, attn_norm)
            && self.node(ffn_norm).inputs[0] == attn_residual
            && self.node(attn_residual).inputs[1] == below;
        let layer = Layer {
            attn_norm,
            proj,
            biased: [q_biased, k_biased, v_biased],
            normed: [q_normed, k_normed],
            rope: [q_rope, k_rope],
            cache: [k_cache, v_cache],
            scores,
            weights,
            context,
            attn_out,
            attn_residual,
            ffn_norm,
            ffn,
            out,
        };
        whole.then_some((layer, below))
    }
}

impl Decoder {
    /// Every node that it places, in no order.
    fn nodes(&self) -> impl Iterator<Item = usize> {
        let rest = |l: &Layer| {
            let attention = [l.scores, l.weights, l.context, l.attn_out, l.attn_residual];
            attention.into_iter().chain([l.ffn_norm, l.out]).chain(l.ffn.nodes())
        };
        let layers = self.layers.iter().flat_map(move |l| l.up_to_caches().into_iter().chain(rest(l)));
        [self.embed, self.final_norm, self.logits].into_iter().chain(layers)
    }

    /// The layer whose scores, weights or context node `index` is.
    pub fn attention_of(&self, index: usize) -> Option<&Layer> {
        self.layers.iter().find(|l| [l.scores, l.weights, l.context].contains(&index))
    }

    /// The decoder that `graph` is; `None` if it is another kind of model.
    pub fn of(graph: &Graph) -> Option<Self> {
        Self::plain(graph).or_else(|| {
            let (embed, mixed, [final_norm, logits]) = hybrid::of(graph)?;
            Some(Self { embed, layers: Vec::new(), mixed, final_norm, logits })
        })
    }

    fn plain(graph: &Graph) -> Option<Self> {
        let walk = Walk(graph);
        let (embed, layers, [final_norm, logits]) = walk.down(|at| walk.layer(at))?;
        let decoder = Self { embed, layers, mixed: Vec::new(), final_norm, logits };
        // A stage that it does not place would never be made.
        (decoder.nodes().count() == graph.nodes.len()).then_some(decoder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{qwen2, skeleton};

    #[test]
    fn another_model_is_not_taken_for_one() {
        let mut graph = skeleton(qwen2::graph, 3);
        let at = graph.nodes.iter().position(|n| matches!(n.op, Op::SwiGlu));
        graph.nodes[at.expect("there is one")].op = Op::Residual;
        assert!(Decoder::of(&graph).is_none());
    }
}
