//! Ranks that have another shard than theirs, or put parts together otherwise.

use super::{Mutation, Param, each};
use qdiff_engine::model::{Graph, Node, Slice, StageId, Weight, WeightSource};
use qdiff_engine::ops::anatomy::Collective;
use qdiff_engine::ops::{Anatomy, Tensor, UNIT, collective};
use qdiff_engine::quant::{Part, dequantize};

/// Whether the node reads a slice of a tensor.
fn reads_shard(graph: &Graph, node: &Node) -> bool {
    graph.placement.is_some() && node.weights.iter().any(|w| Slice::of(&w.name).is_some())
}

fn sums(_: &Graph, node: &Node) -> bool {
    node.op.anatomy() == Anatomy::Collective(Collective::Sum)
}

/// The node on so many rows, or columns, before or behind its own.
fn shifted(node: &Node, by: f64, graph: &Graph) -> Option<Node> {
    let own = Slice::of(&node.weights.first()?.name)?;
    let of_tensor = graph.nodes.iter().flat_map(|n| &n.weights).filter_map(|w| Slice::of(&w.name));
    let end = of_tensor.filter(|s| s.tensor == own.tensor).map(|s| s.range.end).max()?;
    let (start, stop) = (own.range.start as f64 + by, own.range.end as f64 + by);
    if by == 0.0 || start < 0.0 || stop > end as f64 {
        return None;
    }
    let columns = if own.columns { ":, " } else { "" };
    let name = format!("{}[{columns}{start}:{stop}]", own.tensor);
    let weights = std::iter::once(Weight { name, ..node.weights[0].clone() });
    Some(Node { weights: weights.chain(node.weights.iter().skip(1).cloned()).collect(), ..node.clone() })
}

/// The node on the shard of another rank, which is as large.
fn of_other(node: &Node, rank: f64, graph: &Graph) -> Option<Node> {
    let other = &graph.nodes[graph.index(StageId { rank: Some(rank as u16), ..node.id })?];
    let alike = other.weights.iter().zip(&node.weights).all(|(a, b)| a.extent == b.extent);
    (alike && other.weights != node.weights).then(|| Node { weights: other.weights.clone(), ..node.clone() })
}

/// The sum with so many of each rank's part.
fn weighed(node: &Node, times: impl Fn(usize) -> f64 + Send + Sync + 'static) -> Node {
    node.computing(move |parts, _| {
        let scaled: Vec<Tensor<f64>> = parts.iter().enumerate().map(|(r, x)| x.map(|v| v * times(r))).collect();
        let scaled: Vec<&Tensor<f64>> = scaled.iter().collect();
        let y = collective::forward(Collective::Sum, &scaled);
        let reach = collective::forward(
            Collective::Sum,
            &scaled.iter().map(|x| x.map(f64::abs)).collect::<Vec<_>>().iter().collect::<Vec<_>>(),
        );
        let factor = scaled.len() as f64 * UNIT;
        (y, reach.data.iter().map(|v| (factor * v) as f32).collect())
    })
}

/// The number of the rank in the graph that is given, if it has one.
fn rank_of(value: f64, graph: &Graph) -> Option<usize> {
    (0..graph.ranks()).find(|rank| *rank as f64 == value)
}

fn ranks(graph: &Graph, _: &Node) -> Vec<Vec<f64>> {
    each((0..graph.ranks()).map(|rank| rank as f64))
}

fn others(graph: &Graph, node: &Node) -> Vec<Vec<f64>> {
    let own = node.id.rank.map_or(f64::NAN, f64::from);
    each((0..graph.ranks()).map(|rank| rank as f64).filter(|rank| *rank != own))
}

/// The blocks of the shard with the scales at the same distance from the beginning of the tensor.
fn scales_of_whole(source: &dyn WeightSource, tensor: &str, row: usize, out: &mut [f32]) {
    let stored = source.stored(tensor);
    let (Some(slice), Some(format)) = (Slice::of(tensor), stored.ty.format()) else { return };
    let mut bytes = source.row_bytes(tensor, row).to_vec();
    let whole = source.row_bytes(slice.tensor, row);
    for (block, from) in bytes.chunks_mut(stored.ty.type_size()).zip(whole.chunks(stored.ty.type_size())) {
        for field in format.fields.iter().filter(|f| !matches!(f.part, Part::Quants | Part::HighBits)) {
            block[field.bytes.clone()].copy_from_slice(&from[field.bytes.clone()]);
        }
    }
    dequantize(stored.ty, &bytes, out);
}

const RANK: Param = Param::new("rank", "the rank, from 0", 1.0);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "shard-of-another-rank",
        fits: Some(reads_shard),
        story: "the rank has the shard of another rank",
        seen: "one rank's outputs equal those of another rank",
        remedy: "check which rank loads which shard: {stage} reads {weight}",
        params: &[RANK],
        apply: |node, values, graph| of_other(node, values[0], graph),
        guess: Some(others),
        propose: Some(|e| others(&e.oracle.graph, e.node)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "shard-shifted",
        fits: Some(reads_shard),
        story: "the rank's shard begins elsewhere in the tensor than the cut says",
        seen: "one rank has right outputs in wrong places, or partial sums that are plausible and wrong",
        remedy: "check how the rank computes its range: {stage} reads {weight}",
        params: &[Param::new("by", "rows or columns by which the shard begins too late", 1.0)],
        apply: |node, values, graph| shifted(node, values[0], graph),
        guess: Some(|_, _| each([1.0, -1.0])),
        propose: Some(|_| each([1.0, -1.0, 2.0, -2.0, 32.0, -32.0, 64.0, -64.0, 128.0, -128.0, 256.0, -256.0])),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "scales-not-cut",
        fits: Some(|g, n| reads_shard(g, n) && n.op.anatomy().is_layer()),
        story: "the quantised weights are cut for the rank and their scales are not: the scales of the tensor's beginning are used",
        seen: "rank 0 is right, other ranks have outputs of a plausible size",
        remedy: "cut the scales of {weight} at the same columns as the weights",
        apply: |node, _, _| {
            let slice = Slice::of(&node.weights[0].name)?;
            (slice.columns && slice.range.start > 0).then(|| node.reading(scales_of_whole))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "all-reduce-missing",
        fits: Some(sums),
        story: "the parts of other ranks are not added: the rank continues with only its own part",
        seen: "each rank has another residual stream from here on",
        remedy: "run the all-reduce before {stage} is used: {stage} is the sum of the parts of all ranks",
        apply: |node, _, graph| {
            let own = usize::from(node.id.rank?);
            (graph.ranks() > 1).then(|| weighed(node, move |rank| f64::from(u8::from(rank == own))))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "all-reduce-twice",
        fits: Some(sums),
        story: "the sum over all ranks is reduced once more: it is multiplied by the number of ranks",
        seen: "the residual stream grows too fast, by a factor that is the number of ranks",
        remedy: "reduce {stage} once: every rank already has the whole sum",
        apply: |node, _, graph| {
            let ranks = graph.ranks();
            (ranks > 1).then(|| weighed(node, move |_| ranks as f64))
        },
        ..Mutation::PLAIN
    },
    Mutation {
        name: "part-added-twice",
        fits: Some(sums),
        story: "the part of one rank is added twice",
        seen: "one rank, or all, have a sum that is off by one part",
        remedy: "check that each rank's part is added once to {stage}",
        params: &[RANK],
        apply: |node, values, graph| {
            let twice = rank_of(values[0], graph)?;
            Some(weighed(node, move |rank| if rank == twice { 2.0 } else { 1.0 }))
        },
        guess: Some(ranks),
        propose: Some(|e| ranks(&e.oracle.graph, e.node)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "part-not-added",
        fits: Some(sums),
        story: "the part of one rank is not added",
        seen: "a sum that lacks one part",
        remedy: "check that {stage} waits for the parts of all ranks",
        params: &[RANK],
        apply: |node, values, graph| {
            let absent = rank_of(values[0], graph)?;
            Some(weighed(node, move |rank| if rank == absent { 0.0 } else { 1.0 }))
        },
        guess: Some(ranks),
        propose: Some(|e| ranks(&e.oracle.graph, e.node)),
        ..Mutation::PLAIN
    },
    Mutation {
        name: "part-of-layer-before",
        fits: Some(|g, n| sums(g, n) && n.id.layer.is_some_and(|layer| layer > 0)),
        story: "the sum has one rank's part of the layer before: the collective began before the part was written",
        seen: "changes from run to run, or with the load of the machine",
        remedy: "have the collective of {stage} wait until every rank has written its part of this layer",
        params: &[RANK],
        apply: |node, values, graph| {
            let stale = rank_of(values[0], graph)?;
            let part = graph.nodes[node.inputs[stale]].id;
            let before = graph.index(StageId { layer: Some(part.layer?.checked_sub(1)?), ..part })?;
            let inputs = node.inputs.iter().enumerate().map(|(r, i)| if r == stale { before } else { *i });
            Some(Node { inputs: inputs.collect(), ..node.clone() })
        },
        guess: Some(ranks),
        propose: Some(|e| ranks(&e.oracle.graph, e.node)),
        ..Mutation::PLAIN
    },
];
