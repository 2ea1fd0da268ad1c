//! Kernels of the ops that are known by their definitions: those that an anatomy says in full, and those of this crate's own
//! definitions.

use super::calls::{Calls, Span};
use super::kernels::*;
use super::known::Known;
use super::launch::Call;
use super::layouts::Ptr;
use crate::model::{Graph, Node, row_len};
use crate::ops::anatomy::{Columns, Decision, Picked};
use crate::ops::{
    ChosenWeights, Convolution, DeltaNet, DeltaState, Function, GatedMean, L2Norm, StreamDots, StreamFactors,
    StreamNorm, StreamSum, Window,
};

/// Threads of a block that makes a row of experts together.
const ROW_THREADS: u32 = 256;
/// Threads of a block that brings a row of a table, group by group.
const EMBED_THREADS: u32 = 128;
/// Threads of a block that makes a head together.
const HEAD_THREADS: u32 = 128;
/// Warps of a block where a warp makes one output.
const WARPS: usize = 8;

impl Calls<'_> {
    /// What computes node `index`, of an op that is known, over `span`.
    pub(super) fn defined(&self, op: Known<'_>, index: usize, span: Span) -> Call {
        let node = &self.graph.nodes[index];
        let y = self.output(index);
        let (width, tokens) = (row_len(node), span.tokens);
        let (n, elements) = (width as i32, width * tokens);
        let count = elements as i32;
        let x = |i| self.input(node, i);
        let width_of = |i: usize| row_len(&self.graph.nodes[node.inputs[i]]);
        let vector = || self.memory.weight(node).planes[0];
        match op {
            Known::TopK(Decision { picks, .. }) => {
                let params = TopKParams { x: x(0), y, n: width_of(0) as i32, k: picks as i32 };
                Call::new(params, (tokens as u32, 1, 1), ROW_THREADS)
            }
            Known::Gather => {
                let params = GatherParams { x: x(0), chosen: x(1), y, n: width_of(0) as i32, k: n, count };
                Call::flat(params, elements)
            }
            Known::Columns(columns) => {
                let Columns { first, run, stride, .. } = columns;
                let width = columns.count();
                // So many rows of a token.
                let n = width_of(0) / (row_len(node) / width);
                let [n, first, run, stride, width] = [n, first, run, stride, width].map(|n| n as i32);
                Call::flat(ColumnsParams { x: x(0), y, n, first, run, stride, width, count }, elements)
            }
            Known::ExpertLinear(Picked { groups }) => self.expert_linear(node, x(1), y, groups, tokens),
            Known::WeightedSum(terms) => {
                let params = WeightedSumParams { w: x(0), x: x(1), y, n, terms: terms as i32, count };
                Call::flat(params, elements)
            }
            Known::RowSoftmax => Call::new(RowSoftmaxParams { x: x(0), y, n }, (tokens as u32, 1, 1), ROW_THREADS),
            Known::RowShares => Call::flat(RowSharesParams { x: x(0), y, k: n, count }, elements),
            Known::Unary(function) => Call::flat(UnaryParams { x: x(0), y, count }, elements).of(&[&function]),
            Known::Softplus => Call::flat(SoftplusParams { x: x(0), b: vector(), y, n, count }, elements),
            Known::Factors => Call::flat(FactorsParams { a: x(0), b: x(1), y, n: count, count }, elements),
            Known::ExpertFactor => self.expert_factor(node, x(1), y, tokens),
            Known::VectorFactor if self.chooses_adapters(node) => {
                self.expert_factor(node, self.memory.adapters, y, tokens)
            }
            Known::VectorFactor => {
                let n = self.memory.weight(node).n as i32;
                Call::flat(FactorsParams { a: x(0), b: vector(), y, n, count }, elements)
            }
            Known::L2Norm(L2Norm { eps, heads, repeats }) => {
                let d = (width_of(0) / heads) as i32;
                let params = L2NormParams { x: x(0), y, d, repeats: *repeats as i32, eps: *eps as f32 };
                Call::new(params, ((tokens * heads) as u32, 1, 1), HEAD_THREADS)
            }
            Known::Convolution(Convolution { taps, apart }) => {
                let [taps, apart] = [*taps, *apart].map(|n| n as i32);
                let params = ConvolutionParams { x: x(0), before: x(1), w: vector(), y, n, taps, apart, count };
                Call::flat(params, elements)
            }
            Known::Window(Window { rows }) => {
                let n = width_of(0);
                let before = self.before(index);
                let [of_row, rows, tokens] = [n, *rows, tokens].map(|n| n as i32);
                Call::flat(WindowParams { x: x(0), state: y, before, n: of_row, rows, tokens }, n)
            }
            Known::DeltaState(DeltaState(net)) => {
                let before = self.before(index);
                self.delta_net(node, net, tokens, [y, before, y, 0])
            }
            Known::DeltaNet(net) => self.delta_net(node, net, tokens, [x(5), 0, 0, y]),
            Known::StreamNorm(StreamNorm { eps, streams, .. }) => {
                let (n, of) = ((width / streams) as i32, *streams as i32);
                let params = StreamNormParams { x: x(0), w: vector(), y, n, streams: of, eps: *eps as f32 };
                Call::new(params, ((tokens * streams) as u32, 1, 1), ROW_THREADS)
            }
            Known::GatedMean(GatedMean { streams }) => {
                let params = GatedMeanParams { x: x(0), gate: x(1), y, n, streams: *streams as i32, count };
                Call::flat(params, elements)
            }
            Known::StreamSum(StreamSum { streams }) => {
                let (n, streams) = ((width / streams) as i32, *streams as i32);
                Call::flat(StreamSumParams { base: x(0), x: x(1), w: x(2), y, n, streams, count }, elements)
            }
            Known::StreamFactors(StreamFactors { streams, .. }) => {
                let (n, streams) = ((width / streams) as i32, *streams as i32);
                Call::flat(StreamSumParams { base: 0, x: x(0), w: x(1), y, n, streams, count }, elements)
            }
            Known::StreamDots(StreamDots { streams, .. }) => {
                let n = width_of(0) / streams;
                let params = StreamDotsParams { a: x(0), b: x(1), y, n: n as i32, scale: 1.0 / (n as f32).sqrt() };
                Call::new(params, ((tokens * streams) as u32, 1, 1), ROW_THREADS)
            }
            Known::Curve(of) => {
                let (function, n) = match of {
                    Function::SiluOfShare(n) => ("SiluOfShare", n),
                    Function::TwiceSigmoidOfShare(n) => ("TwiceSigmoidOfShare", n),
                    Function::SigmoidOfRoot => ("SigmoidOfRoot", 1),
                };
                Call::flat(CurveParams { x: x(0), y, share: 1.0 / n as f32, count }, elements).of(&[&function])
            }
            Known::SigmoidGate => Call::flat(SigmoidGateParams { gate: x(0), x: x(1), y, count }, elements),
            Known::Total => {
                let third = if node.inputs.len() > 2 { x(2) } else { 0 };
                Call::flat(TotalParams { a: x(0), b: x(1), c: third, y, count }, elements)
            }
            Known::Ngrams(ngrams) => {
                let w = self.memory.weight(node);
                let params = EmbedParams { tokens: self.memory.ngrams, w: w.planes, y, width: w.n as i32 };
                let rows = (tokens * ngrams.heads.len()) as u32;
                Call::new(params, (rows, 1, 1), EMBED_THREADS).of(&[&w.ty])
            }
            Known::BlockScores(op) => {
                let (blocks, d) = (span.keys().div_ceil(op.block), op.rope.head_dim);
                let params = BlockScoresParams {
                    q: x(0),
                    k: x(1),
                    w: vector(),
                    frequency: self.memory.frequencies[&index],
                    y,
                    heads: op.heads as i32,
                    d: d as i32,
                    block: op.block as i32,
                    rotated: op.rope.rotated as i32,
                    first: span.first as i32,
                    keys: span.keys() as i32,
                    eps: op.eps as f32,
                    magnitude: op.rope.magnitude() as f32,
                };
                let call = Call::new(params, ((tokens * blocks) as u32, 1, 1), HEAD_THREADS);
                call.of(&[&self.options.kv_kernel(false)]).shared(4 * d as u32)
            }
            Known::TopBlocks(Decision { picks, block }) => {
                let [picks, block] = [picks, block.unwrap_or(1)].map(|n| n as i32);
                let (first, keys) = (span.first as i32, span.keys() as i32);
                let params = TopBlocksParams { x: x(0), y, picks, block, first, keys };
                Call::new(params, (tokens as u32, 1, 1), ROW_THREADS)
            }
            Known::ChosenWeights(ChosenWeights { scale }) => {
                let heads = Graph::extent(node, tokens, span.keys())[0] as u32;
                let (first, keys) = (span.first as i32, span.keys() as i32);
                let (scale, of_step) = (*scale as f32, tokens as i32);
                let params = ChosenWeightsParams { s: x(0), chosen: x(1), y, scale, first, tokens: of_step, keys };
                Call::new(params, (tokens as u32, heads, 1), ROW_THREADS)
            }
        }
    }

    pub(super) fn expert_linear(&self, node: &Node, chosen: Ptr, y: Ptr, groups: usize, tokens: usize) -> Call {
        let w = self.memory.weight(node);
        let (m, lines) = (w.m / groups, tokens * row_len(node) / (w.m / groups));
        let rows = tokens * row_len(&self.graph.nodes[node.inputs[0]]) / w.n;
        let params = ExpertLinearParams {
            x: self.input(node, 0),
            chosen,
            w: w.planes,
            y,
            n: w.n as i32,
            m: m as i32,
            experts: groups as i32,
            lines_of_row: (lines / rows) as i32,
        };
        Call::new(params, ((lines * m.div_ceil(WARPS)) as u32, 1, 1), 32 * WARPS as u32).of(&[&w.ty])
    }

    /// Lines of a row of a node that each choose: as many as its second input has places, and one where rows choose.
    fn chosen_of(&self, node: &Node) -> usize {
        node.inputs.get(1).map_or(1, |&chosen| row_len(&self.graph.nodes[chosen]))
    }

    /// Each line times the factor of the expert, or of the adapter, that it chose.
    fn expert_factor(&self, node: &Node, chosen: Ptr, y: Ptr, tokens: usize) -> Call {
        let w = self.memory.weight(node);
        let (elements, m) = (tokens * row_len(node), row_len(node) / self.chosen_of(node));
        let params = ExpertFactorParams {
            x: self.input(node, 0),
            chosen,
            w: w.planes[0],
            y,
            m: m as i32,
            experts: (w.n * w.m) as i32,
            count: elements as i32,
        };
        Call::flat(params, elements)
    }

    /// From a state, with where its value before the step, the state after it, and the outputs go.
    fn delta_net(&self, node: &Node, net: &DeltaNet, tokens: usize, [from, before, to, y]: [Ptr; 4]) -> Call {
        let x = |i| self.input(node, i);
        let &DeltaNet { heads, key_heads, dim } = net;
        let blocks = (heads as u32, dim.div_ceil(WARPS) as u32, 1);
        let [heads, key_heads, d, tokens] = [heads, key_heads, dim, tokens].map(|n| n as i32);
        let (q, k, v, g, beta) = (x(0), x(1), x(2), x(3), x(4));
        let params = DeltaNetParams { q, k, v, g, beta, from, before, to, y, heads, key_heads, d, tokens };
        Call::new(params, blocks, 32 * WARPS as u32).shared((4 * WARPS * dim) as u32)
    }
}
