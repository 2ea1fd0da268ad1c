//! The fused path's launches of a decode step of Qwen3.5: five kernels a layer with a gated delta net, seven with gated attention.
//! The state of a layer stands where the longer steps, which are made a node at a time, leave it.

use super::calls::{Launch, Span};
use super::fast::Fused;
use super::hybrid::{Delta, Gated, Layer, Mixer, keys};
use super::kernels::*;
use super::known::Known;
use super::launch::Call;
use super::layouts::{Ptr, Stream, Walk};
use super::tiles::{TILE, Task};
use super::walk::defined;
use super::weights::Weight;
use crate::ops::Op;
use crate::quant::GgmlType;

const PARTS: usize = constant!("fused/mixer_in.cu", "PARTS") as usize;
const STEP_THREADS: u32 = 32 * constant!("fused/delta_step.cu", "STEP_WARPS");
const STEP_ROWS: usize = constant!("fused/delta_step.cu", "ROWS") as usize;
/// Threads of a block whose weights do not come through rings.
const PLAIN_THREADS: u32 = 32 * constant!("fused/ring.cuh", "RING_WARPS");
/// Weights of a block of the formats that come through rings.
const BLOCK: usize = 32 * constant!("fused/ring.cuh", "PIECE") as usize;
/// Bytes of a group of 32 elements as they are.
const LINE_BYTES: usize = 4 * constant!("fused/experts.cuh", "LINE") as usize;
const NO_WALK: Walk = Walk { tiles: 0, sets: 0, chunk: 0, stages: 0, stride: 0 };

/// How the rows of matrices that meet one vector are made: the way through the rings of those that come so, and the threads and the bytes of
/// shared memory of a block.
struct Way {
    walk: Walk,
    threads: u32,
    shared: u32,
    /// Whether each comes through rings.
    rings: Vec<bool>,
}

impl Fused<'_> {
    /// Every launch between the embedding and the head.
    pub(super) fn mixed_layers(&self, span: Span) -> Vec<Launch> {
        let mut all = Vec::new();
        let mut add = |call: Call, nodes: Vec<usize>| all.push(self.launch(call, nodes, span));
        let mut end = Vec::new();
        for (i, layer) in self.decoder.mixed.iter().enumerate() {
            end.push(layer.norm);
            match &layer.mixer {
                Mixer::Attention(a) => {
                    end.extend([a.both, a.k, a.v]);
                    add(self.mixer_in(i, layer, [a.both, a.k, a.v].to_vec(), None), std::mem::take(&mut end));
                    let heads = [a.halves, a.normed, a.rope, a.cache].into_iter().flatten();
                    add(self.gated_heads(a), heads.collect());
                    add(
                        self.attention_of([a.rope[0], a.cache[0], a.cache[1], a.scores, a.weights], None),
                        vec![a.scores],
                    );
                    add(self.gated_context(a), vec![a.weights, a.context, a.sigmoid, a.gated]);
                    add(self.mixer_out(i, layer, None), vec![layer.proj, layer.residual]);
                }
                Mixer::Delta(d) => {
                    end.extend([d.qkv, d.z].into_iter().chain(d.products).chain([d.beta, d.soft, d.decay]));
                    end.extend([d.window, d.convolved, d.act].into_iter().chain(d.parts));
                    let products = [d.qkv, d.z].into_iter().chain(d.products).collect();
                    add(self.mixer_in(i, layer, products, Some(d)), std::mem::take(&mut end));
                    add(self.delta_step(d), d.lengths.into_iter().chain([d.state, d.given]).collect());
                    add(self.mixer_out(i, layer, Some(d)), vec![d.normed, d.gated, layer.proj, layer.residual]);
                }
            }
            let mlp = &layer.mlp;
            add(self.ffn_act(layer.residual, layer.ffn_norm, mlp), vec![layer.ffn_norm, mlp.gate, mlp.up, mlp.act]);
            add(self.half_linear(mlp), Vec::new());
            end = vec![mlp.down, layer.out];
        }
        all
    }

    /// The nodes that the head puts together besides its own.
    pub(super) fn end_of_mixed(&self) -> Vec<usize> {
        self.decoder.mixed.last().map(|layer| vec![layer.mlp.down, layer.out]).unwrap_or_default()
    }

    /// As `Fused::stream`.
    pub(super) fn mixed_stream(&self, index: usize, taps: bool) -> Stream {
        let Some(before) = index.checked_sub(1).map(|i| &self.decoder.mixed[i]) else {
            return Stream { base: self.made(self.decoder.embed), ..Stream::default() };
        };
        let tap = |i| if taps { self.tap(i) } else { 0 };
        Stream {
            base: self.at(before.residual),
            halves: self.calls.memory.halves,
            product_tap: tap(before.mlp.down),
            sum_tap: tap(before.out),
        }
    }

    /// The way of a block that makes `tiles` tiles at most of any of these matrices.
    fn way(&self, weights: &[&Weight], tiles: usize) -> Way {
        let groups = weights[0].n / 32;
        let in_blocks = |w: &Weight| w.ty.block_size() == BLOCK && w.m.is_multiple_of(TILE);
        let ringed: Vec<&Weight> = weights.iter().copied().filter(|w| in_blocks(w)).collect();
        let plain = (LINE_BYTES * groups) as u32;
        let ring = match ringed.as_slice() {
            [] => None,
            some => Task { tiles: 1, ..self.task(some, groups, 1) }.ring(tiles),
        };
        match ring {
            Some((walk, threads, shared)) => {
                let rings = weights.iter().map(|w| in_blocks(w)).collect();
                Way { walk, threads, shared: shared.max(plain), rings }
            }
            None => Way { walk: NO_WALK, threads: PLAIN_THREADS, shared: plain, rings: vec![false; weights.len()] },
        }
    }

    /// Norm, projections and, of a delta net, what is made of each row at once.
    fn mixer_in(&self, index: usize, layer: &Layer, products: Vec<usize>, delta: Option<&Delta>) -> Call {
        let weights: Vec<&Weight> = products.iter().map(|&i| self.weight(i)).collect();
        let tiles: Vec<usize> = weights.iter().map(|w| w.m.div_ceil(TILE)).collect();
        // About as many tiles to every block, and no more blocks than the card holds at once.
        let makers = |most: usize| tiles.iter().map(move |tiles| tiles.div_ceil(most));
        let processors = self.calls.functions.processors as usize;
        let largest = tiles.iter().copied().max().unwrap_or(1);
        let most = (1..=largest).find(|&most| makers(most).sum::<usize>() <= processors).unwrap_or(largest);
        let way = self.way(&weights, most);
        let of_part = |i: usize| i.min(products.len() - 1);
        let each = |f: &dyn Fn(usize) -> i32| std::array::from_fn(|i| if i < products.len() { f(i) } else { 0 });
        let made: Vec<usize> = match delta {
            None => products.clone(),
            Some(d) => vec![d.act, d.z, d.beta, d.decay],
        };
        let some = |i: Option<usize>, f: &dyn Fn(usize) -> Ptr| i.map_or(0, f);
        let tap = |i: Option<usize>| some(i, &|i| self.tap(i));
        let vector = |i: Option<usize>| some(i, &|i| self.vector(i));
        let past = delta.map_or(0, |d| match defined(&self.node(d.window).op) {
            Some(Known::Window(window)) => window.rows,
            _ => unreachable!("a delta net's window is one"),
        });
        let params = MixerInParams {
            x: self.mixed_stream(index, true),
            norm: self.vector(layer.norm),
            w: std::array::from_fn(|i| weights[of_part(i)].planes),
            y: std::array::from_fn(|i: usize| self.at(made[of_part(i)])),
            norm_tap: self.tap(layer.norm),
            product_tap: std::array::from_fn(|i: usize| if i < products.len() { self.tap(products[i]) } else { 0 }),
            kernel: vector(delta.map(|d| d.convolved)),
            window: some(delta.map(|d| d.window), &|i| self.at(i)),
            shift: vector(delta.map(|d| d.soft)),
            rate: vector(delta.map(|d| d.decay)),
            window_tap: tap(delta.map(|d| d.window)),
            convolved_tap: tap(delta.map(|d| d.convolved)),
            act_tap: tap(delta.map(|d| d.act)),
            q_tap: tap(delta.map(|d| d.parts[0])),
            k_tap: tap(delta.map(|d| d.parts[1])),
            v_tap: tap(delta.map(|d| d.parts[2])),
            beta_tap: tap(delta.map(|d| d.beta)),
            soft_tap: tap(delta.map(|d| d.soft)),
            decay_tap: tap(delta.map(|d| d.decay)),
            past: past as i32,
            keys: delta.map_or(0, |d| keys(self.calls.graph, d)) as i32,
            walk: way.walk,
            n: weights[0].n as i32,
            m: each(&|i| weights[i].m as i32),
            makers: each(&|i| tiles[i].div_ceil(most) as i32),
            eps: self.eps(layer.norm),
            stamps: 0,
        };
        let formats: [GgmlType; PARTS] = std::array::from_fn(|i| weights[of_part(i)].ty);
        let stages: [i32; PARTS] = std::array::from_fn(|i| if way.rings[of_part(i)] { way.walk.stages } else { 0 });
        let [a, b, c, d] = formats;
        let [ring_a, ring_b, ring_c, ring_d] = stages;
        let blocks: usize = makers(most).sum();
        Call::new(params, (blocks as u32, 1, 1), way.threads)
            .of(&[&a, &b, &c, &d, &ring_a, &ring_b, &ring_c, &ring_d])
            .shared(way.shared)
    }

    /// The delta rule on the state.
    fn delta_step(&self, delta: &Delta) -> Call {
        let eps = |i: usize| match defined(&self.node(i).op) {
            Some(Known::L2Norm(norm)) => norm.eps as f32,
            _ => unreachable!("a delta net's keys are normalised"),
        };
        let net = delta.net;
        let params = DeltaStepParams {
            act: self.at(delta.act),
            beta: self.at(delta.beta),
            decay: self.at(delta.decay),
            state: self.at(delta.state),
            y: self.at(delta.given),
            q_tap: self.tap(delta.lengths[0]),
            k_tap: self.tap(delta.lengths[1]),
            state_tap: self.tap(delta.state),
            y_tap: self.tap(delta.given),
            heads: net.heads as i32,
            key_heads: net.key_heads as i32,
            q_eps: eps(delta.lengths[0]),
            k_eps: eps(delta.lengths[1]),
            stamps: 0,
        };
        let grid = (net.heads as u32, net.dim.div_ceil(STEP_ROWS) as u32, 1);
        Call::new(params, grid, STEP_THREADS).of(&[&net.dim])
    }

    /// The last product, of a delta net with its norm and its gate, and the residual stream.
    fn mixer_out(&self, index: usize, layer: &Layer, delta: Option<&Delta>) -> Call {
        let w = self.weight(layer.proj);
        let tiles = w.m.div_ceil(TILE);
        let blocks = tiles.min(self.calls.functions.processors as usize).max(1);
        let way = self.way(&[w], tiles.div_ceil(blocks));
        let params = MixerOutParams {
            x: self.at(delta.map_or(layer.mixer.result(), |d| d.given)),
            z: delta.map_or(0, |d| self.at(d.z)),
            norm: delta.map_or(0, |d| self.vector(d.normed)),
            w: w.planes,
            a: self.mixed_stream(index, false),
            y: self.at(layer.residual),
            normed_tap: delta.map_or(0, |d| self.tap(d.normed)),
            gated_tap: delta.map_or(0, |d| self.tap(d.gated)),
            product_tap: self.tap(layer.proj),
            y_tap: self.tap(layer.residual),
            walk: way.walk,
            n: w.n as i32,
            m: w.m as i32,
            eps: delta.map_or(0.0, |d| self.eps(d.normed)),
            stamps: 0,
        };
        let ring = if way.rings[0] { way.walk.stages } else { 0 };
        Call::new(params, (blocks as u32, 1, 1), way.threads)
            .of(&[&w.ty, &delta.map_or(0, |d| d.net.dim), &ring])
            .shared(way.shared)
    }

    /// Norms of heads, RoPE, both caches.
    fn gated_heads(&self, a: &Gated) -> Call {
        let config = &self.calls.graph.config;
        let Op::Rope(rope) = &self.node(a.rope[0]).op else { unreachable!("queries are rotated") };
        let params = GatedHeadsParams {
            both: self.at(a.both),
            k: self.at(a.k),
            v: self.at(a.v),
            norm: a.normed.map(|i| self.vector(i)),
            frequency: self.calls.memory.frequencies[&a.rope[0]],
            position_at: self.calls.memory.position,
            q: self.at(a.rope[0]),
            gate: self.at(a.halves[1]),
            k_cache: self.at(a.cache[0]),
            v_cache: self.at(a.cache[1]),
            half_tap: self.tap(a.halves[0]),
            gate_tap: self.tap(a.halves[1]),
            normed_tap: a.normed.map(|i| self.tap(i)),
            rope_tap: a.rope.map(|i| self.tap(i)),
            heads: config.n_heads as i32,
            kv_heads: config.n_kv_heads as i32,
            rotated: rope.rotated as i32,
            eps: self.eps(a.normed[0]),
            stamps: 0,
        };
        let blocks = config.n_heads + 2 * config.n_kv_heads;
        Call::new(params, (blocks as u32, 1, 1), config.head_dim as u32)
            .of(&[&self.calls.options.kv_kernel(false), &config.head_dim])
    }

    /// The shares put together, and the context by its gate.
    fn gated_context(&self, a: &Gated) -> Call {
        let (config, memory) = (&self.calls.graph.config, self.calls.memory);
        let params = GatedContextParams {
            partial: memory.partial,
            gate: self.at(a.halves[1]),
            y: self.at(a.gated),
            position_at: memory.position,
            weights_tap: self.tap(a.weights),
            context_tap: self.tap(a.context),
            sigmoid_tap: self.tap(a.sigmoid),
            gated_tap: self.tap(a.gated),
            splits: self.splits(false) as i32,
            stamps: 0,
        };
        Call::new(params, (config.n_heads as u32, 1, 1), config.head_dim as u32).of(&[&config.head_dim])
    }
}
