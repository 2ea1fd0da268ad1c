//! A graph cut over ranks, as data: which part of each node a rank has.
//!
//! The cut is the one of tensor parallelism as Megatron made it. Queries, keys, values, gate and up are split along their
//! outputs, by heads and by columns of the feed-forward network. What follows of them up to the next product is split alike.
//! That product (the attention's output, down) is split along its sum: each rank has a partial result, and a collective
//! adds the partial results of all ranks. The head is split by ids and put together, or whole on every rank. All other
//! stages are whole on every rank.
//!
//! The placed graph holds the stages of all ranks; a stage says its rank in its id. It is a graph like any other: each
//! shard has weights of its own, which are slices of the file's ([`super::Slices`]).

use super::graph::{Axis, Graph, Node, Role};
use super::placement::{Placement, PlacementError, Shares, refused};
use super::stage::StageId;
use crate::ops::anatomy::Collective;
use crate::ops::{Anatomy, Attention, KvCache, Op, RmsNorm, Weight};
use std::ops::Range;

/// Something that is split over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// Query heads.
    Heads,
    /// Heads of keys and values: those that a rank's query heads read.
    KvHeads,
    /// Columns of the feed-forward network.
    Ffn,
    /// Ids of the vocabulary.
    Vocab,
}

/// The name of a stage's part on one rank, where a collective makes the stage of all parts.
fn name_of_part(node: &Node) -> Result<&'static str, PlacementError> {
    match node.role {
        Role::AttnOutput => Ok("attn_out_partial"),
        Role::FfnOutput => Ok("ffn_down_partial"),
        Role::Logits => Ok("logits_shard"),
        _ => refused(format!("{} cannot be cut over ranks: its parts have no name", node.id)),
    }
}

impl Placement {
    /// The same with every share in numbers, for this graph. `block` gives the weights that a block of a tensor has: sums are
    /// cut between blocks unless the shares say otherwise.
    ///
    /// # Errors
    /// Shares that are not of this model, or leave a rank with nothing.
    pub fn settled(&self, graph: &Graph, block: impl Fn(&str) -> usize) -> Result<Self, PlacementError> {
        let (c, ranks) = (&graph.config, self.ranks);
        let down = |n: &&Node| n.role == Role::FfnOutput && n.op.anatomy().is_layer();
        let downs: Vec<&Weight> = graph.nodes.iter().filter(down).flat_map(|n| &n.weights).collect();
        let Some(columns) = downs.first().map(|w| w.extent[0]) else {
            return refused("this model has no feed-forward network that can be cut over ranks");
        };
        let step = downs.iter().map(|w| block(&w.name)).max().unwrap_or(1);
        let settled = |shares: &Shares, even: Vec<usize>, what: &str, all: usize| {
            let of = match shares {
                Shares::Whole => return Ok(Shares::Whole),
                Shares::Even => even,
                Shares::Of(of) => of.clone(),
            };
            if of.len() != ranks || of.iter().sum::<usize>() != all || of.contains(&0) {
                let text: Vec<String> = of.iter().map(ToString::to_string).collect();
                return refused(format!(
                    "{what} are dealt out as {}, and the model has {all} for {ranks} ranks, at least one each",
                    text.join("+")
                ));
            }
            Ok(Shares::Of(of))
        };
        let heads = settled(&self.heads, even_heads(c.n_heads, c.n_kv_heads, ranks), "heads", c.n_heads)?;
        let placement = Self {
            ranks,
            ffn: settled(&self.ffn, even(columns, ranks, step), "columns of the feed-forward network", columns)?,
            vocab: settled(&self.vocab, even(c.n_vocab, ranks, 1), "ids of the vocabulary", c.n_vocab)?,
            heads,
        };
        let group = c.n_heads / c.n_kv_heads;
        for own in placement.ranges(Split::Heads, graph) {
            let whole = own.start.is_multiple_of(group) && own.end.is_multiple_of(group);
            if !whole && own.start / group != (own.end - 1) / group {
                return refused(format!(
                    "heads {} to {} read keys and values of several heads, and not all that read these; give a rank whole groups \
                     of {group} heads, or heads of one group",
                    own.start,
                    own.end - 1
                ));
            }
        }
        Ok(placement)
    }

    /// Along what stages of a role are split, where they are.
    fn split(&self, role: Role) -> Option<Split> {
        match role {
            Role::Query | Role::Attention => Some(Split::Heads),
            Role::Key | Role::Value => Some(Split::KvHeads),
            Role::Gate | Role::Up | Role::FfnHidden => Some(Split::Ffn),
            Role::Logits if self.vocab != Shares::Whole => Some(Split::Vocab),
            _ => None,
        }
    }

    /// Which part of the `whole` node a placed one is: an axis, and a range along it; `None` where it is all of it.
    pub fn part(&self, node: &Node, whole: &Node, graph: &Graph) -> Option<(usize, Range<usize>)> {
        let rank = usize::from(node.id.rank?);
        let axis = node.shape.iter().zip(&whole.shape).position(|(own, whole)| own != whole)?;
        let ranges = self.ranges(self.split(node.role)?, graph);
        let Axis::Fixed(extent) = whole.shape[axis] else { return None };
        let each = extent / ranges.iter().map(|range| range.end).max()?;
        Some((axis, ranges[rank].start * each..ranges[rank].end * each))
    }

    /// Ids of the vocabulary that each rank has logits of.
    pub fn widths_of_head(&self) -> Vec<usize> {
        if let Shares::Of(shares) = &self.vocab { shares.clone() } else { Vec::new() }
    }

    /// The query heads of each rank, or its part of any other split axis.
    fn ranges(&self, split: Split, graph: &Graph) -> Vec<Range<usize>> {
        let shares = match split {
            Split::Heads | Split::KvHeads => &self.heads,
            Split::Ffn => &self.ffn,
            Split::Vocab => &self.vocab,
        };
        let Shares::Of(shares) = shares else { unreachable!("a placement is settled before it is used") };
        let mut at = 0;
        let group = graph.config.n_heads / graph.config.n_kv_heads;
        let of_rank = |n: &usize| {
            at += n;
            match split {
                Split::KvHeads => (at - n) / group..at.div_ceil(group),
                Split::Heads | Split::Ffn | Split::Vocab => at - n..at,
            }
        };
        shares.iter().map(of_rank).collect()
    }

    /// The graph of all ranks. The placement is a settled one.
    ///
    /// # Errors
    /// A graph with an op that cannot be cut.
    pub fn place(&self, graph: &Graph) -> Result<Graph, PlacementError> {
        let mut placed = Placed { placement: self, graph, nodes: Vec::new(), at: Vec::new(), split: Vec::new() };
        for node in &graph.nodes {
            placed.add(node)?;
        }
        let nodes = placed.nodes;
        Ok(Graph { nodes, placement: Some(self.clone()), ..graph.clone() })
    }
}

/// `all` dealt out to `ranks` in whole `step`s, the last one taking what is no whole step.
fn even(all: usize, ranks: usize, step: usize) -> Vec<usize> {
    let steps = all.div_ceil(step.max(1));
    let bound = |rank: usize| ((steps * rank).div_ceil(ranks) * step).min(all);
    (0..ranks).map(|rank| bound(rank + 1) - bound(rank)).collect()
}

/// Query heads dealt out so that each rank has whole groups, or heads of one group.
fn even_heads(heads: usize, kv: usize, ranks: usize) -> Vec<usize> {
    let group = heads / kv.max(1);
    if ranks <= kv {
        return even(kv, ranks, 1).into_iter().map(|kv| kv * group).collect();
    }
    // Ranks by key head, and a group dealt out to its ranks.
    even(ranks, kv, 1).into_iter().flat_map(|ranks| even(group, ranks, 1)).collect()
}

/// A graph while it is cut.
struct Placed<'a> {
    placement: &'a Placement,
    graph: &'a Graph,
    nodes: Vec<Node>,
    /// For each node of the whole graph, its node on each rank.
    at: Vec<Vec<usize>>,
    /// For each node of the whole graph, the split it has.
    split: Vec<Option<Split>>,
}

impl Placed<'_> {
    fn add(&mut self, node: &Node) -> Result<(), PlacementError> {
        let split = node.inputs.iter().find_map(|&i| self.split[i]);
        let of_outputs = self.placement.split(node.role);
        if !node.op.anatomy().is_layer() {
            return self.each(node, split.and(of_outputs));
        }
        match (split, of_outputs) {
            (None, Some(Split::Vocab)) => {
                let name = name_of_part(node)?;
                let parts = self.parts(node, Split::Vocab, Some(name))?;
                self.collect(node, &parts, Collective::Concatenation);
                Ok(())
            }
            (None, of_outputs) => self.each(node, of_outputs),
            (Some(split), _) => {
                let name = name_of_part(node)?;
                let ranges = self.ranges_of(split);
                let width = self.width(split);
                let mut parts = Vec::new();
                for (rank, range) in ranges.iter().enumerate() {
                    let each = node.weights[0].extent[0] / width;
                    let weight = columns(&node.weights[0], range.start * each..range.end * each);
                    parts.push(self.push(node, rank, |n| Node {
                        id: StageId { name, ..n.id },
                        weights: vec![weight],
                        ..n
                    }));
                }
                self.collect(node, &parts, Collective::Sum);
                Ok(())
            }
        }
    }

    fn ranges_of(&self, split: Split) -> Vec<Range<usize>> {
        self.placement.ranges(split, self.graph)
    }

    /// How many there are of what is split, on all ranks together.
    fn width(&self, split: Split) -> usize {
        let config = &self.graph.config;
        match split {
            Split::Heads => config.n_heads,
            Split::KvHeads => config.n_kv_heads,
            Split::Ffn | Split::Vocab => self.ranges_of(split).last().map_or(0, |last| last.end),
        }
    }

    /// Adds the node of a rank, which reads what the rank has of the inputs.
    fn push(&mut self, node: &Node, rank: usize, change: impl FnOnce(Node) -> Node) -> usize {
        let inputs = node.inputs.iter().map(|&i| self.at[i][rank]).collect();
        let id = StageId { rank: Some(rank as u16), ..node.id };
        self.nodes.push(change(Node { id, inputs, ..node.clone() }));
        self.nodes.len() - 1
    }

    /// The node on every rank: the rank's part of it, or all of it.
    fn each(&mut self, node: &Node, split: Option<Split>) -> Result<(), PlacementError> {
        let at = match split {
            Some(split) => self.parts(node, split, None)?,
            None => (0..self.placement.ranks).map(|rank| self.push(node, rank, |n| n)).collect(),
        };
        self.at.push(at);
        self.split.push(split);
        Ok(())
    }

    /// Each rank's part of a node that is split along its outputs.
    fn parts(&mut self, node: &Node, split: Split, name: Option<&'static str>) -> Result<Vec<usize>, PlacementError> {
        let (ranges, width) = (self.ranges_of(split), self.width(split));
        let kv = self.ranges_of(Split::KvHeads);
        let mut at = Vec::new();
        for (rank, own) in ranges.into_iter().enumerate() {
            let (count, kv) = (own.len(), kv[rank].len());
            let op = match &node.op {
                Op::KvCache(cache) => Op::KvCache(KvCache { n_kv_heads: count, ..*cache }),
                Op::AttnScores(a) => Op::AttnScores(Attention { n_heads: count, n_kv_heads: kv, ..*a }),
                Op::AttnContext(a) => Op::AttnContext(Attention { n_heads: count, n_kv_heads: kv, ..*a }),
                Op::RmsNorm(norm) if norm.groups == width => Op::RmsNorm(RmsNorm { groups: count, ..*norm }),
                op @ (Op::Linear | Op::Bias | Op::Rope(_) | Op::AttnWeights(_) | Op::SwiGlu) => op.clone(),
                op => return refused(format!("{}: the op {} cannot be cut over ranks", node.id, op.name())),
            };
            let mut cut = false;
            let shape = node.shape.iter().map(|axis| match axis {
                Axis::Fixed(n) if !cut => {
                    cut = true;
                    Axis::Fixed(n / width * count)
                }
                axis => *axis,
            });
            let shape = shape.collect();
            let weight = |w: &Weight| match node.op.anatomy() {
                // The norm of a head is the same for all heads.
                Anatomy::RowReduction(_) => w.clone(),
                _ => {
                    let each = w.extent[w.extent.len() - 1] / width;
                    rows(w, own.start * each..own.end * each)
                }
            };
            let weights = node.weights.iter().map(weight).collect();
            let id = |id: StageId| StageId { name: name.unwrap_or(id.name), ..id };
            at.push(self.push(node, rank, |n| Node { id: id(n.id), op, shape, weights, ..n }));
        }
        Ok(at)
    }

    /// The collective that makes the node of its parts, on every rank.
    fn collect(&mut self, node: &Node, parts: &[usize], collective: Collective) {
        let mut at = Vec::new();
        for rank in 0..self.placement.ranks {
            let whole = Node { inputs: Vec::new(), ..node.clone() };
            let op = Op::Collective(collective);
            at.push(self.push(&whole, rank, |n| Node { op, inputs: parts.to_vec(), weights: Vec::new(), ..n }));
        }
        self.at.push(at);
        self.split.push(None);
    }
}

/// Rows of a tensor, or elements of a vector: its last axis in ggml's order.
fn rows(weight: &Weight, range: Range<usize>) -> Weight {
    let mut extent = weight.extent.clone();
    extent.iter_mut().last().into_iter().for_each(|n| *n = range.len());
    Weight { name: format!("{}[{}:{}]", weight.name, range.start, range.end), extent }
}

/// Elements of every row of a tensor.
fn columns(weight: &Weight, range: Range<usize>) -> Weight {
    let mut extent = weight.extent.clone();
    extent[0] = range.len();
    Weight { name: format!("{}[:, {}:{}]", weight.name, range.start, range.end), extent }
}

impl Graph {
    /// The stages of one rank alone, as its engine runs them: of a collective they hold the rank's own part.
    pub fn of_rank(&self, rank: u16) -> Graph {
        let own = |n: &Node| n.id.rank == Some(rank);
        let mut at = vec![usize::MAX; self.nodes.len()];
        let mut nodes: Vec<Node> = Vec::new();
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| own(n)) {
            at[i] = nodes.len();
            let inputs = node.inputs.iter().filter(|&&i| own(&self.nodes[i])).map(|&i| at[i]).collect();
            nodes.push(Node { inputs, ..node.clone() });
        }
        Graph { nodes, ..self.clone() }
    }

    /// The ranks that it is cut over; 1 where it is not.
    pub fn ranks(&self) -> usize {
        self.placement.as_ref().map_or(1, |placement| placement.ranks)
    }
}
