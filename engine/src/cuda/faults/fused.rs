//! Bugs of the decode steps of the fused path outside the catalogue, each at the first stage that it spoils.

use super::launches::faults;
use super::{Fault, Site};
use crate::cuda::known::{Known, known};
use crate::model::Role;
use crate::ops::{Defined, Op};

fn edited(site: &mut Site<'_>) {
    site.edited();
}

fn is(op: &Defined, kind: impl Fn(Known<'_>) -> bool) -> bool {
    known(op).is_some_and(kind)
}

pub(super) const FAULTS: &[Fault] = faults! {
    "norm-lacks-the-last-warp", (Op::RmsNorm(_), Role::AttnInput, _) => edited;
    "second-row-fetched-beside-the-first", (Op::Linear, Role::Query, _) => edited;
    "upper-half-takes-the-lower-bias", (Op::Bias, Role::Query, _) => edited;
    "values-turned-like-keys", (Op::KvCache(_), Role::Value, _) => edited;
    "key-one-slot-early", (Op::KvCache(_), Role::Key, _) => edited;
    "sine-of-the-last-planes-at-zero", (Op::Rope(_), Role::Query, _) => edited;
    "half-of-the-team-reduced", (Op::AttnScores(_), ..) => edited;
    "newest-row-of-the-first-head", (Op::AttnScores(a), ..) if a.n_kv_heads > 1 => edited;
    "newest-value-is-its-key", (Op::AttnContext(_), ..) => edited;
    "last-part-of-the-keys-lost", (Op::AttnContext(_), ..) => edited;
    "sum-of-the-last-split-lost", (Op::AttnWeights(_), ..) => edited;
    "shares-counted-without-factors", (Op::AttnWeights(_), ..) => edited;
    "last-split-keeps-its-maximum", (Op::AttnContext(_), ..) => edited;
    "keys-beyond-whole-fours-left-out", (Op::AttnContext(_), ..) => edited;
    "factors-of-the-other-head", (Op::AttnContext(_), ..) => edited;
    "stream-read-across-a-pair", (Op::Residual, Role::AttnOutput, _) => edited;
    "second-half-meets-the-first-inputs", (Op::Linear, Role::FfnOutput, _) => edited;
    "first-half-added-twice", (Op::Linear, Role::FfnOutput, _) => edited;
    "up-fetched-from-the-gate", (Op::Linear, Role::Up, _) => edited;
    "power-of-two-for-the-exponential", (Op::SwiGlu, ..) => edited;
    "norm-weight-of-the-column-beside", (Op::RmsNorm(_), Role::FfnInput, _) => edited;
    // In a mixture of experts.
    "gate-of-the-most-probable-expert", (Op::Defined(_), Role::Gate, _) => edited;
    "shares-of-the-sum-of-all-experts", (Op::Defined(op), Role::Router, _) if is(op, |op| matches!(op, Known::RowShares)) => edited;
    "every-expert-meets-the-first-vector",
        (Op::Defined(op), Role::FfnOutput, _) if is(op, |op| matches!(op, Known::ExpertLinear(_))) => edited;
    "last-expert-left-out-of-the-sum",
        (Op::Defined(op), Role::FfnOutput, _) if is(op, |op| matches!(op, Known::WeightedSum(_))) => edited;
    "end-of-the-vocabulary-not-written", (Op::Linear, Role::Logits, _) => edited;
    // The products.
    "second-word-of-a-lane-not-loaded", (Op::Linear, Role::AttnOutput, _) => edited;
    "carries-between-digits-left-out", (Op::Linear, Role::AttnOutput, _) => edited;
    "largest-of-half-a-group", (Op::Linear, Role::Logits, _) => edited;
    "unit-of-the-group-before", (Op::Linear, Role::FfnOutput, _) => edited;
    "groups-added-in-half", (Op::Linear, Role::FfnOutput, _) => edited;
    "last-warp-of-a-team-lost", (Op::Linear, Role::FfnOutput, _) => edited;
    "odd-rows-prefetched-from-even-ones", (Op::Linear, Role::AttnOutput, _) => edited;
    "eight-not-subtracted-in-tiles", (Op::Linear, Role::AttnOutput, _) => edited;
    "minimum-added-by-each-of-four-lanes", (Op::Linear, Role::Logits, _) => edited;
    "sixteen-subtracted-where-the-bit-is-set", (Op::Linear, Role::FfnOutput, _) => edited;
    "fifth-bits-of-the-first-half-in-tiles", (Op::Linear, Role::AttnOutput, _) => edited;
    "minima-of-two-rows-subtracted", (Op::Linear, Role::FfnOutput, _) => edited;
    "scales-of-row-and-group-crossed", (Op::Linear, Role::Logits, _) => edited;
    "fifth-bits-of-the-first-groups", (Op::Linear, Role::AttnOutput, _) => edited;
    "scales-of-row-and-half-crossed", (Op::Linear, Role::FfnOutput, _) => edited;
};
