//! The shape of the decoder of Qwen3.5, read off the graph: layers of gated attention, and between them layers of a gated delta net, each
//! with a dense network.

use super::kernels::constant;
use super::known::Known;
use super::walk::{CACHE, Ffn, LINEAR, Mlp, NORM, ROPE, Walk, defined};
use crate::model::{Graph, row_len};
use crate::ops::anatomy::Columns;
use crate::ops::{DeltaNet, Op};

/// Rows of a window that `mixer_in` is made for.
const MOST_PAST: usize = constant!("fused/mixer_in.cu", "MOST_PAST") as usize;

/// Nodes of a layer, by index.
#[derive(Clone, Debug)]
pub struct Layer {
    pub norm: usize,
    pub mixer: Mixer,
    /// The last product of the mixer.
    pub proj: usize,
    pub residual: usize,
    pub ffn_norm: usize,
    pub mlp: Mlp,
    pub out: usize,
}

/// What mixes tokens.
#[derive(Clone, Debug)]
pub enum Mixer {
    Attention(Gated),
    Delta(Delta),
}

/// Gated attention, whose result is `gated`.
#[derive(Clone, Debug)]
pub struct Gated {
    /// Queries and their gate in one product.
    pub both: usize,
    pub k: usize,
    pub v: usize,
    /// The queries, and the gate.
    pub halves: [usize; 2],
    pub normed: [usize; 2],
    pub rope: [usize; 2],
    pub cache: [usize; 2],
    pub scores: usize,
    pub weights: usize,
    pub context: usize,
    pub sigmoid: usize,
    pub gated: usize,
}

/// A gated delta net, whose result is `gated`.
#[derive(Clone, Debug)]
pub struct Delta {
    pub net: DeltaNet,
    pub qkv: usize,
    pub z: usize,
    /// The products of β and of the decay.
    pub products: [usize; 2],
    pub beta: usize,
    pub soft: usize,
    pub decay: usize,
    pub window: usize,
    pub convolved: usize,
    pub act: usize,
    /// q, k and v of what was convolved.
    pub parts: [usize; 3],
    /// q and k by their lengths.
    pub lengths: [usize; 2],
    pub state: usize,
    pub given: usize,
    pub normed: usize,
    pub gated: usize,
}

impl Mixer {
    /// Its nodes.
    fn nodes(&self) -> Vec<usize> {
        match self {
            Self::Attention(a) => {
                let pairs = [a.halves, a.normed, a.rope, a.cache].into_iter().flatten();
                let rest = [a.both, a.k, a.v, a.scores, a.weights, a.context, a.sigmoid, a.gated];
                pairs.chain(rest).collect()
            }
            Self::Delta(d) => {
                let some = [d.products, d.lengths].into_iter().flatten().chain(d.parts);
                let rest = [d.qkv, d.z, d.beta, d.soft, d.decay, d.window, d.convolved, d.act];
                some.chain(rest).chain([d.state, d.given, d.normed, d.gated]).collect()
            }
        }
    }

    /// The vector that the last product multiplies.
    pub fn result(&self) -> usize {
        match self {
            Self::Attention(a) => a.gated,
            Self::Delta(d) => d.gated,
        }
    }
}

impl Layer {
    pub fn nodes(&self) -> impl Iterator<Item = usize> {
        let mlp = [self.mlp.gate, self.mlp.up, self.mlp.act, self.mlp.down];
        let rest = [self.norm, self.proj, self.residual, self.ffn_norm, self.out];
        self.mixer.nodes().into_iter().chain(mlp).chain(rest)
    }
}

const COLUMNS: fn(&Op) -> bool = |op| matches!(defined(op), Some(Known::Columns(_)));
const SIGMOID: fn(&Op) -> bool = |op| matches!(defined(op), Some(Known::Unary("Sigmoid")));
const LENGTH: fn(&Op) -> bool = |op| matches!(defined(op), Some(Known::L2Norm(norm)) if norm.repeats == 1);

impl Walk<'_> {
    /// Which elements of its input a node is.
    fn columns(&self, i: usize) -> Option<Columns> {
        match defined(&self.node(i).op)? {
            Known::Columns(columns) => Some(columns),
            _ => None,
        }
    }

    /// The gated attention whose result is `gated`, and the norm that it begins with.
    fn gated(&self, gated: usize) -> Option<(Gated, usize)> {
        let context = self.input(gated, 0, |op| matches!(op, Op::AttnContext(_)))?;
        let sigmoid = self.input(gated, 1, SIGMOID)?;
        let gate = self.input(sigmoid, 0, COLUMNS)?;
        let both = self.input(gate, 0, LINEAR)?;
        let weights = self.input(context, 0, |op| matches!(op, Op::AttnWeights(_)))?;
        let v_cache = self.input(context, 1, CACHE)?;
        let scores = self.input(weights, 0, |op| matches!(op, Op::AttnScores(_)))?;
        let q_rope = self.input(scores, 0, ROPE)?;
        let k_cache = self.input(scores, 1, CACHE)?;
        let k_rope = self.input(k_cache, 0, ROPE)?;
        let (q_normed, k_normed) = (self.input(q_rope, 0, NORM)?, self.input(k_rope, 0, NORM)?);
        let half = self.input(q_normed, 0, COLUMNS)?;
        let (k, v) = (self.input(k_normed, 0, LINEAR)?, self.input(v_cache, 0, LINEAR)?);
        let norm = self.input(both, 0, NORM)?;
        let Op::AttnContext(attention) = &self.node(context).op else { return None };
        let (run, runs) = (attention.head_dim, attention.n_heads);
        let columns = |first: usize| Columns { first, run, stride: 2 * run, runs };
        let whole = self.node(half).inputs == [both]
            && self.columns(half) == Some(columns(0))
            && self.columns(gate) == Some(columns(run))
            && [k, v].iter().all(|&i| self.node(i).inputs == [norm]);
        let (halves, normed, rope) = ([half, gate], [q_normed, k_normed], [q_rope, k_rope]);
        let cache = [k_cache, v_cache];
        let all = Gated { both, k, v, halves, normed, rope, cache, scores, weights, context, sigmoid, gated };
        whole.then_some((all, norm))
    }

    /// The gated delta net whose result is `gated`, and the norm that it begins with.
    fn delta(&self, gated: usize) -> Option<(Delta, usize)> {
        let (z, normed) = (self.input(gated, 0, LINEAR)?, self.input(gated, 1, NORM)?);
        let given = self.input(normed, 0, |op| matches!(defined(op), Some(Known::DeltaNet(_))))?;
        let Some(Known::DeltaNet(&net)) = defined(&self.node(given).op) else { return None };
        let [.., decay, beta, state] = *self.node(given).inputs else { return None };
        let lengths = [self.input(given, 0, LENGTH)?, self.input(given, 1, LENGTH)?];
        let v = self.input(given, 2, COLUMNS)?;
        let soft = self.input(decay, 0, |op| matches!(defined(op), Some(Known::Softplus)))?;
        let products = [self.input(beta, 0, LINEAR)?, self.input(soft, 0, LINEAR)?];
        let parts = [self.input(lengths[0], 0, COLUMNS)?, self.input(lengths[1], 0, COLUMNS)?, v];
        let act = self.input(v, 0, |op| matches!(defined(op), Some(Known::Unary("Silu"))))?;
        let convolved = self.input(act, 0, |op| matches!(defined(op), Some(Known::Convolution(_))))?;
        let qkv = self.input(convolved, 0, LINEAR)?;
        let window = self.input(convolved, 1, |op| matches!(defined(op), Some(Known::Window(_))))?;
        let norm = self.input(qkv, 0, NORM)?;
        let is = |i: usize, known: fn(Known<'_>) -> bool| defined(&self.node(i).op).is_some_and(known);
        let [keys, values] = [net.key_heads, net.heads].map(|heads| heads * net.dim);
        let ranges = [(0, keys), (keys, keys), (2 * keys, values)].map(|(first, run)| Columns::range(first, run));
        let whole = is(decay, |known| matches!(known, Known::VectorFactor))
            && SIGMOID(&self.node(beta).op)
            && is(state, |known| matches!(known, Known::DeltaState(_)))
            && self.node(state).inputs == self.node(given).inputs[..5]
            && self.node(window).inputs == [qkv]
            && parts.iter().all(|&i| self.node(i).inputs == [act])
            && std::iter::zip(parts, ranges).all(|(i, range)| self.columns(i) == Some(range))
            && [z, products[0], products[1]].iter().all(|&i| self.node(i).inputs == [norm]);
        let delta = Delta {
            net,
            qkv,
            z,
            products,
            beta,
            soft,
            decay,
            window,
            convolved,
            act,
            parts,
            lengths,
            state,
            given,
            normed,
            gated,
        };
        whole.then_some((delta, norm))
    }

    /// The layer that ends with the sum `out`, and the node that the layer reads.
    fn mixed(&self, out: usize) -> Option<(Layer, usize)> {
        let residual = self.input(out, 1, |op| matches!(op, Op::Residual))?;
        let (ffn, ffn_norm) = self.ffn(out)?;
        let Ffn::Dense(mlp) = ffn else { return None };
        let proj = self.input(residual, 0, LINEAR)?;
        let result = *self.node(proj).inputs.first()?;
        let attention = self.gated(result).map(|(gated, norm)| (Mixer::Attention(gated), norm));
        let (mixer, norm) = attention.or_else(|| self.delta(result).map(|(d, norm)| (Mixer::Delta(d), norm)))?;
        let below = *self.node(norm).inputs.first()?;
        let whole = self.node(ffn_norm).inputs == [residual] && self.node(residual).inputs[1] == below;
        whole.then_some((Layer { norm, mixer, proj, residual, ffn_norm, mlp, out }, below))
    }
}

/// The embedding, the layers, and the last norm and the logits of `graph`; `None` if it is another kind of model.
pub fn of(graph: &Graph) -> Option<(usize, Vec<Layer>, [usize; 2])> {
    let walk = Walk(graph);
    let (embed, mixed, ends) = walk.down(|at| walk.mixed(at))?;
    // A stage that it does not place would never be made.
    let placed = 3 + mixed.iter().flat_map(Layer::nodes).count();
    (placed == graph.nodes.len()).then_some((embed, mixed, ends))
}

/// What keeps a decoder with delta nets from being one that the fused kernels know, as far as it is known.
pub fn missing(graph: &Graph) -> Option<&'static str> {
    let has = |is: fn(Known<'_>) -> bool| graph.nodes.iter().any(|node| defined(&node.op).is_some_and(is));
    if !has(|known| matches!(known, Known::DeltaState(_))) {
        return None;
    }
    if has(|known| matches!(known, Known::L2Norm(norm) if norm.repeats > 1)) {
        return Some("delta nets whose keys are repeated");
    }
    has(|known| matches!(known, Known::TopK(_))).then_some("experts beside a shared one after a delta net")
}

/// What of its layers the fused kernels are not made for.
pub fn unfit(graph: &Graph, layers: &[Layer]) -> Option<String> {
    layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(_) => {
            let d = graph.config.head_dim;
            (![32, 64, 128, 256].contains(&d)).then(|| format!("gated heads of {d} elements"))
        }
        Mixer::Delta(delta) => {
            let Some(Known::Window(window)) = defined(&graph.nodes[delta.window].op) else { return None };
            let d = delta.net.dim;
            if ![16, 32, 64, 128].contains(&d) {
                return Some(format!("a delta net with heads of {d} elements"));
            }
            (window.rows > MOST_PAST).then(|| format!("a convolution over {} tokens", window.rows + 1))
        }
    })
}

/// Elements of all keys of a delta net.
pub fn keys(graph: &Graph, delta: &Delta) -> usize {
    row_len(&graph.nodes[delta.parts[0]])
}
