//! The model as data: an ordered list of stages.
//!
//! Everything that needs to know the stages walks this list: the CPU interpreter, the llama.cpp runner, the local
//! check, the mutations, the reports. Nothing outside this folder spells a stage or tensor name.

use super::fault::Faults;
use super::placement::Placement;
use super::{Config, Slice, StageId};
use crate::ops::anatomy::State;
use crate::ops::{Anatomy, Op, Rope, Weight, rope};
use std::collections::{BTreeSet, HashSet};

/// One axis of a stage's shape, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The tokens of this step, T.
    Tokens,
    /// All tokens so far, this step's included, N.
    Keys,
    /// The last token of this step, after which a state has its value.
    Last,
    /// A constant of the model.
    Fixed(usize),
}

/// How llama.cpp lays the tensor out that it emits for a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmittedLayout {
    /// Row by row, as the stage's own shape.
    Rows,
    /// `[H, T, N']` with the key axis padded beyond N.
    PaddedKeys,
    /// The whole key cache, `[cells, G·D]`.
    KeyCache,
    /// The whole value cache, transposed: `[G·D, cells]`.
    ValueCacheTransposed,
    /// Its last two axes in the other order.
    Columns,
    /// The whole key cache, of whose cells the first halves are meant.
    FirstHalves,
    /// `[T, B]`, a value for each block of so many keys, and possibly more; −∞ where a token does not see the block.
    LastOfBlocks(usize),
    /// `[T, N']`: −∞ for 0 and 0 for 1, with the key axis padded beyond N.
    Mask,
}

/// How llama.cpp's graph callback announces a stage.
///
/// Names are not unique there (`Qcur-3` comes as product, sum and rotation),
/// so a tensor is known by name, operation and weight together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emission {
    /// Tensor name, the layer's suffix included; empty for an unnamed tensor, which is then known by its weight or `source`.
    pub name: String,
    /// The name of the operand of an unnamed tensor without weights.
    pub source: String,
    /// ggml operation, as `ggml_op_name` spells it.
    pub op: &'static str,
    /// Layout of the data.
    pub layout: EmittedLayout,
}

/// The meaning of a stage's value in the model, for any op. Role and op
/// together name one stage of a layer, in any architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Rows of the embedding table.
    Embedding,
    /// What a layer's attention reads: the normed residual stream.
    AttnInput,
    /// Queries: projected, biased or normed, rotated.
    Query,
    /// Keys: as queries, and cached.
    Key,
    /// Values: projected, biased, cached.
    Value,
    /// Scores, weights and context of the attention.
    Attention,
    /// What attention adds to the residual stream, and the sum.
    AttnOutput,
    /// What a layer's feed-forward network reads: the normed residual stream.
    FfnInput,
    /// The projection that goes through the activation.
    Gate,
    /// The projection that the activated gate is multiplied with.
    Up,
    /// Their product.
    FfnHidden,
    /// The replacement of attention: the delta net's projections, convolution, state and output.
    Mixer,
    /// What chooses which of a model's parts a token takes, such as experts: scores, the choice, and its weights.
    Router,
    /// Several residual streams: what is read of them and written to them.
    Streams,
    /// What chooses the keys that attention is to.
    Index,
    /// What the feed-forward network adds to the residual stream, and the sum.
    FfnOutput,
    /// What the output projection reads: the normed residual stream.
    HeadInput,
    /// A logit per token id.
    Logits,
}

/// One stage of the model.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is called.
    pub id: StageId,
    /// What it is to the model.
    pub role: Role,
    /// The mathematics, with its parameters.
    pub op: Op,
    /// Indices of the nodes it reads, in the order the op takes them.
    pub inputs: Vec<usize>,
    /// GGUF tensors that the op reads, in the order it takes them.
    pub weights: Vec<Weight>,
    /// Symbolic shape, outermost axis first.
    pub shape: Vec<Axis>,
    /// How llama.cpp emits it.
    pub emission: Emission,
    /// What is wrong with it; nothing, in a correct graph.
    pub faults: Faults,
    /// What it is for tokens before some position, where it differs.
    pub before: Option<Before>,
}

/// A stage that is another one for the first tokens: the fault of a code path that only later positions take.
#[derive(Clone, Debug)]
pub struct Before {
    /// First position of which the node itself speaks.
    pub since: usize,
    /// What the stage is for tokens before that position. A cache changes over
    /// with the first step that begins there or later.
    pub node: Box<Node>,
}

impl Node {
    /// The axis that counts the tokens of a step, if it has one: the caches have none.
    pub fn token_axis(&self) -> Option<usize> {
        self.shape.iter().position(|a| *a == Axis::Tokens)
    }

    /// Whether it belongs to the values of attention, and not to the keys.
    pub fn is_of_values(&self) -> bool {
        self.role == Role::Value
    }

    /// Whether it goes on from what it gave a step before: see
    /// [`Op::has_state`].
    pub fn has_state(&self) -> bool {
        self.op.has_state() && !self.faults.left_out
    }

    /// Whether it is a state of a recurrent layer, of another kind than the rows of a cache.
    pub fn is_own_state(&self) -> bool {
        self.op.anatomy() == Anatomy::State(State::Own)
    }

    /// Whether its input at this place is what that was before the step, and not after it.
    pub fn looks_back(&self, input: usize) -> bool {
        input + 1 == self.inputs.len() && self.op.anatomy().looks_back()
    }

    /// All nodes that it reads, at any position.
    pub fn reads(&self) -> impl Iterator<Item = usize> + '_ {
        let before = self.before.iter().flat_map(|b| &b.node.inputs);
        self.inputs.iter().chain(before).copied()
    }
}

/// All stages of a model, in order of evaluation.
#[derive(Clone, Debug)]
pub struct Graph {
    /// The hyperparameters it was built from.
    pub config: Config,
    /// Stages; a node's inputs come before it.
    pub nodes: Vec<Node>,
    /// How it is cut over ranks, if it is.
    pub placement: Option<Placement>,
    /// How many LoRA adapters there are.
    pub adapters: usize,
}

impl Graph {
    /// Index of the stage `id`.
    pub fn index(&self, id: StageId) -> Option<usize> {
        self.nodes.iter().position(|n| n.id == id)
    }

    /// For each node, whether the logits of the last token need the last token's row of it alone: no cache and no state reads it.
    pub fn of_last_token(&self) -> Vec<bool> {
        let mut alone = vec![true; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate().rev() {
            alone[index] &= !node.has_state();
            let whole = !alone[index];
            node.inputs.iter().for_each(|&input| alone[input] &= !whole);
            // An earlier token's other row is read.
            node.before.iter().flat_map(|b| &b.node.inputs).for_each(|&input| alone[input] = false);
        }
        alone
    }

    /// Stage names in order of first appearance, layers folded.
    pub fn stage_names(&self) -> Vec<&'static str> {
        let mut seen = HashSet::new();
        self.nodes.iter().map(|n| n.id.name).filter(|name| seen.insert(*name)).collect()
    }

    /// For each node, the index of its last reader (itself if none).
    pub fn last_use(&self) -> Vec<usize> {
        let mut last: Vec<usize> = (0..self.nodes.len()).collect();
        for (index, node) in self.nodes.iter().enumerate() {
            for input in node.reads() {
                last[input] = index;
            }
        }
        last
    }

    /// The nearest nodes before `index` that are `known`, going from input to input past those that are not.
    pub fn before(&self, index: usize, known: &dyn Fn(usize) -> bool) -> BTreeSet<usize> {
        self.nearest(index, known, &|i| self.nodes[i].inputs.clone())
    }

    /// The nearest nodes after `index` that are `known`, going from reader to reader past those that are not.
    pub fn after(&self, index: usize, known: &dyn Fn(usize) -> bool) -> BTreeSet<usize> {
        let readers = |i: usize| {
            let all = self.nodes.iter().enumerate().skip(i + 1);
            let reads = all.filter(|(_, n)| n.inputs.contains(&i));
            reads.map(|(reader, _)| reader).collect()
        };
        self.nearest(index, known, &readers)
    }

    fn nearest(
        &self, index: usize, known: &dyn Fn(usize) -> bool, next: &dyn Fn(usize) -> Vec<usize>,
    ) -> BTreeSet<usize> {
        let (mut found, mut seen) = (BTreeSet::new(), vec![false; self.nodes.len()]);
        let mut open = next(index);
        while let Some(i) = open.pop() {
            if std::mem::replace(&mut seen[i], true) {
                continue;
            }
            if known(i) {
                found.insert(i);
            } else {
                open.extend(next(i));
            }
        }
        found
    }

    /// GGUF tensors that the graph reads, each once.
    pub fn weights(&self) -> Vec<&Weight> {
        let mut seen = HashSet::new();
        self.nodes.iter().flat_map(|n| &n.weights).filter(|weight| seen.insert(&weight.name)).collect()
    }

    /// As [`Self::weights`], with the tensor for all slices of it that are read.
    pub fn tensors(&self) -> Vec<Weight> {
        let mut all: Vec<Weight> = Vec::new();
        for weight in self.weights() {
            let Some(Slice { tensor, columns: false, range }) = Slice::of(&weight.name) else {
                all.push(weight.clone());
                continue;
            };
            let mut extent = weight.extent.clone();
            let Some(rows) = extent.last_mut() else { continue };
            *rows = range.end;
            match all.iter_mut().find(|whole| whole.name == tensor) {
                Some(whole) => whole.extent = extent,
                None => all.push(Weight { name: tensor.to_owned(), extent }),
            }
        }
        all
    }

    /// The first stage of a role, which a model may have in every layer.
    pub fn first(&self, role: Role) -> Option<&Node> {
        self.nodes.iter().find(|n| n.role == role)
    }

    /// The rotation by which rows of a cache move to another position, without what it multiplies by; `None` for rows that were not
    /// rotated, such as values.
    pub fn moves_by(&self, cache: &Node) -> Option<Rope> {
        match &self.nodes[*cache.inputs.first()?].op {
            Op::Rope(rope) => Some(rope::turning(rope)),
            _ => None,
        }
    }

    /// Whether layers have states: each token's values follow from all tokens before it.
    pub fn is_recurrent(&self) -> bool {
        self.nodes.iter().any(|node| node.op.anatomy().looks_back())
    }

    /// Whether the output projection is the embedding table.
    pub fn tied_head(&self) -> bool {
        let table = |role| self.first(role).and_then(|n| n.weights.first());
        table(Role::Embedding) == table(Role::Logits)
    }

    /// Concrete shape of a node for `tokens` tokens this step and `keys` so far.
    pub fn extent(node: &Node, tokens: usize, keys: usize) -> Vec<usize> {
        node.shape
            .iter()
            .map(|axis| match axis {
                Axis::Tokens => tokens,
                Axis::Keys => keys,
                Axis::Last => 1,
                Axis::Fixed(n) => *n,
            })
            .collect()
    }
}

/// Elements of a stage per token: the product of its constant axes.
pub fn row_len(node: &Node) -> usize {
    Graph::extent(node, 1, 1).iter().product()
}
