//! Which kernel makes the attention of a decode step, and in how many shares.

use super::decoder::Layer;
use super::fast::{Fused, tapped};
use super::kernels::*;
use super::launch::Call;
use super::layouts::Batch;
use super::memory::SPLITS;
use crate::dtype::DType;
use std::fmt::Display;

/// Threads of a block of `attention`.
const ATTENTION_THREADS: u32 = constant!("fused/attention.cu", "THREADS");
/// Threads of a block of `attention_halves`, keys that a warp takes at a time, and bytes of shared memory behind the warps'
/// rings.
const HALVES_THREADS: u32 = constant!("fused/attention_halves.cu", "THREADS");
const HALVES_CHUNK: usize = constant!("fused/attention_halves.cu", "CHUNK") as usize;
const HALVES_MEASURED: usize = constant!("fused/attention_halves.cu", "MEASURED") as usize;
/// Bytes of a warp's ring: eight of them are most of what a block of Hopper may have.
const HALVES_RING: usize = 24 << 10;
/// Query heads of a head of the cache that it is made for, at most.
const HALVES_GROUP: usize = 8;
/// Keys from which on it is no slower than `attention` (`engine/bench/decode_chain.cu`).
const DEEP: usize = 3072;
/// Keys of a tile of `attention`.
const KEYS: usize = constant!("fused/shares.cuh", "KEYS") as usize;

impl Fused<'_> {
    /// Whether a decode step at `position` makes its attention with `attention_halves`: of a long context in a cache of
    /// halves, where the card and the model are made for it.
    pub fn deep(&self, position: usize) -> bool {
        Self::may_be_deep(position) && self.decoder.layers.first().is_some_and(|l| self.attention_halves(l).is_some())
    }

    /// Whether a context of a step at `position` is long.
    pub fn may_be_deep(position: usize) -> bool {
        position + 1 >= DEEP
    }

    /// Shares of the keys of a head of the cache.
    pub(super) fn splits(&self, deep: bool) -> u32 {
        let (functions, heads) = (self.calls.functions, self.calls.graph.config.n_kv_heads as u32);
        // As many with taps as without, so that these change no sum.
        let untapped = Fused { wants: &|_| false, ..*self };
        let halves = self.decoder.layers.first().filter(|_| deep).and_then(|l| untapped.attention_halves(l));
        let whole = match halves {
            Some((call, cluster)) => functions.resident_clusters(&call, cluster),
            None => functions.processors,
        };
        (whole / heads).clamp(1, SPLITS)
    }

    /// Scores of one token, and the shares of softmax and context.
    pub(super) fn attention(&self, layer: &Layer, deep: bool) -> Call {
        if let Some((mut call, cluster)) = self.attention_halves(layer).filter(|_| deep) {
            call.grid.1 = self.splits(deep) * cluster;
            return call;
        }
        // A block of a ring leaves no room on its multiprocessor.
        let early = self
            .qkv_ring(layer)
            .map(|(.., makers)| self.calls.functions.processors as i32 - makers.iter().sum::<usize>() as i32);
        self.attention_of([layer.rope[0], layer.cache[0], layer.cache[1], layer.scores, layer.weights], early)
    }

    /// The same, of these nodes, of which `early` blocks find room before their turn where not all do.
    pub(super) fn attention_of(&self, [q, k, v, scores, weights]: [usize; 5], early: Option<i32>) -> Call {
        let memory = self.calls.memory;
        let params = AttentionParams {
            q: self.at(q),
            k: self.at(k),
            v: self.at(v),
            partial: memory.partial,
            position_at: memory.position,
            scores_tap: self.tap(scores),
            weights_tap: self.tap(weights),
            scale: self.scale(weights),
            early: early.unwrap_or_default(),
            stamps: 0,
            batch: Batch::default(),
            rows: 0,
            tokens: 0,
            keys: 0,
        };
        let mut call = self.attention_with(params, early.is_some(), false);
        call.grid.1 = self.splits(false);
        call
    }

    /// The kernel that takes every cache, with these parameters; of a pass of several sequences for each row (`of_rows`). A share
    /// of the keys of each head of the cache.
    pub(super) fn attention_with(&self, params: AttentionParams, late: bool, of_rows: bool) -> Call {
        let config = &self.calls.graph.config;
        let group = config.n_heads / config.n_kv_heads;
        let kv = self.calls.options.kv_number();
        // Two tiles of keys and values; at the end the threads' sums are in the second.
        let sums = ATTENTION_THREADS as usize * 16 * group;
        let shared = |keys: usize| {
            let tile = 2 * keys * config.head_dim * kv.size();
            tile + tile.max(sums)
        };
        let keys = if shared(KEYS) <= self.limit() { KEYS } else { KEYS / 2 };
        let (kv, tapped) = (self.calls.options.kv_kernel(false), tapped(&[&[params.scores_tap, params.weights_tap]]));
        let arguments: [&dyn Display; 7] = [&kv, &config.head_dim, &group, &keys, &late, &tapped, &of_rows];
        Call::new(params, (config.n_kv_heads as u32, 1, 1), ATTENTION_THREADS)
            .of(&arguments[..if of_rows { 7 } else { 6 }])
            .shared(shared(keys) as u32)
    }

    /// The same of a cache of halves, one share of each head, and the blocks of a cluster, which make a share; nothing
    /// where the kernel does not fit.
    fn attention_halves(&self, layer: &Layer) -> Option<(Call, u32)> {
        let (config, memory) = (&self.calls.graph.config, self.calls.memory);
        let (d, group, heads) = (config.head_dim, config.n_heads / config.n_kv_heads, config.n_kv_heads as u32);
        let stages = HALVES_RING / (2 * HALVES_CHUNK * d * DType::F16.size());
        let shared = HALVES_THREADS as usize / 32 * HALVES_RING + HALVES_MEASURED;
        let made_for = self.calls.options.kv_number() == DType::F16 && group <= HALVES_GROUP;
        if !made_for || !self.calls.functions.clusters || shared > self.limit() {
            return None;
        }
        let params = AttentionHalvesParams {
            q: self.at(layer.rope[0]),
            k: self.at(layer.cache[0]),
            v: self.at(layer.cache[1]),
            partial: memory.partial,
            position_at: memory.position,
            scores_tap: self.tap(layer.scores),
            weights_tap: self.tap(layer.weights),
            scale: self.scale(layer.weights),
            stamps: 0,
        };
        // Large clusters leave few shares; small ones find room beside the kernel before, which is worth more where a share
        // is small. A head shall have eight clusters in all.
        let most = if d > 64 { 8 } else { 2 };
        let fits = |&c: &u32| c <= most && 8 * heads * c <= self.calls.functions.processors;
        let cluster = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        let tapped = tapped(&[&[params.scores_tap, params.weights_tap]]);
        let call = Call::new(params, (heads, cluster, 1), HALVES_THREADS)
            .of(&[&d, &group, &stages, &cluster, &tapped])
            .shared(shared as u32);
        Some((call, cluster))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::calls::calls_of;
    use crate::cuda::fast::decoder_of;
    use crate::cuda::options::{Options, Path};
    use crate::cuda::testing::{graphs, with_calls};

    #[test]
    fn a_long_context_in_halves_is_attended_to_in_clusters_whose_shares_are_put_together() {
        for graph in &graphs() {
            for (kv, context) in [(DType::F16, DEEP), (DType::F16, 2 * DEEP), (DType::F32, 2 * DEEP)] {
                let options = Options { step: 8, context, path: Path::Fast, kv: kv.into(), ..Options::default() };
                with_calls(graph, &options, |calls| {
                    let decoder = decoder_of(graph).expect("a decoder");
                    let fused = Fused { calls, decoder: &decoder, next_token: 0, narrow: false, wants: &|_| false };
                    for position in [0, DEEP - 2, DEEP - 1, context - 1] {
                        // Shares that a block, or a cluster of them, leaves of a head, and those that are put together.
                        let mut left = Vec::new();
                        let mut put_together = Vec::new();
                        for call in calls_of(fused.decode(7, position)) {
                            match call.params {
                                Params::Attention(_) => left.push((false, call.grid.1)),
                                Params::AttentionHalves(_) => {
                                    let cluster =
                                        fused.attention_halves(&decoder.layers[0]).expect("a kernel for it").1;
                                    assert_eq!((call.grid.1 % cluster, cluster), (0, 2), "{kv:?} at {position}");
                                    left.push((true, call.grid.1 / cluster));
                                }
                                Params::AttnOut(params) => put_together.push(params.splits as u32),
                                _ => {}
                            }
                        }
                        let deep = kv == DType::F16 && position + 1 >= DEEP;
                        assert_eq!((left.len(), fused.deep(position)), (graph.config.n_layers, deep));
                        assert!(left.iter().all(|&(halves, _)| halves == deep), "{kv:?} at {position}: {left:?}");
                        assert_eq!(left.into_iter().map(|(_, shares)| shares).collect::<Vec<_>>(), put_together);
                    }
                });
            }
        }
    }
}
