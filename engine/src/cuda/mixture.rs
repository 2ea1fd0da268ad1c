//! The fused path's launches of a mixture of experts. A decode step has the router, and then what the chosen experts make of the
//! row: no weights of others are read. A longer step has the products of the rows that chose an expert.

use super::calls::Span;
use super::decoder::{Experts, Layer};
use super::fast::Fused;
use super::kernels::*;
use super::launch::Call;
use super::layouts::{Choice, Stream, Walk};
use super::tiles::{TILE, Task};
use crate::model::row_len;

/// Warps of a block, each where the kernel says so.
const ROUTER_WARPS: usize = constant!("fused/router.cu", "ROUTER_WARPS") as usize;
/// Rows of such a block.
const ROUTER_ROWS: usize = constant!("fused/router.cu", "ROUTER_ROWS") as usize;
const ACT_WARPS: usize = constant!("fused/expert_act.cu", "PLAIN_WARPS") as usize;
const DOWN_WARPS: usize = constant!("fused/expert_down.cu", "DOWN_WARPS") as usize;
/// Warps and outputs of a block of a longer step, and the lines that it takes at a time at most.
const ROWS_WARPS: usize = constant!("prefill/expert_rows.cu", "WARPS") as usize;
const OUTPUTS: usize = constant!("prefill/expert_rows.cu", "OUTPUTS") as usize;
const LINES: usize = constant!("prefill/expert_rows.cu", "LINES") as usize;
/// Bytes of its list of lines.
const LIST_BYTES: usize = 4 * constant!("prefill/expert_rows.cu", "WINDOW") as usize;
/// Groups of its row that a lane of the router has before its turn, at most: what registers are for.
const ROUTER_HELD: usize = 4;
/// Groups of a piece of a ring, and the schedulers of a multiprocessor.
const PIECE: usize = constant!("fused/ring.cuh", "PIECE") as usize;
const SCHEDULERS: usize = 4;
/// Bytes of a group of 32 elements as they are.
const LINE_BYTES: usize = 4 * constant!("fused/experts.cuh", "LINE") as usize;

impl Fused<'_> {
    /// All of a layer's, with the nodes that each makes.
    pub(super) fn mixture(&self, layer: &Layer, experts: &Experts) -> [(Call, Vec<usize>); 3] {
        let each = &experts.each;
        let chosen = [experts.probs, experts.chosen, experts.weights].into_iter().chain(experts.shares);
        [
            (self.router(layer, experts), vec![layer.ffn_norm, experts.router]),
            (self.expert_act(layer, experts), chosen.chain([each.gate, each.up, each.act]).collect()),
            (self.expert_down(layer, experts), vec![each.down, experts.sum, layer.out]),
        ]
    }

    fn width(&self, node: usize) -> usize {
        row_len(self.node(node))
    }

    /// Norm, and the scores of all experts.
    fn router(&self, layer: &Layer, experts: &Experts) -> Call {
        let w = self.weight(experts.router);
        let params = RouterParams {
            x: Stream { base: self.at(layer.attn_residual), ..Stream::default() },
            norm: self.vector(layer.ffn_norm),
            w: w.planes,
            normed: self.at(layer.ffn_norm),
            y: self.at(experts.router),
            norm_tap: self.tap(layer.ffn_norm),
            y_tap: self.tap(experts.router),
            n: w.n as i32,
            m: w.m as i32,
            eps: self.eps(layer.ffn_norm),
            stamps: 0,
        };
        let (groups, blocks) = (w.n / 32, w.m.div_ceil(ROUTER_ROWS));
        Call::new(params, (blocks as u32, 1, 1), 32 * ROUTER_WARPS as u32)
            .of(&[&w.ty, &groups.div_ceil(32 * ROUTER_WARPS / ROUTER_ROWS).min(ROUTER_HELD)])
            .shared((LINE_BYTES * groups) as u32)
    }

    /// The choice, and gate, up and their product of the chosen experts.
    fn expert_act(&self, layer: &Layer, experts: &Experts) -> Call {
        let each = &experts.each;
        let (gate, up) = (self.weight(each.gate), self.weight(each.up));
        let (all, taken) = (self.width(experts.router), self.width(experts.chosen));
        let (groups, m) = (gate.n / 32, gate.m / all);
        let tap_some = |i: Option<usize>| i.map_or(0, |i| self.tap(i));
        let choice = Choice {
            logits: self.at(experts.router),
            chosen: self.at(experts.chosen),
            weights: self.at(experts.shares.unwrap_or(experts.weights)),
            probs_tap: self.tap(experts.probs),
            chosen_tap: self.tap(experts.chosen),
            weights_tap: self.tap(experts.weights),
            shares_tap: tap_some(experts.shares),
            experts: all as i32,
            taken: taken as i32,
            normalised: i32::from(experts.shares.is_some()),
        };
        let with = |ring: i32, walk| {
            let params = ExpertActParams {
                x: self.at(layer.ffn_norm),
                choice,
                gate: gate.planes,
                up: up.planes,
                y: self.at(each.act),
                gate_tap: self.tap(each.gate),
                up_tap: self.tap(each.up),
                y_tap: self.tap(each.act),
                walk,
                n: gate.n as i32,
                m: m as i32,
                stamps: 0,
            };
            Call::new(params, (1, 1, 1), 32 * ACT_WARPS as u32).of(&[&gate.ty, &up.ty, &ring])
        };
        let besides = choice_bytes(all, taken);
        let processors = self.calls.functions.processors as usize;
        // Through rings, eight rows of both matrices to a tile.
        let (tiles, task) = (taken * m * 2 / TILE, self.task(&[gate, up], groups, 1));
        let blocks = tiles.clamp(1, processors);
        let ring = Task { limit: task.limit.saturating_sub(besides), ..task }.ring(tiles.div_ceil(blocks));
        if let Some((walk, threads, shared)) = ring.filter(|_| gate.ty == up.ty && m.is_multiple_of(TILE / 2)) {
            let mut call = with(walk.stages, walk).shared(shared + besides as u32);
            (call.grid.0, call.block.0) = (blocks as u32, threads);
            return call;
        }
        let mut call = with(0, NO_WALK).shared((besides + LINE_BYTES * groups) as u32);
        call.grid.0 = (2 * processors).min((taken * m).div_ceil(ACT_WARPS)) as u32;
        call
    }

    /// The last product of the chosen experts, their sum and the residual stream.
    fn expert_down(&self, layer: &Layer, experts: &Experts) -> Call {
        let each = &experts.each;
        let w = self.weight(each.down);
        let (all, taken) = (self.width(experts.router), self.width(experts.chosen));
        let (groups, m) = (taken * w.n / 32, w.m / all);
        let with = |ring: i32, walk| {
            let params = ExpertDownParams {
                x: self.at(each.act),
                chosen: self.at(experts.chosen),
                weights: self.at(experts.shares.unwrap_or(experts.weights)),
                base: self.at(layer.attn_residual),
                w: w.planes,
                y: self.at(layer.out),
                down_tap: self.tap(each.down),
                sum_tap: self.tap(experts.sum),
                y_tap: self.tap(layer.out),
                walk,
                n: w.n as i32,
                m: m as i32,
                taken: taken as i32,
                stamps: 0,
            };
            Call::new(params, (1, 1, 1), 32 * DOWN_WARPS as u32).of(&[&w.ty, &ring])
        };
        // The choice, and the products of so many rows before they are added.
        let besides = |rows: usize| (8 * taken).next_multiple_of(16) + (4 * taken * rows).next_multiple_of(16);
        let processors = self.calls.functions.processors as usize;
        // Through rings, a tile of all chosen experts after another.
        let tiles = m / TILE;
        let blocks = tiles.clamp(1, processors);
        let each_block = tiles.div_ceil(blocks);
        // A ring has sums of tiles; here there are as many for each expert.
        let more = besides(each_block * TILE) + (taken - 1) * each_block * TILE * size_of::<f32>();
        let task = self.task(&[w], groups, 1);
        let ring = Task { limit: task.limit.saturating_sub(more), ..task }.ring(each_block);
        if let Some((walk, threads, shared)) = ring.filter(|_| m.is_multiple_of(TILE)) {
            let mut call = with(walk.stages, walk).shared(shared + more as u32);
            // As many warps as leave the fewest pieces to those that share a scheduler.
            let pieces = each_block * groups / PIECE;
            let of_scheduler = |&warps: &u32| pieces.div_ceil(warps as usize) * warps as usize / SCHEDULERS;
            let warps = (1..=threads / 32).rev().filter(|warps| warps.is_multiple_of(SCHEDULERS as u32));
            call.block.0 = 32 * warps.min_by_key(of_scheduler).expect("a ring has so many warps");
            call.grid.0 = blocks as u32;
            return call;
        }
        let blocks = (2 * processors).min(m);
        let mut call = with(0, NO_WALK).shared((besides(m.div_ceil(blocks)) + LINE_BYTES * groups) as u32);
        call.grid.0 = blocks as u32;
        call
    }

    /// Lines of rows of so many elements that a block of a longer step holds.
    fn lines(&self, n: usize) -> usize {
        (self.limit().saturating_sub(LIST_BYTES) / (LINE_BYTES * n / 32)).min(LINES)
    }

    /// Whether a block of a longer step holds a line of each product.
    pub(super) fn experts_fit(&self, experts: &Experts) -> bool {
        [experts.each.gate, experts.each.down].iter().all(|&node| self.lines(self.weight(node).n) > 0)
    }

    /// A product of the chosen experts of many tokens.
    pub(super) fn expert_rows(&self, node: usize, experts: &Experts, span: Span) -> Call {
        let (w, all, taken) = (self.weight(node), self.width(experts.router), self.width(experts.chosen));
        let (x, m) = (self.node(node).inputs[0], w.m / all);
        let params = ExpertRowsParams {
            x: self.at(x),
            chosen: self.at(experts.chosen),
            w: w.planes,
            y: self.at(node),
            n: w.n as i32,
            m: m as i32,
            experts: all as i32,
            lines: (span.tokens * taken) as i32,
            lines_of_row: (taken * w.n / self.width(x)) as i32,
            at_once: self.lines(w.n) as i32,
        };
        Call::new(params, (m.div_ceil(OUTPUTS) as u32, all as u32, 1), 32 * ROWS_WARPS as u32)
            .of(&[&w.ty])
            .shared((self.lines(w.n) * LINE_BYTES * w.n / 32) as u32)
    }
}

/// The way of a block without rings.
const NO_WALK: Walk = Walk { tiles: 0, sets: 0, chunk: 0, stages: 0, stride: 0 };

/// Bytes of shared memory of a choice: `choice_bytes` of `experts.cuh`.
fn choice_bytes(experts: usize, taken: usize) -> usize {
    4 * (experts.next_multiple_of(4) + taken).next_multiple_of(4)
}
