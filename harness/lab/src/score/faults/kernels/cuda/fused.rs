//! Decode steps of the fused path, but for their products.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "norm-lacks-the-last-warp",
        "in decode steps the sum of squares lacks the last warp that has elements: columns 128 to 255",
        &[
            &["last 128 elements", "missing", "squares"],
            &["128..255", "missing", "squares"],
            &["second half", "missing", "squares"],
        ],
    ),
    bug(
        "second-row-fetched-beside-the-first",
        "in decode steps the tile beside a tile of a head's first half takes the next 16 rows, and not those half a head on",
        &[&["16 before"], &["16 less"], &["sixteen less"]],
    ),
    bug(
        "upper-half-takes-the-lower-bias",
        "in decode steps the second half of a head has the bias of the first",
        &[&["bias", "32 before"], &["bias is wrong"]],
    ),
    bug(
        "values-turned-like-keys",
        "in decode steps values are rotated as keys are",
        &[&["is rotated"], &["are rotated"], &["rotated as"], &["value", "rotat"]],
    ),
    bug(
        "key-one-slot-early",
        "in decode steps the key overwrites the one before, and its own slot stays empty",
        &[
            &["slot too early"],
            &["one slot"],
            &["slot before"],
            &["token 1 after"],
            &["row 1 after"],
            &["zeros stand there", "from position 150"],
            &["zeros stand there", "decode steps"],
            &["zeros stand there", "last row"],
        ],
    ),
    bug(
        "sine-of-the-last-planes-at-zero",
        "in decode steps the last 8 planes of a head are not turned",
        &[&["its own input", "24 to 31"], &["not rotated", "24"], &["not turned"]],
    ),
    bug(
        "half-of-the-team-reduced",
        "in decode steps the second half of a head is not summed",
        &[&["32..63", "missing"]],
    ),
    bug(
        "newest-row-of-the-first-head",
        "in decode steps the newest key and value are those of the first head of the cache, in heads 2 and 3",
        &[
            &["own key", "head 0"],
            &["newest", "head 0"],
            &["own key", "first head"],
            &["own key", "head 1 before"],
            &["own key", "cache's head"],
        ],
    ),
    bug(
        "newest-value-is-its-key",
        "in decode steps the newest key stands in the place of its value",
        &[
            &["own key", ".k_cache"],
            &["own key", "in the place of"],
            &["own", "keys stand in the place of values"],
            &[".k_cache", "in the place of"],
            &["own", "value", "instead of"],
        ],
    ),
    bug(
        "last-part-of-the-keys-lost",
        "in decode steps the last four of every whole 64 keys are missing",
        &[
            &["60..63 mod 64", "missing"],
            &["60..63", "124..127", "missing"],
            &["last 4", "missing", "64"],
            &["key mod 64", "60", "missing"],
        ],
    ),
    bug(
        "sum-of-the-last-split-lost",
        "in decode steps the sum lacks the last share of 64 keys, from key 128 on",
        &[
            &["sum that weights are divided by", "before the query's own 64", "decode steps"],
            &["sum that weights are divided by", "keys 0..127"],
            &["sum", "split"],
            &["sum", "key 128"],
            &["sum", "keys 128"],
        ],
    ),
    bug(
        "shares-counted-without-factors",
        "in decode steps the sums of shares of 64 keys are added without their factors",
        &[
            &["sum so far is not rescaled", "tiles of 64"],
            &["sum", "not rescaled", "64"],
            &["sum", "factor", "64"],
            &["sum", "own maximum", "64"],
        ],
    ),
    bug(
        "last-split-keeps-its-maximum",
        "in decode steps the last share of 64 keys, from key 128 on, is added without its factor",
        &[
            &["last split", "not rescaled"],
            &["last 64", "not rescaled"],
            &["last tile", "not rescaled"],
            &["keys 128", "not rescaled"],
            &["keys 128", "factor"],
            &["keys 128", "times"],
            &["from key 128", "times"],
        ],
    ),
    bug(
        "keys-beyond-whole-fours-left-out",
        "in decode steps keys of a share beyond its last whole four are left out",
        &[
            &["missing", "148"],
            &["missing", "tiles of 4"],
            &["missing", "whole 4"],
            &["missing", "last", "mod 4"],
            &["the keys after the last whole tile of 4 are missing", "decode steps"],
        ],
    ),
    bug(
        "factors-of-the-other-head",
        "in decode steps shares of 64 keys have the factors of the head before, in odd heads",
        &[
            &["factor", "of the head"],
            &["factor", "of another head"],
            &["put together", "tiles of 64"],
            &["put together", "shares of 64"],
            &["maximum", "head"],
        ],
    ),
    bug(
        "stream-read-across-a-pair",
        "in decode steps a column is added to the residual stream of the column beside, in pairs",
        &[&["column 1 apart"], &["columns 1 apart"]],
    ),
    bug(
        "second-half-meets-the-first-inputs",
        "in decode steps the second half of the weights meets the first half of the inputs",
        &[
            &["input 256 before"],
            &["256 before", "256..511"],
            &["256 less", "256..511"],
            &["input modulo 256"],
            &["inputs", "mod 256"],
        ],
    ),
    bug(
        "first-half-added-twice",
        "in decode steps the first half of the sum is added twice, and the second not",
        &[
            &["0..255", "taken twice"],
            &["0..255", "2 times"],
            &["0..255", "twice", "256..511"],
            &["256..511", "missing", "times 2"],
        ],
    ),
    bug(
        "up-fetched-from-the-gate",
        "in decode steps up is made with the weights of the gate",
        &[&["_gate"], &["weights of the gate"]],
    ),
    bug(
        "power-of-two-for-the-exponential",
        "in decode steps the activation takes powers of two",
        &[&["powers of two"], &["powers of 2"], &["power of two"], &["2^"], &["exp2"]],
    ),
    bug(
        "norm-weight-of-the-column-beside",
        "in decode steps a column is multiplied with the weight of the column beside, in pairs",
        &[&["weight", "1 apart"], &["its weight is wrong"], &["weight", "column beside"]],
    ),
    bug(
        "end-of-the-vocabulary-not-written",
        "in decode steps logits from 480 on are not written, and stay what the prefill left there",
        &[&["stand", "480"], &["not written"], &["stale"], &["step before", "480"]],
    ),
];
