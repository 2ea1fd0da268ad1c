//! Decode steps of the fused path, but for their products.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "norm-lacks-the-last-warp",
        "in decode steps the sum of squares lacks the last warp that has elements: columns 128 to 255",
    ),
    bug(
        "second-row-fetched-beside-the-first",
        "in decode steps the tile beside a tile of a head's first half takes the next 16 rows, and not those half a head on",
    ),
    bug("upper-half-takes-the-lower-bias", "in decode steps the second half of a head has the bias of the first"),
    bug("values-turned-like-keys", "in decode steps values are rotated as keys are"),
    bug("key-one-slot-early", "in decode steps the key overwrites the one before, and its own slot stays empty"),
    bug("sine-of-the-last-planes-at-zero", "in decode steps the last 8 planes of a head are not turned"),
    bug("half-of-the-team-reduced", "in decode steps the second half of a head is not summed"),
    bug(
        "newest-row-of-the-first-head",
        "in decode steps the newest key and value are those of the first head of the cache, in heads 2 and 3",
    ),
    bug("newest-value-is-its-key", "in decode steps the newest key is written in place of its value"),
    bug("last-part-of-the-keys-lost", "in decode steps the last four of every whole 64 keys are missing"),
    bug("sum-of-the-last-split-lost", "in decode steps the sum lacks the last share of 64 keys, from key 128 on"),
    bug(
        "shares-counted-without-factors",
        "in decode steps the sums of shares of 64 keys are added without their factors",
    ),
    bug(
        "last-split-keeps-its-maximum",
        "in decode steps the last share of 64 keys, from key 128 on, is added without its factor",
    ),
    bug("keys-beyond-whole-fours-left-out", "in decode steps keys of a share beyond its last whole four are left out"),
    bug(
        "factors-of-the-other-head",
        "in decode steps shares of 64 keys have the factors of the head before, in odd heads",
    ),
    bug(
        "stream-read-across-a-pair",
        "in decode steps a column is added to the residual stream of the column beside, in pairs",
    ),
    bug(
        "second-half-meets-the-first-inputs",
        "in decode steps the second half of the weights meets the first half of the inputs",
    ),
    bug("first-half-added-twice", "in decode steps the first half of the sum is added twice, and the second not"),
    bug("up-fetched-from-the-gate", "in decode steps up is made with the weights of the gate"),
    bug("power-of-two-for-the-exponential", "in decode steps the activation takes powers of two"),
    bug(
        "norm-weight-of-the-column-beside",
        "in decode steps a column is multiplied with the weight of the column beside, in pairs",
    ),
    bug(
        "end-of-the-vocabulary-not-written",
        "in decode steps logits from 480 on are not written, and stay what the prefill left there",
    ),
];
