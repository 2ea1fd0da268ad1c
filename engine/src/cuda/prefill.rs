//! The launches of a step of many tokens by the fast path: products on the tensor cores whose operands stand prepared, and
//! between them kernels that take a token's row at a time.
//!
//! A product whose tiles are too few for the card is made in shares of its sums, which the kernel after it adds up.

use super::calls::{Job, Launch, Span};
use super::decoder::{Ffn, Layer, Mlp};
use super::fast::Fused;
use super::kernels::*;
use super::launch::Call;
use super::layouts::{Best, Ptr, Shared, Stream, Wide};
use super::operand::{OUTPUTS, PIECE, Part, RESERVED, SHARED, TOKENS, cache_tile, product_of, tiles_at_once};
use super::several::Together;
use super::weights::{Planes, Weight};
use super::wide;
use crate::quant::GgmlType;

/// Warps of a block of the kernel that takes the heads of a token, at most.
const HEAD_WARPS: usize = 12;
/// Elements of a row that a thread is to have at least of those that it makes an operand of.
const KEPT: usize = 8;
/// Threads that make rows on a multiprocessor: as many as its registers are for.
const MAKING: usize = 1024;
/// Rows that a multiprocessor is to make at once, if its shared memory holds as many (`Row` of `row.cuh`).
const ROWS_AT_ONCE: usize = 4;
const PRODUCT_THREADS: u32 = constant!("prefill/products.cu", "THREADS");
/// Threads of a block that makes a row, at most.
const ROW_THREADS: usize = constant!("prefill/row.cuh", "MOST_ROW_THREADS") as usize;
const ATTENTION_THREADS: u32 = constant!("prefill/attention_rows.cu", "THREADS");
const ATTENTION_ROWS: usize = constant!("prefill/attention_rows.cu", "ROWS") as usize;
/// Warpgroups of a block that attends on Hopper, and tiles of the caches that are on their way to each.
const WIDE_GROUPS: u32 = constant!("prefill/wide_attention.cu", "GROUPS");
const WIDE_STAGES: u32 = constant!("prefill/wide_attention.cu", "STAGES");
/// What a share costs besides its pieces, in pieces, and the most shares that its reader adds up fast.
const SHARE_COST: usize = 3;
const MOST_SHARES: usize = 8;

/// How the tiles of a product are made: so many at once, and then the others in shares of their sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    whole: usize,
    shares: usize,
}

/// The cut of `tiles` tiles with which a product of `pieces` pieces ends soonest, where `slots` blocks run at once: each round
/// of them takes as long as its shares have pieces, and what begins and ends one. `most` says in how many shares at most what
/// is left of so many tiles may stand.
fn cut(tiles: usize, slots: usize, pieces: usize, most: impl Fn(usize) -> usize) -> Cut {
    let cost = |cut: &Cut| {
        let rest = ((tiles - cut.whole) * cut.shares).div_ceil(slots);
        cut.whole.div_ceil(slots) * (pieces + SHARE_COST) + rest * (pieces.div_ceil(cut.shares) + SHARE_COST)
    };
    let of_rounds = |rounds: usize| {
        let whole = rounds * slots;
        let shares = 2..=most(whole).min(MOST_SHARES).min(pieces.div_ceil(SHARE_COST));
        shares.map(move |shares| Cut { whole, shares })
    };
    // In shares only if that is sooner.
    let in_shares = (0..tiles.div_ceil(slots)).flat_map(of_rounds);
    let all = [Cut { whole: tiles, shares: 1 }].into_iter().chain(in_shares);
    all.min_by_key(cost).expect("one at least")
}

/// How a product is made: in how many shares, and where each of its matrices' stand.
struct Made {
    jobs: Vec<Job>,
    at: Vec<Shared>,
}

impl Fused<'_> {
    /// Whether the card has the shared memory that the products of this model take: F32 matrices want 134 KiB a block.
    pub fn prefill_fits(&self) -> bool {
        let fits = |nodes: &[usize]| product_of(&self.formats(nodes), self.limit()).1 as usize <= self.limit();
        let of_ffn = |ffn: &Ffn| match ffn {
            Ffn::Dense(mlp) => fits(&[mlp.gate, mlp.up]) && fits(&[mlp.down]),
            Ffn::Experts(experts) => fits(&[experts.router]) && self.experts_fit(experts),
        };
        let of_layer = |l: &Layer| fits(&l.proj) && fits(&[l.attn_out]) && of_ffn(&l.ffn);
        // Layers of delta nets have no kernels for many tokens.
        self.decoder.mixed.is_empty() && self.decoder.layers.iter().all(of_layer) && fits(&[self.decoder.logits])
    }

    /// Every launch of a step of many tokens.
    pub fn prefill(&self, span: Span) -> Vec<Launch> {
        (0..self.prefill_parts()).flat_map(|part| self.prefill_part(part, span)).collect()
    }

    /// How many parts a step of many tokens has: its layers, and what comes after them.
    pub fn prefill_parts(&self) -> usize {
        self.decoder.layers.len() + 1
    }

    /// The launches of a part of it, which begin with the end of the layer before.
    pub fn prefill_part(&self, part: usize, span: Span) -> Vec<Launch> {
        let d = self.decoder;
        let launch = |jobs, nodes, span| Launch { jobs, nodes, span, keeps: false };
        let before = part.checked_sub(1).map(|before| &d.layers[before]);
        let mut all = Vec::new();
        let (mut jobs, mut nodes, mut product, mut ends) = (Vec::new(), Vec::new(), Shared::default(), None);
        let base = match before {
            None => {
                all.push(launch(self.calls.of(d.embed, span), vec![d.embed], span));
                self.at(d.embed)
            }
            Some(before) => match &before.ffn {
                Ffn::Dense(mlp) => {
                    let made = self.products(&[mlp.down], span);
                    (jobs, product) = (made.jobs, made.at[0]);
                    (nodes, ends) = (vec![mlp.down, before.out], Some((mlp.down, before.out)));
                    self.at(before.attn_residual)
                }
                Ffn::Experts(_) => self.at(before.out),
            },
        };
        let Some(layer) = d.layers.get(part) else {
            jobs.push(self.norm_rows(base, product, ends, d.final_norm, &[d.logits], span));
            nodes.push(d.final_norm);
            all.push(launch(jobs, nodes, span));
            let (jobs, span) = self.logits(span);
            all.push(launch(jobs, vec![d.logits], span));
            return all;
        };
        jobs.push(self.norm_rows(base, product, ends, layer.attn_norm, &layer.proj, span));
        nodes.push(layer.attn_norm);
        all.push(launch(jobs, nodes, span));
        let mut add = |jobs, nodes| all.push(launch(jobs, nodes, span));
        let base = before.map_or(base, |before| self.at(before.out));

        let made = self.products(&layer.proj, span);
        let heads = self.head_rows(layer, &made, span);
        add([made.jobs, vec![Job::Kernel(heads)]].concat(), layer.up_to_caches()[1..].to_vec());
        add(self.attention_rows(layer, span), vec![layer.scores, layer.weights, layer.context]);

        let prepare = self.prepare_rows(layer.context, &[layer.attn_out], span);
        let made = self.products(&[layer.attn_out], span);
        let ends = Some((layer.attn_out, layer.attn_residual));
        let readers = match &layer.ffn {
            Ffn::Dense(mlp) => vec![mlp.gate, mlp.up],
            Ffn::Experts(experts) => vec![experts.router],
        };
        let mut norm = self.norm_rows(base, made.at[0], ends, layer.ffn_norm, &readers, span);
        if let (Ffn::Experts(_), Job::Kernel(Call { params: Params::NormRows(params), .. })) = (&layer.ffn, &mut norm) {
            params.norm_tap = self.at(layer.ffn_norm);
        }
        add([vec![prepare], made.jobs, vec![norm]].concat(), vec![layer.attn_out, layer.attn_residual, layer.ffn_norm]);

        match &layer.ffn {
            Ffn::Dense(mlp) => {
                let made = self.products(&[mlp.gate, mlp.up], span);
                let act = self.act_rows(mlp, &made, span);
                add([made.jobs, vec![act]].concat(), vec![mlp.gate, mlp.up, mlp.act]);
            }
            Ffn::Experts(experts) => {
                let router = self.product(&[self.weight(experts.router)], &[self.at(experts.router)], span.tokens);
                add(vec![Job::Kernel(router)], vec![experts.router]);
                // A node at a time.
                for node in layer.ffn.nodes().into_iter().skip(1).chain([layer.out]) {
                    let each = &experts.each;
                    let jobs = match [each.gate, each.up, each.down].contains(&node) {
                        true => vec![Job::Kernel(self.expert_rows(node, experts, span))],
                        false => self.calls.of(node, span),
                    };
                    add(jobs, vec![node]);
                }
            }
        }
        all
    }

    /// The logits of all tokens, or of the last alone.
    fn logits(&self, span: Span) -> (Vec<Job>, Span) {
        let (node, last) = (self.decoder.logits, &self.decoder.layers[self.decoder.layers.len() - 1]);
        // The one requested row as a decode step makes it: from the stream, if the norm is not tapped.
        if self.calls.options.last_logits && !self.narrow && !(self.wants)(self.decoder.final_norm) {
            let of_token = (4 * self.weight(node).n * (span.tokens - 1)) as u64;
            let x = Stream { base: self.at(last.out) + of_token, ..Stream::default() };
            let span = Span { tokens: 1, first: span.first + span.tokens - 1 };
            return (vec![Job::Kernel(self.lm_head_of(x, self.at(node), Best::default()))], span);
        }
        let (w, y) = (self.weight(node), self.at(node));
        let (tokens, skipped) = if self.calls.options.last_logits { (1, span.tokens - 1) } else { (span.tokens, 0) };
        let mut call = self.product(&[w], &[y], tokens);
        if let Params::Products(params) = &mut call.params {
            params.first = skipped as i32;
        }
        (vec![Job::Kernel(call)], Span { tokens, first: span.first + skipped })
    }

    /// Where the output of a node goes if it is wanted: its own buffer, for a longer step goes launch by launch.
    pub(super) fn wanted(&self, i: usize) -> Ptr {
        if (self.wants)(i) { self.at(i) } else { 0 }
    }

    fn formats(&self, nodes: &[usize]) -> Vec<GgmlType> {
        nodes.iter().map(|&i| self.weight(i).ty).collect()
    }

    /// The products of these nodes, which have one input, that stands prepared.
    fn products(&self, nodes: &[usize], span: Span) -> Made {
        let weights: Vec<&Weight> = nodes.iter().map(|&i| self.weight(i)).collect();
        let own: Vec<Ptr> = nodes.iter().map(|&i| self.at(i)).collect();
        let mut call = match self.wide(&weights) {
            Some(wide) => wide::products(self.calls.memory.operand, &weights, &wide, span.tokens),
            None => self.product(&weights, &own, span.tokens),
        };
        let (row_tiles, token_tiles, slots) = match call.params {
            Params::WideProducts(_) => {
                (call.grid.0 as usize, call.grid.1 as usize, self.calls.functions.resident(&call))
            }
            _ => (call.grid.1 as usize, call.grid.0 as usize, self.calls.functions.resident(&call)),
        };
        let (pieces, slots) = ((weights[0].n / 32).div_ceil(PIECE), slots as usize);
        let outputs: usize = weights.iter().map(|w| w.m).sum();
        // Tokens of a share, where so many tiles are made at once.
        let token0 = |whole: usize| (whole / row_tiles * wide::TOKENS).min(span.tokens);
        let made = match call.params {
            Params::WideProducts(_) => cut(row_tiles * token_tiles, slots, pieces, |whole| {
                1 + SHARED / (outputs * (span.tokens - token0(whole)))
            }),
            // Its blocks are of one share each.
            _ => match cut(row_tiles * token_tiles, slots, pieces, |whole| {
                if whole == 0 { SHARED / (outputs * span.tokens) } else { 0 }
            }) {
                Cut { shares: 1, .. } => Cut { whole: 0, shares: 1 },
                cut => cut,
            },
        };
        let (mut free, mut tile) = (self.calls.memory.parts, 0);
        let mut place = |(w, own): (&&Weight, &Ptr)| {
            let first = tile;
            tile += w.m.div_ceil(wide::ROWS);
            match call.params {
                Params::WideProducts(_) => {
                    let token0 = token0(made.whole);
                    let stride = w.m * (span.tokens - token0);
                    // Nothing is there for tokens before the cut, and nothing of the first share.
                    let rest = free.wrapping_sub(4 * (stride + w.m * token0) as u64);
                    free += 4 * ((made.shares - 1) * stride) as u64;
                    let row0 = (made.whole % row_tiles).saturating_sub(first) * wide::ROWS;
                    Shared {
                        at: *own,
                        rest,
                        stride: stride as u64,
                        shares: made.shares as i32,
                        token0: token0 as i32,
                        row0: row0.min(w.m) as i32,
                    }
                }
                _ => {
                    let (stride, here) = (w.m * span.tokens, free);
                    free += 4 * (made.shares * stride) as u64;
                    let at = if made.shares == 1 { *own } else { here };
                    Shared { at, rest: at, stride: stride as u64, shares: made.shares as i32, token0: 0, row0: 0 }
                }
            }
        };
        let at: Vec<Shared> = std::iter::zip(&weights, &own).map(&mut place).collect();
        let of = |what: fn(&Shared) -> Ptr| std::array::from_fn(|i| at.get(i).map_or(0, what));
        match &mut call.params {
            Params::Products(params) => {
                params.y = of(|shared| shared.at);
                call.grid.2 = made.shares as u32;
            }
            // Its blocks stay, and take one tile after another.
            Params::WideProducts(params) => {
                (params.y, params.rest) = (of(|shared| shared.at), of(|shared| shared.rest));
                (params.whole, params.shares) = (made.whole as i32, made.shares as i32);
                params.token0 = token0(made.whole) as i32;
                let items = made.whole + (row_tiles * token_tiles - made.whole) * made.shares;
                call.grid = (items.min(slots) as u32, 1, 1);
            }
            other => unreachable!("{other:?} is no product"),
        }
        Made { jobs: vec![Job::Kernel(call)], at }
    }

    /// The matrices as halves, where all of them stand so and no bug is to be planted in the other kernel.
    fn wide(&self, weights: &[&Weight]) -> Option<Vec<Wide>> {
        weights.iter().map(|w| w.wide).collect::<Option<_>>().filter(|_| !self.narrow)
    }

    /// The product of the operand with up to three matrices, each sum at once.
    fn product(&self, weights: &[&Weight], y: &[Ptr], tokens: usize) -> Call {
        let formats: Vec<GgmlType> = weights.iter().map(|w| w.ty).collect();
        let (arguments, shared) = product_of(&formats, self.limit());
        let params = ProductsParams {
            x: self.calls.memory.operand,
            w: std::array::from_fn(|i| weights.get(i).map_or(Planes::default(), |w| w.planes)),
            y: std::array::from_fn(|i| y.get(i).copied().unwrap_or(0)),
            m: std::array::from_fn(|i| weights.get(i).map_or(0, |w| w.m as i32)),
            n: weights[0].n as i32,
            tokens: tokens as i32,
            first: 0,
        };
        let tiles: usize = weights.iter().map(|w| w.m.div_ceil(OUTPUTS)).sum();
        Call::new(params, (tokens.div_ceil(TOKENS) as u32, tiles as u32, 1), PRODUCT_THREADS)
            .of(&[&arguments])
            .shared(shared)
    }

    /// The residual stream with a product added, if `ends` names the nodes of product and sum, and its norm as operand of
    /// the products of `readers`.
    fn norm_rows(
        &self, base: Ptr, product: Shared, ends: Option<(usize, usize)>, norm: usize, readers: &[usize], span: Span,
    ) -> Job {
        let params = NormRowsParams {
            base,
            product,
            sum: ends.map_or(0, |(_, sum)| self.at(sum)),
            weight: self.vector(norm),
            to: self.calls.memory.operand,
            product_tap: ends.map_or(0, |(product, _)| self.wanted(product)),
            norm_tap: self.wanted(norm),
            n: self.weight(norm).n as i32,
            eps: self.eps(norm),
        };
        self.rows(params, readers, span)
    }

    /// The output of a node as operand.
    fn prepare_rows(&self, node: usize, readers: &[usize], span: Span) -> Job {
        let n = self.weight(readers[0]).n as i32;
        self.rows(PrepareRowsParams { x: self.at(node), to: self.calls.memory.operand, n }, readers, span)
    }

    /// A kernel that makes an operand of the products of `readers`, a block a token.
    fn rows(&self, params: impl Into<Params>, readers: &[usize], span: Span) -> Job {
        let part = Part::of(&self.formats(readers));
        let n = self.weight(readers[0]).n;
        let rows = (self.limit() / (4 * n + RESERVED)).clamp(1, ROWS_AT_ONCE);
        let threads = (MAKING / rows).min(n.div_ceil(KEPT)).next_multiple_of(32).min(ROW_THREADS);
        Job::Kernel(Call::new(params, (span.tokens as u32, 1, 1), threads as u32).of(&[&part]).shared(4 * n as u32))
    }

    /// Biases or norms of heads, RoPE, both caches.
    fn head_rows(&self, layer: &Layer, made: &Made, span: Span) -> Call {
        let config = &self.calls.graph.config;
        let some = |i: Option<usize>, of: &dyn Fn(usize) -> Ptr| i.map_or(0, of);
        let params = HeadRowsParams {
            product: std::array::from_fn(|i| made.at[i]),
            bias: layer.biased.map(|i| some(i, &|i| self.vector(i))),
            head_norm: layer.normed.map(|i| some(i, &|i| self.vector(i))),
            frequency: self.calls.memory.frequencies[&layer.rope[0]],
            q: self.at(layer.rope[0]),
            k_cache: self.at(layer.cache[0]),
            v_cache: self.at(layer.cache[1]),
            proj_tap: layer.proj.map(|i| self.wanted(i)),
            biased_tap: layer.biased.map(|i| some(i, &|i| self.wanted(i))),
            normed_tap: layer.normed.map(|i| some(i, &|i| self.wanted(i))),
            k_tap: self.wanted(layer.rope[1]),
            heads: config.n_heads as i32,
            kv_heads: config.n_kv_heads as i32,
            first: span.first as i32,
            eps: layer.normed[0].map_or(0.0, |i| self.eps(i)),
            batch: self.calls.batch,
        };
        let heads = config.n_heads + 2 * config.n_kv_heads;
        // Warps that have as many heads each as the others.
        let warps = heads.div_ceil(heads.div_ceil(HEAD_WARPS));
        Call::new(params, (span.tokens as u32, 1, 1), 32 * warps as u32)
            .of(&[&self.calls.options.kv_kernel(false), &config.head_dim])
    }

    /// Gate and up together, as operand of the last product of a layer.
    fn act_rows(&self, mlp: &Mlp, made: &Made, span: Span) -> Job {
        let params = ActRowsParams {
            gate: made.at[0],
            up: made.at[1],
            to: self.calls.memory.operand,
            gate_tap: self.wanted(mlp.gate),
            up_tap: self.wanted(mlp.up),
            tap: self.wanted(mlp.act),
            n: self.weight(mlp.down).n as i32,
        };
        self.rows(params, &[mlp.down], span)
    }

    /// The fused attention of many tokens, for the three nodes that end in `layer.context`: the caches in tiles, and then
    /// all at once.
    pub fn attention_rows(&self, layer: &Layer, span: Span) -> Vec<Job> {
        if self.calls.is_of_several() {
            return self.attention_of_several(layer, span);
        }
        self.attention_together(layer, &Together { row: 0, span, table: None }, span).to_vec()
    }

    /// The same of rows of one sequence in a pass.
    pub(super) fn attention_together(&self, layer: &Layer, rows: &Together, pass: Span) -> [Job; 2] {
        let (config, memory, span) = (&self.calls.graph.config, self.calls.memory, rows.span);
        let (keys, bytes) = cache_tile(config.head_dim);
        let kv_heads = config.n_kv_heads;
        let cut = CacheTilesParams {
            k: self.at(layer.cache[0]),
            v: self.at(layer.cache[1]),
            tiles: memory.cache_tiles,
            kv_heads: kv_heads as i32,
            keys: span.keys() as i32,
            table: rows.table.map_or(0, |place| self.calls.batch.tables + 4 * place as u64),
        };
        let blocks = (span.keys().div_ceil(keys) as u32, kv_heads as u32, 1);
        let cut = Call::new(cut, blocks, (keys * config.head_dim / 4) as u32).of(&[
            &self.calls.options.kv_kernel(false),
            &config.head_dim,
            &keys,
        ]);
        // From their first row on.
        let of_rows = |at: Ptr, each: usize| if at == 0 { 0 } else { at + (4 * rows.row * each) as u64 };
        let heads_of_row = |node: usize| of_rows(self.at(node), config.n_heads * config.head_dim);
        let tap = |node: usize| of_rows(self.wanted(node), pass.keys());
        let (q, tiles, out) = (heads_of_row(layer.rope[0]), memory.cache_tiles, heads_of_row(layer.context));
        let (scores_tap, weights_tap) = (tap(layer.scores), tap(layer.weights));
        let (tap_tokens, tap_keys) = (pass.tokens as i32, pass.keys() as i32);
        let (heads, kv_heads, scale) = (config.n_heads as i32, kv_heads as i32, self.scale(layer.weights));
        let (first, tokens) = (span.first as i32, span.tokens as i32);
        let tapped = scores_tap != 0 || weights_tap != 0;
        let rows = span.tokens * config.n_heads / config.n_kv_heads;
        let blocks = (rows.div_ceil(ATTENTION_ROWS) as u32, kv_heads as u32, 1);
        let wide = matches!(config.head_dim, 64 | 128) && self.calls.functions.warpgroups && !self.narrow;
        let attention = if wide {
            let params = WideAttentionParams {
                q,
                tiles,
                out,
                scores_tap,
                weights_tap,
                heads,
                kv_heads,
                first,
                tokens,
                scale,
                tap_tokens,
                tap_keys,
            };
            Call::new(params, blocks, 128 * WIDE_GROUPS)
                .of(&[&config.head_dim, &tapped, &bytes])
                .shared(WIDE_STAGES * WIDE_GROUPS * bytes as u32)
        } else {
            let params = AttentionRowsParams {
                q,
                tiles,
                out,
                scores_tap,
                weights_tap,
                heads,
                kv_heads,
                first,
                tokens,
                scale,
                tap_tokens,
                tap_keys,
            };
            let at_once = tiles_at_once(config.head_dim, self.limit());
            Call::new(params, blocks, at_once * ATTENTION_THREADS)
                .of(&[&config.head_dim, &tapped, &bytes, &at_once])
                .shared(2 * at_once * bytes as u32)
        };
        [Job::Kernel(cut), Job::Kernel(attention)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::calls::Calls;
    use crate::cuda::calls::calls_of;
    use crate::cuda::fast::decoder_of;
    use crate::cuda::functions::Functions;
    use crate::cuda::options::{Options, Path};
    use crate::cuda::testing::{graphs, with_calls, with_calls_where};
    use crate::model::Graph;
    use proptest::prelude::*;

    /// The nodes of each launch, and the addresses and numbers that its kernels take.
    fn launches(graph: &Graph, tokens: usize, wants: &dyn Fn(usize) -> bool) -> Vec<(Vec<usize>, Vec<u64>)> {
        let options = Options { step: 512, context: 600, path: Path::Fast, taps: true, ..Options::default() };
        with_calls(graph, &options, |calls| {
            let decoder = decoder_of(graph).expect("a decoder");
            let fused = Fused { calls, decoder: &decoder, next_token: 0, wants, narrow: false };
            let told = |launch: Launch| {
                let nodes = launch.nodes.clone();
                let told: String = calls_of(vec![launch]).map(|call| format!("{:?}", call.params)).collect();
                let numbers = told.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
                (nodes, numbers.collect())
            };
            fused.prefill(Span { tokens, first: 3 }).into_iter().map(told).collect()
        })
    }

    #[test]
    fn a_stage_that_is_wanted_of_a_prefill_is_written_by_the_launch_that_makes_it() {
        for graph in &graphs() {
            for tokens in [2, 70, 500] {
                let all = launches(graph, tokens, &|_| true);
                let options = Options { step: 512, context: 600, path: Path::Fast, taps: true, ..Options::default() };
                for (nodes, numbers) in all {
                    for i in nodes {
                        let at = with_calls(graph, &options, |calls| calls.memory.outputs[i].at);
                        assert!(numbers.contains(&at), "{} of {tokens} tokens", graph.nodes[i].id);
                    }
                }
            }
        }
    }

    #[test]
    fn shares_of_a_product_fit_the_memory_for_them_and_are_what_its_reader_adds_up() {
        for (graph, wide) in graphs().iter().flat_map(|graph| [(graph, false), (graph, true)]) {
            let options = Options { step: 512, context: 600, path: Path::Fast, ..Options::default() };
            with_calls_where(graph, &options, wide, |calls| {
                let decoder = decoder_of(graph).expect("a decoder");
                // On a card that holds few blocks some tiles are made at once, and others in shares.
                for processors in [1, 3, 100] {
                    let functions = Functions::bare(processors, 512, 227 << 10);
                    let calls = Calls { functions: &functions, ..calls };
                    let fused = Fused { calls, decoder: &decoder, next_token: 0, wants: &|_| false, narrow: false };
                    for tokens in [1, 2, 65, 512] {
                        let layer = &decoder.layers[0];
                        let Ffn::Dense(mlp) = &layer.ffn else { continue };
                        for nodes in [&layer.proj[..], &[layer.attn_out], &[mlp.gate, mlp.up], &[mlp.down]] {
                            fits(fused.products(nodes, Span { tokens, first: 0 }), calls.memory.parts);
                        }
                    }
                }
            });
        }
    }

    /// The shares of a product are where its reader looks for them, beside each other, and no more than there is room for.
    fn fits(made: Made, parts: u64) {
        let [Job::Kernel(call)] = &made.jobs[..] else { panic!("{:?}", made.jobs) };
        let mut end = parts;
        for (i, shared) in made.at.iter().enumerate() {
            let rows = match &call.params {
                Params::Products(params) => {
                    assert_eq!((params.y[i], call.grid.2 as i32, 0), (shared.at, shared.shares, shared.token0));
                    assert_eq!(shared.rest, shared.at);
                    (0, params.m[i], params.tokens)
                }
                Params::WideProducts(params) => {
                    assert_eq!((params.y[i], params.rest[i]), (shared.at, shared.rest));
                    assert_eq!((params.shares, params.token0), (shared.shares, shared.token0));
                    (1, params.m[i], params.tokens)
                }
                _ => panic!("{call:?}"),
            };
            let (first, m, tokens) = rows;
            assert_eq!(shared.stride, (m * (tokens - shared.token0)) as u64);
            if shared.shares > 1 {
                let begins = shared.rest.wrapping_add(4 * (first * shared.stride + (m * shared.token0) as u64));
                assert_eq!(begins, end, "shares of one product begin where another's end");
                end += 4 * shared.stride * (shared.shares as u64 - first);
            }
        }
        assert!(end <= parts + 4 * SHARED as u64);
    }

    proptest! {
        /// Each tile is made once, in rounds that are no longer than those of tiles made at once.
        #[test]
        fn a_cut_makes_every_tile_no_later(tiles in 1usize..2000, slots in 1usize..300, pieces in 1usize..200, most in 0usize..10) {
            let made = cut(tiles, slots, pieces, |whole| if whole % 3 == 0 { most } else { 2 });
            prop_assert!(made.whole <= tiles && (made.whole == tiles) == (made.shares == 1));
            prop_assert!(made.shares == 1 || made.whole.is_multiple_of(slots));
            let rest = ((tiles - made.whole) * made.shares).div_ceil(slots) * (pieces.div_ceil(made.shares) + SHARE_COST);
            let took = made.whole.div_ceil(slots) * (pieces + SHARE_COST) + rest;
            prop_assert!(took <= tiles.div_ceil(slots) * (pieces + SHARE_COST));
        }
    }
}
