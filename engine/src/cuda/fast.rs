//! The fused decode step: five kernels a layer, six where it has experts (`mixture`), replayed as one CUDA graph. Longer steps
//! are in `prefill`.
//!
//! Position and token are in device memory, so that the captured graph serves every step.

use super::CudaError;
use super::calls::{Calls, Job, Launch, Span};
use super::decoder::{Decoder, Ffn, Layer, Mlp};
use super::hybrid;
use super::kernels::*;
use super::launch::Call;
use super::layouts::{Best, Ptr, Stream, Walk};
use super::tiles::{THREADS, TILE, Task};
use super::weights::Weight;
use crate::model::{Graph, Node};
use crate::ops::{Op, Pairing};

/// Threads of a block, each where the kernel says so.
const ARGMAX_THREADS: u32 = constant!("fused/argmax.cu", "THREADS");
const EMBED_THREADS: u32 = 256;
/// Threads of a block of `ffn_act` whose warps share all its rows, and the number of such blocks in a multiprocessor.
const SHARING_THREADS: u32 = 32 * constant!("fused/ffn_act.cu", "SHARING_WARPS");
const SHARING_BLOCKS: usize = constant!("fused/ffn_act.cu", "SHARING_BLOCKS") as usize;
/// Atoms that each of these warps unpacks before its turn.
const SHARING_HELD: usize = 1;
const CACHE_THREADS: u32 = constant!("fused/cache_rows.cu", "THREADS");
/// Rows of a cache that a block of `cache_rows` takes.
const CACHE_ROWS: usize = constant!("fused/cache_rows.cu", "ROWS") as usize;
/// Tapped weights of a head that one block of `attn_out` scales at most.
const SCALED: usize = 4096;
/// Bytes of shared memory that the kernels have besides what their launches ask for.
const STATIC_BYTES: usize = 5 << 10;
/// Bytes that a block of `ffn_act` has besides, and CUDA takes for itself.
const BLOCK_BYTES: usize = 2 << 10;

/// Whether any of these is an address. A kernel that is not made for taps has no code for them, which would take time
/// on its turn.
pub(super) fn tapped(taps: &[&[Ptr]]) -> bool {
    taps.iter().copied().flatten().any(|&at| at != 0)
}

/// What of the model the fused kernels are not made for.
///
/// # Errors
/// The model's trait that stands against it, and what to use instead.
pub fn decoder_of(graph: &Graph) -> Result<Decoder, CudaError> {
    let refuse = |what: String| Err(CudaError::Unsupported(format!("the fused kernels {what}; use --subject cuda")));
    let config = &graph.config;
    let Some(decoder) = Decoder::of(graph) else {
        let known = format!("know the decoders of Qwen2, Qwen3 and dense Qwen3.5, not that of {}", config.arch);
        return refuse(match hybrid::missing(graph) {
            Some(what) => format!("{known}: they lack {what}"),
            None => known,
        });
    };
    if let Some(what) = hybrid::unfit(graph, &decoder.mixed) {
        return refuse(format!("are not made for {what}"));
    }
    if decoder.mixed.is_empty() && ![32, 64, 128].contains(&config.head_dim) {
        return refuse(format!("are not made for heads of {} elements", config.head_dim));
    }
    let group = config.n_heads / config.n_kv_heads;
    if group > 16 {
        return refuse(format!("are not made for {group} query heads to one of the cache"));
    }
    let adjacent = |&node: &usize| matches!(&graph.nodes[node].op, Op::Rope(rope) if rope.pairing != Pairing::Neox);
    if decoder.layers.iter().flat_map(|l| &l.rope).any(adjacent) {
        return refuse("are not made for RoPE of adjacent pairs".to_owned());
    }
    Ok(decoder)
}

/// Makes the fused launches of a model.
#[derive(Clone, Copy)]
pub struct Fused<'a> {
    /// Single nodes, the memory, the options.
    pub calls: Calls<'a>,
    /// Which node is which.
    pub decoder: &'a Decoder,
    /// Where the next token goes, in pinned host memory.
    pub next_token: Ptr,
    /// Which nodes' outputs are to be written besides those that later kernels read.
    pub wants: &'a dyn Fn(usize) -> bool,
    /// Whether longer steps go as on another card than Hopper, which keeps no matrix as halves: for bugs in what runs there.
    pub narrow: bool,
}

impl Fused<'_> {
    pub(super) fn node(&self, i: usize) -> &Node {
        &self.calls.graph.nodes[i]
    }

    pub(super) fn at(&self, i: usize) -> Ptr {
        self.calls.memory.outputs[i].at
    }

    /// Where the output of a node of a decode step is to be written besides, if it is wanted.
    pub(super) fn tap(&self, i: usize) -> Ptr {
        if (self.wants)(i) { self.calls.memory.slots[i] } else { 0 }
    }

    /// Where a decode step writes the output of a node that no other shares the buffer with: to its slot alone.
    pub(super) fn made(&self, i: usize) -> Ptr {
        match self.tap(i) {
            0 => self.at(i),
            slot => slot,
        }
    }

    pub(super) fn weight(&self, i: usize) -> &Weight {
        self.calls.memory.weight(self.node(i))
    }

    pub(super) fn vector(&self, i: usize) -> Ptr {
        self.weight(i).planes[0]
    }

    pub(super) fn eps(&self, i: usize) -> f32 {
        let Op::RmsNorm(norm) = &self.node(i).op else { unreachable!("the decoder's norms are RMSNorms") };
        norm.eps as f32
    }

    pub(super) fn scale(&self, weights: usize) -> f32 {
        let Op::AttnWeights(softmax) = &self.node(weights).op else {
            unreachable!("the decoder's weights are a softmax")
        };
        softmax.scale as f32
    }

    pub(super) fn launch(&self, call: Call, nodes: Vec<usize>, span: Span) -> Launch {
        Launch { jobs: vec![Job::Kernel(call)], nodes, span, keeps: false }
    }

    /// Rows of these weights, `groups` groups of each, by `tiles` tiles.
    pub(super) fn task(&self, weights: &[&Weight], groups: usize, tiles: usize) -> Task {
        Task { formats: weights.iter().map(|w| w.ty).collect(), groups, tiles, limit: self.limit() }
    }

    /// Bytes of shared memory that a launch may ask for.
    pub(super) fn limit(&self) -> usize {
        (self.calls.functions.shared as usize).saturating_sub(STATIC_BYTES)
    }

    /// Bytes of shared memory that a launch may ask for if a multiprocessor is to hold two of its blocks.
    fn limit_of_two(&self) -> usize {
        (self.calls.functions.shared as usize / 2).saturating_sub(STATIC_BYTES + BLOCK_BYTES)
    }

    /// The launch with as many blocks as the card holds at once, which take `sets` sets of tiles in turn, of as many warps as
    /// let it hold most. `with` puts the walk where the launch has it, and says how many rows of blocks there are. Its shared
    /// memory does not depend on the number of blocks, which is known only later.
    fn streamed(&self, task: &Task, sets: usize, with: impl Fn(Walk) -> Call) -> Call {
        let (walk, shared) = task.walk(sets.max(2));
        let call = |threads: u32, each: usize| {
            let mut call = with(Walk { sets: each as i32, ..walk }).shared(shared);
            call.block.0 = threads;
            call
        };
        let resident = |threads: u32| self.calls.functions.resident(&call(threads, 1)) as usize;
        let [all, fewer] = task.threads();
        let threads = if resident(fewer) > resident(all) { fewer } else { all };
        let rows = call(threads, 1).grid.1 as usize;
        let blocks = (resident(threads) / rows).min(sets).max(1);
        let mut call = call(threads, sets.div_ceil(blocks));
        call.grid.0 = blocks as u32;
        call
    }

    /// What layer `index` is given: the embedding, or what the layer before it left.
    fn stream(&self, index: usize, taps: bool) -> Stream {
        let Some(before) = index.checked_sub(1).map(|i| &self.decoder.layers[i]) else {
            return Stream { base: self.made(self.decoder.embed), ..Stream::default() };
        };
        let tap = |i| if taps { self.tap(i) } else { 0 };
        let Ffn::Dense(mlp) = &before.ffn else {
            return Stream { base: self.at(before.out), ..Stream::default() };
        };
        Stream {
            base: self.at(before.attn_residual),
            halves: self.calls.memory.halves,
            product_tap: tap(mlp.down),
            sum_tap: tap(before.out),
        }
    }

    /// Every launch of a decode step.
    pub fn decode(&self, token: u32, position: usize) -> Vec<Launch> {
        let d = self.decoder;
        let deep = self.deep(position);
        let span = Span { tokens: 1, first: position };
        let mut all = vec![self.launch(self.embed_token(token, position), vec![d.embed], span)];
        all.extend(self.mixed_layers(span));
        let mut add = |call, nodes| all.push(self.launch(call, nodes, span));
        // The end of a layer, which the kernel after it puts together.
        let mut end = self.end_of_mixed();
        for (i, layer) in d.layers.iter().enumerate() {
            end.extend(layer.up_to_caches());
            add(self.attn_qkv(i, layer), std::mem::take(&mut end));
            add(self.attention(layer, deep), vec![layer.scores]);
            add(self.attn_out(i, layer, deep), vec![layer.weights, layer.context, layer.attn_out, layer.attn_residual]);
            match &layer.ffn {
                Ffn::Dense(mlp) => {
                    add(
                        self.ffn_act(layer.attn_residual, layer.ffn_norm, mlp),
                        vec![layer.ffn_norm, mlp.gate, mlp.up, mlp.act],
                    );
                    add(self.half_linear(mlp), Vec::new());
                    end = vec![mlp.down, layer.out];
                }
                Ffn::Experts(experts) => {
                    for (call, nodes) in self.mixture(layer, experts) {
                        add(call, nodes);
                    }
                }
            }
        }
        end.extend([d.final_norm, d.logits]);
        let head = self.lm_head();
        // It tells the best logit itself where it can.
        let told = matches!(&head.params, Params::LmHead(head) if head.best.token != 0);
        add(head, end);
        if !told {
            add(self.argmax(), Vec::new());
        }
        all
    }

    /// The token's embedding, and the position for the kernels after it.
    pub fn embed_token(&self, token: u32, position: usize) -> Call {
        let embed = self.decoder.embed;
        let w = self.weight(embed);
        let params = EmbedTokenParams {
            w: w.planes,
            x: self.made(embed),
            position_at: self.calls.memory.position,
            width: w.n as i32,
            token,
            position: position as i32,
            stamps: 0,
        };
        Call::new(params, (1, 1, 1), EMBED_THREADS).of(&[&w.ty])
    }

    /// How the weights of `attn_qkv` come through rings, where registers hold none of them: the way, the threads and the bytes of
    /// shared memory of a block, and the number of blocks that make q, k and v. Each block has about as many tiles of eight
    /// pairs, one of k or v half as many, since their formats may be larger, or whole heads where they are normalised; the card
    /// holds all blocks at once.
    pub(super) fn qkv_ring(&self, layer: &Layer) -> Option<(Walk, u32, u32, [usize; 3])> {
        let parts = layer.proj.map(|i| self.weight(i));
        let config = &self.calls.graph.config;
        let (half, normed) = (config.head_dim / 2, layer.normed[0].is_some());
        // The threads of a head add up its squares by warps.
        let whole = half.is_multiple_of(if normed { 32 } else { TILE / 2 });
        let task = self.task(&parts, parts[0].n / 32, if normed { 2 * half / TILE } else { 2 });
        if !whole || parts.iter().any(|w| task.held(w.ty) > 0) {
            return None;
        }
        let [q, k, v] = parts.map(|w| w.m / TILE);
        let makers = |most: usize| {
            let each = [q.div_ceil(most), k.div_ceil(most.div_ceil(2)), v.div_ceil(most.div_ceil(2))];
            // As many blocks for q, and for k, as give each of them whole heads, and no more tiles than that.
            let of_heads = |heads: usize| {
                (1..=heads).find(|blocks| heads.is_multiple_of(*blocks) && q / config.n_heads * heads / blocks <= most)
            };
            match normed {
                true => Some([of_heads(config.n_heads)?, of_heads(config.n_kv_heads)?, each[2]]),
                false => Some(each),
            }
        };
        let fits = |&most: &usize| {
            makers(most).is_some_and(|each| each.iter().sum::<usize>() <= self.calls.functions.processors as usize)
        };
        let most = (1..=q).find(fits)?;
        let (walk, threads, shared) = self.task(&parts, parts[0].n / 32, 1).ring(most)?;
        (most * TILE / 2 <= threads as usize).then(|| Some((walk, threads, shared, makers(most)?)))?
    }

    /// Norm, the three projections, biases or norms of heads, RoPE, both caches.
    fn attn_qkv(&self, index: usize, layer: &Layer) -> Call {
        let config = &self.calls.graph.config;
        let [q, k, v] = layer.proj.map(|i| self.weight(i));
        let tap_some = |i: Option<usize>| i.map_or(0, |i| self.tap(i));
        let vector_some = |i: Option<usize>| i.map_or(0, |i| self.vector(i));
        // A block normalises whole heads.
        let (half, head_norm) = (config.head_dim / 2, layer.normed[0].is_some());
        let pairs = if head_norm { half / TILE } else { 1 };
        let task = self.task(&[q, k, v], q.n / 32, 2 * pairs);
        let held = [q, k, v].map(|w| task.held(w.ty));
        let with = |walk, makers: [usize; 3], pairs: usize, [held_q, held_k, held_v]: [usize; 3]| {
            let params = AttnQkvParams {
                x: self.stream(index, true),
                norm: self.vector(layer.attn_norm),
                bias: layer.biased.map(vector_some),
                head_norm: layer.normed.map(vector_some),
                frequency: self.calls.memory.frequencies[&layer.rope[0]],
                w: [q, k, v].map(|w| w.planes),
                position_at: self.calls.memory.position,
                q: self.at(layer.rope[0]),
                k_cache: self.at(layer.cache[0]),
                v_cache: self.at(layer.cache[1]),
                norm_tap: self.tap(layer.attn_norm),
                proj_tap: layer.proj.map(|i| self.tap(i)),
                biased_tap: layer.biased.map(tap_some),
                normed_tap: layer.normed.map(tap_some),
                rope_tap: layer.rope.map(|i| self.tap(i)),
                walk,
                n: q.n as i32,
                heads: config.n_heads as i32,
                kv_heads: config.n_kv_heads as i32,
                eps: self.eps(layer.attn_norm),
                makers: makers.map(|blocks| blocks as i32),
                stamps: 0,
            };
            let (kv, d) = (self.calls.options.kv_kernel(false), &config.head_dim);
            let of_vector = [params.x.product_tap, params.x.sum_tap, params.norm_tap];
            let (made, turned) = ([params.proj_tap, params.biased_tap], [params.normed_tap, params.rope_tap]);
            let tapped = tapped(&[&of_vector, made.as_flattened(), turned.as_flattened()]);
            Call::new(params, (1, 1, 1), THREADS)
                .of(&[&q.ty, &k.ty, &v.ty, &kv, d, &pairs, &head_norm, &held_q, &held_k, &held_v, &q.n, &tapped])
        };
        if let Some((walk, threads, shared, makers)) = self.qkv_ring(layer) {
            let mut call = with(walk, makers, 0, [walk.stages as usize; 3]).shared(shared);
            (call.grid.0, call.block.0) = (makers.iter().sum::<usize>() as u32, threads);
            return call;
        }
        let (walk, shared) = task.walk(1);
        let mut call = with(walk, [0; 3], pairs, held).shared(shared);
        call.grid.0 = ((config.n_heads + 2 * config.n_kv_heads) * half / (TILE * pairs)) as u32;
        call
    }

    /// The shares put together, and `attn_residual = x + W context`.
    fn attn_out(&self, index: usize, layer: &Layer, deep: bool) -> Call {
        let config = &self.calls.graph.config;
        let memory = self.calls.memory;
        let w = self.weight(layer.attn_out);
        let task = self.task(&[w], w.n / 32, 1);
        let (held, tiles) = (task.half_held(w.ty), w.m.div_ceil(TILE));
        // Where registers do not hold these weights they come through rings, to as few blocks as give none more tiles.
        let each = tiles.div_ceil(self.calls.functions.processors as usize);
        let ring = if held == 0 && w.m.is_multiple_of(TILE) { task.ring(each) } else { None };
        let ring = ring.filter(|&(_, threads, _)| each * TILE <= threads as usize);
        let (walk, shared) = task.walk(1);
        let (makers, stages) =
            if let Some((walk, ..)) = ring { (tiles.div_ceil(each), walk.stages) } else { (tiles, 0) };
        let (walk, threads, shared) = ring.unwrap_or((walk, THREADS, shared));
        let params = AttnOutParams {
            partial: memory.partial,
            w: w.planes,
            a: self.stream(index, false),
            y: self.at(layer.attn_residual),
            position_at: memory.position,
            weights_tap: self.tap(layer.weights),
            context_tap: self.tap(layer.context),
            product_tap: self.tap(layer.attn_out),
            y_tap: self.tap(layer.attn_residual),
            walk,
            n: w.n as i32,
            m: w.m as i32,
            heads: config.n_heads as i32,
            splits: self.splits(deep) as i32,
            makers: makers as i32,
            stamps: 0,
        };
        // In a long context several blocks bring the tapped weights of a head to their total.
        let scaling = match self.tap(layer.weights) {
            0 => 0,
            _ => config.n_heads * self.calls.options.context.div_ceil(SCALED),
        };
        let tapped = tapped(&[&[params.weights_tap, params.context_tap, params.product_tap, params.y_tap]]);
        Call::new(params, ((makers + scaling) as u32, 1, 1), threads)
            .of(&[&w.ty, &config.head_dim, &held, &stages, &w.n, &tapped])
            .shared(shared)
    }

    /// The halves of `W act`, which the kernels after it add to `attn_residual`.
    pub(super) fn half_linear(&self, mlp: &Mlp) -> Call {
        let w = self.weight(mlp.down);
        let groups = w.n / 32;
        // Whole blocks of weights.
        let first = groups.div_ceil(2).next_multiple_of(w.ty.block_size().div_ceil(32)).min(groups);
        let task = self.task(&[w], first, 1);
        let with = |held: usize, ring: i32| {
            move |walk| {
                let params = HalfLinearParams {
                    x: self.at(mlp.act),
                    w: w.planes,
                    y: self.calls.memory.halves,
                    walk,
                    n: w.n as i32,
                    m: w.m as i32,
                    first: first as i32,
                    stamps: 0,
                };
                let halves = if ring > 0 { 1 } else { 2 };
                Call::new(params, (1, halves, 1), THREADS).of(&[&w.ty, &held, &ring, &w.n, &first])
            }
        };
        // A block for each tile, if the card holds all of them at once.
        let ((walk, shared), tiles) = (task.walk(1), w.m.div_ceil(TILE));
        let each = if shared as usize <= self.limit_of_two() { 2 } else { 1 };
        if 2 * tiles <= each * self.calls.functions.processors as usize {
            let mut call = with(task.held(w.ty), 0)(walk).shared(shared);
            call.grid.0 = tiles as u32;
            return call;
        }
        // Or a block a multiprocessor that takes its share of all rows, if none of them is then shared out among three.
        let blocks = self.calls.functions.processors as usize;
        let ring = self.task(&[w], groups, 1).ring(tiles / blocks + 2);
        if let Some((walk, threads, shared)) = ring.filter(|_| w.m.is_multiple_of(TILE) && tiles >= blocks) {
            let mut call = with(0, walk.stages)(walk).shared(shared);
            (call.grid.0, call.block.0) = (blocks as u32, threads);
            return call;
        }
        // Or two blocks a multiprocessor that take tiles in turn: one multiplies while the other waits for its weights.
        let two = Task { limit: self.limit_of_two(), ..task.clone() };
        let fits = two.walk(2).1 as usize <= two.limit;
        self.streamed(if fits { &two } else { &task }, tiles, with(0, 0))
    }

    /// Norm, gate, up and their product.
    pub(super) fn ffn_act(&self, residual: usize, norm: usize, mlp: &Mlp) -> Call {
        let (gate, up) = (self.weight(mlp.gate), self.weight(mlp.up));
        let with = |tiles: usize, held: usize, streamed: bool| {
            move |walk| {
                let params = FfnActParams {
                    x: self.at(residual),
                    norm: self.vector(norm),
                    gate: gate.planes,
                    up: up.planes,
                    y: self.at(mlp.act),
                    norm_tap: self.tap(norm),
                    gate_tap: self.tap(mlp.gate),
                    up_tap: self.tap(mlp.up),
                    y_tap: self.tap(mlp.act),
                    walk,
                    n: gate.n as i32,
                    m: gate.m as i32,
                    eps: self.eps(norm),
                    stamps: 0,
                };
                // One kernel says how many blocks and warps the card holds, so that a tap changes no sum.
                let taps = [params.norm_tap, params.gate_tap, params.up_tap, params.y_tap];
                let tapped = streamed || tapped(&[&taps]);
                Call::new(params, (1, 1, 1), THREADS).of(&[&gate.ty, &up.ty, &tiles, &held, &gate.n, &tapped])
            }
        };
        // Two pairs of tiles or one to a block, if the card then holds all blocks at once, two to a multiprocessor.
        let most = 2 * self.calls.functions.processors as usize;
        for pairs in [2, 1] {
            let task = self.task(&[gate, up], gate.n / 32, 2 * pairs);
            let (blocks, held) = (gate.m.div_ceil(TILE * pairs), task.held(gate.ty));
            if gate.ty == up.ty && held > 0 && blocks <= most {
                let (walk, shared) = task.walk(1);
                let mut call = with(2 * pairs, held, false)(walk).shared(shared);
                call.grid.0 = blocks as u32;
                return call;
            }
        }
        // Or the rows of all blocks in shared memory, where they fit: eight of each matrix to a tile.
        let (tiles, limit) = (gate.m.div_ceil(TILE / 2), self.calls.functions.shared as usize);
        let each = tiles.div_ceil(SHARING_BLOCKS * self.calls.functions.processors as usize);
        let (walk, shared) = self.task(&[gate, up], gate.n / 32, 1).shared_out(each);
        if gate.ty == up.ty && SHARING_BLOCKS * (shared as usize + BLOCK_BYTES) <= limit {
            let mut call = with(1, SHARING_HELD, false)(walk).shared(shared);
            (call.grid.0, call.block.0) = (tiles.div_ceil(each) as u32, SHARING_THREADS);
            return call;
        }
        // Or through rings, of tiles alike.
        let blocks = tiles.min(self.calls.functions.processors as usize);
        let ring = self.task(&[gate, up], gate.n / 32, 1).ring(tiles.div_ceil(blocks));
        if let Some((walk, threads, shared)) = ring.filter(|_| gate.ty == up.ty && gate.m.is_multiple_of(TILE)) {
            let mut call = with(0, walk.stages as usize, false)(walk).shared(shared);
            (call.grid.0, call.block.0) = (blocks as u32, threads);
            return call;
        }
        let task = self.task(&[gate, up], gate.n / 32, 2);
        self.streamed(&task, gate.m.div_ceil(TILE), with(2, 0, true))
    }

    /// The last norm and the output projection.
    fn lm_head(&self) -> Call {
        let best = Best { token: self.next_token, ..self.best() };
        let stream = match self.decoder.mixed.len() {
            0 => self.stream(self.decoder.layers.len(), true),
            mixed => self.mixed_stream(mixed, true),
        };
        self.lm_head_of(stream, self.made(self.decoder.logits), best)
    }

    /// Where the largest logit is looked for, for nobody.
    fn best(&self) -> Best {
        let memory = self.calls.memory;
        Best { largest: memory.best, arrived: memory.argmax_arrived, token: 0 }
    }

    /// Both of one token, from this stream to these logits, of which it tells the best where it can.
    pub(super) fn lm_head_of(&self, x: Stream, made: Ptr, best: Best) -> Call {
        let (norm, logits) = (self.decoder.final_norm, self.decoder.logits);
        let w = self.weight(logits);
        let with = |own: bool, ring: i32, walk| {
            let params = LmHeadParams {
                x,
                norm: self.vector(norm),
                w: w.planes,
                logits: made,
                best: if own || ring > 0 { best } else { Best::default() },
                norm_tap: self.tap(norm),
                walk,
                n: w.n as i32,
                m: w.m as i32,
                eps: self.eps(norm),
                stamps: 0,
            };
            Call::new(params, (1, 1, 1), THREADS).of(&[&w.ty, &own, &ring, &w.n])
        };
        // From Hopper on, of whole tiles: a block a multiprocessor, whose warps wait for nobody.
        let processors = self.calls.functions.processors;
        let own = self.task(&[w], w.n / 32, 1).own(w.m, processors as usize);
        if let Some((walk, threads, shared)) = own.filter(|_| self.calls.functions.clusters && w.m.is_multiple_of(TILE))
        {
            let mut call = with(true, 0, walk).shared(shared);
            (call.grid.0, call.block.0) = (processors, threads);
            return call;
        }
        // Or through rings.
        let (tiles, blocks) = (w.m / TILE, (w.m / TILE).min(processors as usize).max(1));
        let ring = self.task(&[w], w.n / 32, 1).ring(tiles.div_ceil(blocks));
        if let Some((walk, threads, shared)) = ring.filter(|_| w.m.is_multiple_of(TILE)) {
            let mut call = with(false, walk.stages, walk).shared(shared);
            (call.grid.0, call.block.0) = (blocks as u32, threads);
            return call;
        }
        let tiles = 2;
        self.streamed(&self.task(&[w], w.n / 32, tiles), w.m.div_ceil(TILE * tiles), |walk| with(false, 0, walk))
    }

    /// The next token, into host memory.
    fn argmax(&self) -> Call {
        let params = ArgmaxParams {
            logits: self.made(self.decoder.logits),
            best: Best { token: self.next_token, ..self.best() },
            m: self.weight(self.decoder.logits).m as i32,
            stamps: 0,
        };
        // Each ends in an atomic operation on one number, so few: 66 on an H200.
        Call::new(params, (self.calls.functions.processors.div_ceil(2), 1, 1), ARGMAX_THREADS)
    }

    /// Brings the newest rows of the caches in the table at `caches` to `out`: of `count`, each `width` long, of whose
    /// rows `known` have a checksum.
    pub fn cache_rows(&self, caches: Ptr, count: usize, out: Ptr, width: usize, known: usize, newest: usize) -> Call {
        let params = CacheRowsParams { caches, out, width: width as i32, newest: newest as i32, known: known as i32 };
        let kv = self.calls.options.kv_kernel(false);
        let pieces = (newest + 1).div_ceil(CACHE_ROWS) as u32;
        Call::new(params, (count as u32, pieces, 1), CACHE_THREADS).of(&[&kv])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::calls::calls_of;
    use crate::cuda::functions::Functions;
    use crate::cuda::known::is_cache;
    use crate::cuda::options::{Options, Path};
    use crate::cuda::testing::{graphs, mixed, with_calls};
    use crate::model::Role;

    /// The addresses and numbers that launches are given, in their order.
    fn numbers(calls: impl Iterator<Item = Call>) -> Vec<u64> {
        let told: String = calls.map(|call| format!("{:?}", call.params)).collect();
        told.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    }

    #[test]
    fn a_launch_asks_for_the_same_shared_memory_however_many_blocks_the_card_holds() {
        for graph in &graphs() {
            let options = Options { step: 8, context: 16, path: Path::Fast, ..Options::default() };
            // Before its kernels are loaded a card's blocks are guessed by its threads.
            let asked = |shared: u32, processors, threads| {
                with_calls(graph, &options, |calls| {
                    let functions = Functions::bare(processors, threads, shared << 10);
                    let decoder = decoder_of(graph).expect("a decoder");
                    let calls = Calls { functions: &functions, ..calls };
                    let fused = Fused { calls, decoder: &decoder, next_token: 0, wants: &|_| false, narrow: false };
                    let told = |call: Call| ((call.kernel(), call.shared), call.grid);
                    calls_of(fused.decode(7, 5)).map(told).unzip::<_, _, Vec<_>, Vec<_>>()
                })
            };
            // Shared memory holds rows of gate and up, and ffn_down has a block for each tile, or both come set after set
            // to as many blocks as the card holds.
            for (shared, processors, whole) in [(227, 64, true), (227, 1, false), (40, 1, false)] {
                let (many, few) = (asked(shared, processors, 2048), asked(shared, processors, 32));
                assert_eq!(many.0, few.0);
                // No launch of experts goes by how many blocks the card holds.
                let experts = decoder_of(graph).is_ok_and(|d| matches!(d.layers[0].ffn, Ffn::Experts(_)));
                assert_eq!(many.1 == few.1, whole || experts);
                assert_ne!(many.1, asked(shared, 2 * processors, 2048).1);
            }
        }
    }

    #[test]
    fn a_decode_step_writes_each_stage_that_is_wanted_to_its_place_in_a_slot_and_nothing_else_there() {
        for graph in graphs().iter().chain([&mixed()]) {
            let options = Options { step: 8, context: 16, path: Path::Fast, taps: true, ..Options::default() };
            with_calls(graph, &options, |calls| {
                let decoder = decoder_of(graph).expect("a decoder");
                let launch = |wants: &dyn Fn(usize) -> bool| {
                    let fused = Fused { calls, decoder: &decoder, next_token: 0, wants, narrow: false };
                    numbers(calls_of(fused.decode(7, 5)))
                };
                let untapped = launch(&|_| false);
                for (i, node) in graph.nodes.iter().enumerate() {
                    let (slot, tapped) = (calls.memory.slots[i], launch(&|j| j == i));
                    let changed: Vec<u64> =
                        std::iter::zip(&untapped, tapped).filter(|(a, b)| *a != b).map(|(_, b)| b).collect();
                    let at_slot = changed.iter().filter(|&&b| b == slot).count();
                    // Whose buffer no other node has is written, and read, in the slot, logits only where another kernel looks
                    // for the best; a cache stands where it is. Weights are written by the shares of attention and scaled by
                    // blocks of who puts these together.
                    let weights = usize::from(matches!(node.op, Op::AttnWeights(_)));
                    match (is_cache(node), node.id.layer, node.role) {
                        (true, ..) => assert_eq!(changed.len(), 0, "{}", node.id),
                        (_, None, role) if role != Role::HeadInput => {
                            let least = if role == Role::Logits { 1 } else { 2 };
                            assert!(at_slot >= least && at_slot == changed.len(), "{}", node.id);
                        }
                        _ => assert_eq!((at_slot, changed.len()), (1 + weights, 1 + weights), "{}", node.id),
                    }
                }
            });
        }
    }
}
