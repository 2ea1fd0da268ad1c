//! Bugs of the tapped path outside the catalogue: most are lines of a kernel (`kernels/faults`), the others of its
//! launch.

use super::launches::faults;
use super::{Fault, Site, bug};
use crate::cuda::calls::Job;
use crate::cuda::kernels::*;
use crate::model::{Node, Role};
use crate::ops::Op;

impl Site<'_> {
    /// The bug of the fault's name, in those launches that run its kernel.
    pub(super) fn edited(&mut self) {
        let bug = bug(self.cause).unwrap_or_else(|| unreachable!("{} is no bug of a kernel", self.cause));
        for job in &mut self.launch.jobs {
            match job {
                Job::Kernel(call) if bug.files.contains(&call.params.file()) => call.bug = Some(bug),
                Job::Kernel(_) | Job::Product(_) | Job::Exchange(_) => {}
            }
        }
    }

    /// Where the first stage stands of those that are `here`.
    fn output_of(&self, here: impl Fn(&Node) -> bool) -> Option<u64> {
        let index = self.calls.graph.nodes.iter().position(here)?;
        Some(self.calls.memory.outputs[index].at)
    }
}

fn edited(site: &mut Site<'_>) {
    site.edited();
}

/// The grid is one block short.
fn block_short(site: &mut Site<'_>) {
    let call = site.call();
    call.grid.0 = (call.grid.0 - 1).max(1);
}

/// Every sum is added to itself: the kernel runs twice, in place the second time.
fn twice_in_place(site: &mut Site<'_>) {
    let y = site.output();
    let mut again = site.call().clone();
    again.params = ResidualParams { b: y, ..*site.params() }.into();
    site.then(again);
}

/// The second product of the feed-forward network reads the gate before its activation.
fn reads_gate(site: &mut Site<'_>) {
    let layer = site.node().id.layer;
    let gate = site.output_of(|n| n.id.layer == layer && n.op == Op::Linear && n.role == Role::Gate);
    if let Some(gate) = gate {
        site.params::<LinearParams>().x = gate;
    }
}

/// The sum after the feed-forward network starts from the embedding.
fn adds_embedding(site: &mut Site<'_>) {
    if let Some(embed) = site.output_of(|n| n.op == Op::Embed) {
        site.params::<ResidualParams>().b = embed;
    }
}

/// The weight of the last norm.
fn weight_of_last_norm(site: &mut Site<'_>) {
    let last = site.calls.graph.nodes.iter().find(|n| matches!(n.op, Op::RmsNorm(_)) && n.role == Role::HeadInput);
    if let Some(last) = last {
        site.params::<RmsNormParams>().w = site.calls.memory.weight(last).planes[0];
    }
}

/// Softmax with the scale of heads twice as wide.
fn scale_of_wider_heads(site: &mut Site<'_>) {
    site.params::<AttnWeightsParams>().scale *= std::f32::consts::FRAC_1_SQRT_2;
}

pub(super) const FAULTS: &[Fault] = faults! {
    "reduction-begins-at-four", (Op::Linear, Role::FfnOutput, _) => edited;
    "shuffle-eight-lanes-wide", (Op::Linear, Role::FfnOutput, _) => edited;
    "tail-tokens-lack-last-group", (Op::Linear, Role::Query, _) => edited;
    "tail-tokens-of-the-last-whole-tile", (Op::Linear, Role::Up, _) => edited;
    "address-in-16-bits", (Op::Linear, Role::FfnOutput, _) => edited;
    "last-token-of-a-tile-keeps-a-sum", (Op::Linear, Role::AttnOutput, _) => edited;
    "last-warp-takes-the-first-row", (Op::Linear, Role::Gate, _) => edited;
    "halves-of-a-wide-load-exchanged", (Op::Linear, Role::Key, _) => edited;
    "third-for-fourth", (Op::Linear, Role::AttnOutput, _) => edited;
    "activations-in-tf32", (Op::Linear, Role::Logits, _) => edited;
    "half-accumulators", (Op::Linear, Role::Value, _) => edited;
    "weights-cut-to-bf16", (Op::Linear, Role::Up, _) => edited;
    "activations-in-eight-bits-by-group", (Op::Linear, Role::Query, _) => edited;
    "single-token-stored-in-half", (Op::Linear, Role::Logits, _) => edited;
    "last-block-not-launched", (Op::Linear, Role::Gate, _) => block_short;
    "product-reads-the-gate", (Op::Linear, Role::FfnOutput, _) => reads_gate;

    "nibbles-in-turns", (Op::Linear, Role::Query, _) => edited;
    "scale-and-minimum-exchanged", (Op::Linear, Role::FfnOutput, _) => edited;
    "middle-of-four-bits", (Op::Linear, Role::Value, _) => edited;
    "fifth-bits-of-the-first-half", (Op::Linear, Role::Gate, _) => edited;
    "scale-of-the-neighbouring-group", (Op::Linear, Role::AttnOutput, _) => edited;
    "upper-scale-bits-left-out", (Op::Linear, Role::Up, _) => edited;
    "minimum-of-odd-groups-left-out", (Op::Linear, Role::FfnOutput, _) => edited;
    "fifth-bit-of-the-neighbouring-group", (Op::Linear, Role::Gate, _) => edited;
    "second-scale-never-read", (Op::Linear, Role::FfnOutput, _) => edited;
    "upper-pairs-of-the-neighbouring-group", (Op::Linear, Role::Query, _) => edited;
    "scales-without-a-sign", (Op::Linear, Role::Key, _) => edited;
    "one-scale-for-four-blocks", (Op::Linear, Role::Up, _) => edited;

    "half-of-the-warps-summed", (Op::RmsNorm(_), Role::AttnInput, _) => edited;
    "mean-in-half", (Op::RmsNorm(_), Role::FfnInput, _) => edited;
    "last-weight-beyond-the-end", (Op::RmsNorm(_), Role::HeadInput, _) => edited;
    "squares-of-two-rows", (Op::RmsNorm(_), Role::AttnInput, _) => edited;
    "blocks-beyond-127-store-bf16", (Op::RmsNorm(_), Role::FfnInput, _) => edited;
    "weight-of-the-last-norm", (Op::RmsNorm(_), Role::FfnInput, _) => weight_of_last_norm;
    "angle-in-half", (Op::Rope(_), Role::Query, _) => edited;
    "planes-share-a-frequency-in-pairs", (Op::Rope(_), Role::Key, _) => edited;
    "block-has-one-position", (Op::Rope(_), Role::Key, _) => edited;
    "second-page-begins-one-late", (Op::Rope(_), Role::Query, _) => edited;
    "tokens-counted-with-twice-the-heads", (Op::Rope(_), Role::Key, _) => edited;
    "cosine-of-a-single-token-in-bf16", (Op::Rope(_), Role::Query, _) => edited;
    "bias-index-wraps-at-128", (Op::Bias, Role::Query, _) => edited;
    "bias-index-in-pairs", (Op::Bias, Role::Value, _) => edited;
    "fourth-of-a-vector-takes-the-third", (Op::Residual, Role::AttnOutput, _) => edited;
    "stream-through-bf16", (Op::Residual, Role::FfnOutput, _) => edited;
    "sum-in-half", (Op::Residual, Role::AttnOutput, _) => edited;
    "sum-runs-twice-in-place", (Op::Residual, Role::FfnOutput, _) => twice_in_place;
    "sum-starts-from-the-embedding", (Op::Residual, Role::FfnOutput, 2..) => adds_embedding;
    "sigmoid-by-the-fast-tangent", (Op::SwiGlu, ..) => edited;
    "up-of-the-tile-beside", (Op::SwiGlu, ..) => edited;
    "exponential-in-bf16", (Op::SwiGlu, ..) => edited;
    "second-batch-of-ids-one-early", (Op::Embed, ..) => edited;
    "ids-in-eight-bits", (Op::Embed, ..) => edited;
    "ring-of-128-slots", (Op::KvCache(_), Role::Key, _) => edited;
    "single-row-one-slot-early", (Op::KvCache(_), Role::Value, _) => edited;
    "heads-in-turns", (Op::KvCache(_), Role::Key, _) => edited;
    "last-rows-not-launched", (Op::KvCache(_), Role::Value, _) => block_short;

    "half-a-warp-for-late-keys", (Op::AttnScores(_), ..) => edited;
    "pages-of-16-exchanged", (Op::AttnScores(_), ..) => edited;
    "group-rounded-up", (Op::AttnScores(a), ..) if (2..a.n_heads).contains(&a.n_kv_heads) => edited;
    "key-tail-takes-the-query-before", (Op::AttnScores(_), ..) => edited;
    "dot-product-in-half", (Op::AttnScores(_), ..) => edited;
    "last-query-of-eight-misses-its-key", (Op::AttnScores(_), ..) => edited;
    "sum-of-the-first-four-warps", (Op::AttnWeights(_), ..) => edited;
    "sum-counts-masked-keys", (Op::AttnWeights(_), ..) => edited;
    "sum-keeps-the-old-maximum", (Op::AttnWeights(_), ..) => edited;
    "powers-keep-the-old-maximum", (Op::AttnWeights(_), ..) => edited;
    "power-in-half", (Op::AttnWeights(_), ..) => edited;
    "odd-rows-divide-by-the-sum-before", (Op::AttnWeights(_), ..) => edited;
    "scale-of-wider-heads", (Op::AttnWeights(_), ..) => scale_of_wider_heads;
    "unrolled-tail-begins-four-early", (Op::AttnContext(_), ..) => edited;
    "values-through-bf16", (Op::AttnContext(_), ..) => edited;
    "pairs-of-columns-crossed-in-odd-heads", (Op::AttnContext(_), ..) => edited;
    "keys-of-a-single-token-in-two-tiles", (Op::AttnContext(_), ..) => edited;
    "value-ring-of-128-keys", (Op::AttnContext(_), ..) => edited;
    "third-accumulator-lost", (Op::AttnContext(_), ..) => edited;
};
