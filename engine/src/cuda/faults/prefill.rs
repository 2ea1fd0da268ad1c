//! Bugs of the longer steps of the fused path outside the catalogue, each at the first stage that it spoils: most are
//! lines of a kernel (`kernels/faults`), the others of its launch.

use super::launches::faults;
use super::{Fault, Site};
use crate::cuda::calls::Job;
use crate::cuda::kernels::*;
use crate::cuda::launch::Call;
use crate::cuda::layouts::Shared;
use crate::model::Role;
use crate::ops::Op;

impl Site<'_> {
    /// The kernels of the launch that makes the node's output: none of the launch before.
    fn own(&mut self) -> impl Iterator<Item = &mut Call> {
        let jobs: &mut [Job] = if self.launch.nodes.contains(&self.index) { &mut self.launch.jobs } else { &mut [] };
        jobs.iter_mut().filter_map(|job| match job {
            Job::Kernel(call) => Some(call),
            Job::Product(_) | Job::Exchange(_) => None,
        })
    }

    /// Two kernels of the launch in the other order.
    fn exchange(&mut self, a: File, b: File) {
        let at = |file| self.launch.jobs.iter().position(|j| matches!(j, Job::Kernel(c) if c.params.file() == file));
        if let (Some(a), Some(b), true) = (at(a), at(b), self.launch.nodes.contains(&self.index)) {
            self.launch.jobs.swap(a, b);
        }
    }
}

fn edited(site: &mut Site<'_>) {
    site.edited();
}

/// The bug in the node's own product, and not in that of the launch before.
fn product(site: &mut Site<'_>) {
    if site.launch.nodes.contains(&site.index) {
        site.edited();
    }
}

/// The product in three shares, with the bug in it or in what adds them up.
fn in_three_shares(site: &mut Site<'_>) {
    let parts = site.calls.memory.parts;
    for call in site.own() {
        match &mut call.params {
            Params::Products(params) => {
                params.y[0] = parts;
                call.grid.2 = 3;
            }
            Params::WideProducts(params) => {
                (params.y[0], params.rest[0]) = (parts, parts);
                (params.whole, params.shares, params.token0) = (0, 3, 0);
            }
            Params::NormRows(params) => {
                let stride = u64::from(call.grid.0) * params.n as u64;
                params.product = Shared { at: parts, rest: parts, stride, shares: 3, token0: 0, row0: 0 };
            }
            _ => {}
        }
    }
    product(site);
}

/// What adds up the shares runs before what makes them.
fn sum_before_product(site: &mut Site<'_>) {
    site.exchange(File::Products, File::NormRows);
}

/// The context becomes an operand when its product is done.
fn product_before_operand(site: &mut Site<'_>) {
    site.exchange(File::PrepareRows, File::Products);
}

/// The caches are cut into tiles when the attention is done.
fn attention_before_tiles(site: &mut Site<'_>) {
    site.exchange(File::CacheTiles, File::AttentionRows);
}

/// The grid is one tile of outputs short.
fn outputs_short(site: &mut Site<'_>) {
    for call in site.own().filter(|call| call.params.file() == File::Products) {
        call.grid.1 -= 1;
    }
}

/// The product with the keys' weights goes where that with the values' belongs, and the other way round.
fn outputs_exchanged(site: &mut Site<'_>) {
    for call in site.own() {
        if let Params::Products(params) = &mut call.params {
            params.y.swap(1, 2);
        }
    }
}

/// The caches are cut as if the last key were not there.
fn keys_short(site: &mut Site<'_>) {
    for call in site.own() {
        if let Params::CacheTiles(params) = &mut call.params {
            params.keys -= 1;
        }
    }
}

/// The sum after the feed-forward network starts from the stream as it was before the attention.
fn sum_before_attention(site: &mut Site<'_>) {
    let nodes = &site.calls.graph.nodes;
    let stream = |index: usize| nodes[index].inputs.last().copied();
    let Some(before) = stream(site.index).and_then(stream) else { return };
    let base = site.calls.memory.outputs[before].at;
    for call in site.own() {
        match &mut call.params {
            Params::NormRows(params) => params.base = base,
            Params::Residual(params) => params.b = base,
            _ => {}
        }
    }
}

pub(super) const FAULTS: &[Fault] = faults! {
    // Of products.
    "last-tile-not-fetched", (Op::Linear, Role::Query, _) => product;
    "tile-read-before-it-is-written", (Op::Linear, Role::Gate, _) => product;
    "fragment-halves-crossed", (Op::Linear, Role::Gate, _) => product;
    "low-part-of-activations-left-out", (Op::Linear, Role::Gate, _) => product;
    "tile-sums-not-cleared", (Op::Linear, Role::AttnOutput, _) => product;
    "columns-of-a-pair-crossed", (Op::Linear, Role::Query, _) => product;
    "sixteens-of-columns-in-the-order-of-warps", (Op::Linear, Role::Logits, _) => product;
    "weight-tile-crossed", (Op::Linear, Role::Logits, _) => product;
    "rows-of-the-first-round-fetched-again", (Op::Linear, Role::Gate, _) => product;
    "sixteens-turned-by-pairs-of-tokens", (Op::Linear, Role::AttnOutput, _) => product;
    "inverse-of-the-token-before", (Op::Linear, Role::FfnOutput, _) => product;
    "scales-of-a-piece-exchanged", (Op::Linear, Role::Query, _) => product;
    "upper-rows-scaled-as-the-lower", (Op::Linear, Role::Gate, _) => product;
    "scales-put-before-they-are-loaded", (Op::Linear, Role::AttnOutput, _) => product;
    "groups-of-x-in-natural-order", (Op::Linear, Role::Query, _) => product;
    "both-halves-take-the-first-scale", (Op::Linear, Role::FfnOutput, _) => product;
    "upper-pairs-in-natural-order", (Op::Linear, Role::Gate, _) => product;
    "fifth-bits-of-the-first-step", (Op::Linear, Role::AttnOutput, _) => product;
    "scales-of-the-first-four-groups", (Op::Linear, Role::Gate, _) => product;
    "minimum-meets-the-token-beside", (Op::Linear, Role::Query, _) => product;
    "sums-of-groups-not-scaled", (Op::Linear, Role::Gate, _) => edited;
    "pairs-of-the-operand-in-natural-order", (Op::Linear, Role::AttnOutput, _) => edited;
    "kept-elements-of-the-first-round", (Op::Linear, Role::FfnOutput, _) => edited;
    "largest-of-each-warp-for-itself", (Op::Linear, Role::FfnOutput, _) => edited;
    // Of products of matrices that are kept as halves.
    "second-warpgroup-multiplies-the-first-rows", (Op::Linear, Role::Gate, _) => product;
    "low-part-not-multiplied-with-halves", (Op::Linear, Role::FfnOutput, _) => product;
    "halves-of-both-groups-meet-the-first-of-x", (Op::Linear, Role::Query, _) => product;
    "upper-rows-of-halves-scaled-as-the-lower", (Op::Linear, Role::AttnOutput, _) => product;
    "second-sixteen-of-halves-takes-the-first-scale", (Op::Linear, Role::FfnOutput, _) => product;
    "rows-of-halves-crossed", (Op::Linear, Role::Query, _) => product;
    "minima-of-halves-meet-the-token-beside", (Op::Linear, Role::Gate, _) => product;
    "share-of-halves-begins-one-piece-early", (Op::Linear, Role::FfnOutput, _) => in_three_shares;
    "shares-rounded-down", (Op::Linear, Role::AttnOutput, _) => in_three_shares;
    "share-begins-one-piece-early", (Op::Linear, Role::FfnOutput, _) => product;
    "shares-stand-in-whole-tiles", (Op::Linear, Role::FfnOutput, _) => product;
    "first-share-counts-twice", (Op::Linear, Role::FfnOutput, _) => product;
    "last-share-not-added", (Op::Linear, Role::FfnOutput, _) => product;
    "shares-added-as-bf16", (Op::Linear, Role::AttnOutput, _) => in_three_shares;
    "sum-launched-before-its-shares", (Op::Linear, Role::FfnOutput, _) => sum_before_product;
    "operand-prepared-after-its-product", (Op::Linear, Role::AttnOutput, _) => product_before_operand;
    "last-tile-of-outputs-not-launched", (Op::Linear, Role::Up, _) => outputs_short;
    "outputs-of-key-and-value-exchanged", (Op::Linear, Role::Key, _) => outputs_exchanged;
    "sum-starts-before-the-attention", (Op::Residual, Role::FfnOutput, _) => sum_before_attention;
    "last-line-of-an-expert-not-made", (Op::Defined(_), Role::Gate, _) => product;
    // The caches and the attention.
    "value-one-slot-late", (Op::KvCache(_), Role::Value, _) => edited;
    "values-take-the-bias-of-the-keys", (Op::Bias, Role::Value, _) => edited;
    "halves-of-the-keys-exchanged", (Op::AttnScores(_), ..) => edited;
    "tile-turned-as-of-narrower-heads", (Op::AttnScores(_), ..) => edited;
    "keys-beyond-whole-eights-cut-off", (Op::AttnScores(_), ..) => edited;
    "tiles-cut-without-the-last-key", (Op::AttnScores(_), ..) => keys_short;
    "attention-launched-before-its-tiles", (Op::AttnScores(_), ..) => attention_before_tiles;
    "third-tile-read-before-it-has-come", (Op::AttnScores(_), ..) => edited;
    "tiles-walked-by-all-heads", (Op::AttnScores(_), ..) => edited;
    "last-queries-from-the-last-whole-tile", (Op::AttnScores(_), ..) => edited;
    "largest-of-half-a-query", (Op::AttnScores(_), ..) => edited;
    "second-span-takes-the-elements-of-the-first", (Op::AttnScores(_), ..) => edited;
    "running-sum-not-rescaled", (Op::AttnWeights(_), ..) => edited;
    "mask-ends-with-four-queries", (Op::AttnWeights(_), ..) => edited;
    "sum-of-the-other-half-without-its-factor", (Op::AttnWeights(_), ..) => edited;
    "fourth-column-not-rescaled", (Op::AttnContext(_), ..) => edited;
    "rescaled-as-the-row-beside", (Op::AttnContext(_), ..) => edited;
    "value-tile-of-the-round-before", (Op::AttnContext(_), ..) => edited;
    "second-row-of-a-thread-shares-the-sum", (Op::AttnContext(_), ..) => edited;
    "low-part-of-powers-left-out", (Op::AttnContext(_), ..) => edited;
    "value-tile-not-transposed", (Op::AttnContext(_), ..) => edited;
    "second-half-takes-the-values-of-the-first", (Op::AttnContext(_), ..) => edited;
    "values-unscaled-as-the-keys", (Op::AttnContext(_), ..) => edited;
    "second-half-of-the-keys-not-added", (Op::AttnContext(_), ..) => edited;
    "halves-added-without-factors", (Op::AttnContext(_), ..) => edited;
};
