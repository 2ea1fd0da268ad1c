//! Kernels of the ops that are known by their definitions: those that an anatomy says in full, and those of this crate's own
//! definitions.

use super::calls::{Calls, Span};
use super::kernels::*;
use super::known::Known;
use super::launch::Call;
use super::layouts::Ptr;
use crate::model::{Node, row_len};
use crate::ops::anatomy::{Columns, Decision, Picked};
use crate::ops::{Convolution, DeltaNet, DeltaState, L2Norm, Window};

/// Threads of a block that makes a row of experts together.
const ROW_THREADS: u32 = 256;
/// Threads of a block that makes a head together.
const HEAD_THREADS: u32 = 128;
/// Warps of a block where a warp makes one output.
const WARPS: usize = 8;

impl Calls<'_> {
    /// What computes node `index`, of an op that is known, over `span`.
    pub(super) fn defined(&self, op: Known<'_>, index: usize, span: Span) -> Call {
        let node = &self.graph.nodes[index];
        let y = self.memory.outputs[index].at;
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
            Known::ExpertLinear(Picked { groups }) => self.expert_linear(node, y, groups, tokens),
            Known::WeightedSum(terms) => {
                let params = WeightedSumParams { w: x(0), x: x(1), y, n, terms: terms as i32, count };
                Call::flat(params, elements)
            }
            Known::RowSoftmax => Call::new(RowSoftmaxParams { x: x(0), y, n }, (tokens as u32, 1, 1), ROW_THREADS),
            Known::RowShares => Call::flat(RowSharesParams { x: x(0), y, k: n, count }, elements),
            Known::Unary(function) => Call::flat(UnaryParams { x: x(0), y, count }, elements).of(&[&function]),
            Known::Softplus => Call::flat(SoftplusParams { x: x(0), b: vector(), y, n, count }, elements),
            Known::Factors => Call::flat(FactorsParams { a: x(0), b: x(1), y, n: count, count }, elements),
            Known::VectorFactor => Call::flat(FactorsParams { a: x(0), b: vector(), y, n, count }, elements),
            Known::L2Norm(L2Norm { eps, heads, repeats }) => {
                let d = (width_of(0) / heads) as i32;
                let params = L2NormParams { x: x(0), y, d, repeats: *repeats as i32, eps: *eps as f32 };
                Call::new(params, ((tokens * heads) as u32, 1, 1), HEAD_THREADS)
            }
            Known::Convolution(Convolution { taps, .. }) => {
                let past = (taps - 1) as i32;
                let params = ConvolutionParams { x: x(0), before: x(1), w: vector(), y, n, past, count };
                Call::flat(params, elements)
            }
            Known::Window(Window { rows }) => {
                let n = width_of(0);
                let before = self.memory.before[&index];
                let [of_row, rows, tokens] = [n, *rows, tokens].map(|n| n as i32);
                Call::flat(WindowParams { x: x(0), state: y, before, n: of_row, rows, tokens }, n)
            }
            Known::DeltaState(DeltaState(net)) => {
                let before = self.memory.before[&index];
                self.delta_net(node, net, tokens, [y, before, y, 0])
            }
            Known::DeltaNet(net) => self.delta_net(node, net, tokens, [x(5), 0, 0, y]),
        }
    }

    fn expert_linear(&self, node: &Node, y: Ptr, groups: usize, tokens: usize) -> Call {
        let w = self.memory.weight(node);
        let (m, lines) = (w.m / groups, tokens * row_len(node) / (w.m / groups));
        let rows = tokens * row_len(&self.graph.nodes[node.inputs[0]]) / w.n;
        let params = ExpertLinearParams {
            x: self.input(node, 0),
            chosen: self.input(node, 1),
            w: w.planes,
            y,
            n: w.n as i32,
            m: m as i32,
            experts: groups as i32,
            lines_of_row: (lines / rows) as i32,
        };
        Call::new(params, ((lines * m.div_ceil(WARPS)) as u32, 1, 1), 32 * WARPS as u32).of(&[&w.ty])
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
