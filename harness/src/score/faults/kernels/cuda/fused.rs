//! The fused path: decode steps, and the attention and products of longer ones.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "norm-lacks-the-last-warp",
        "in decode steps the sum of squares takes 7 of 8 warps: columns 224 to 255 are missing from it",
        &[&["last 32 elements", "missing", "squares"], &["224..255", "missing", "squares"]],
    ),
    bug(
        "second-row-fetched-beside-the-first",
        "in decode steps the second half of a head is made of the rows that follow the first half's, one further on",
        &[&["31 before"], &["31 less"], &["thirty-one less"]],
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
        "sum-of-the-last-split-lost",
        "in decode steps the sum lacks the last split of 32 keys, from key 128 on",
        &[
            &["sum that weights are divided by", "before the query's own 32", "decode steps"],
            &["sum that weights are divided by", "keys 0..127"],
            &["sum", "split"],
            &["sum", "key 128"],
            &["sum", "keys 128"],
        ],
    ),
    bug(
        "last-split-keeps-its-maximum",
        "in decode steps the last split of 32 keys, from key 128 on, is added without its factor",
        &[
            &["last split", "not rescaled"],
            &["last 32", "not rescaled"],
            &["last tile", "not rescaled"],
            &["keys 128", "not rescaled"],
            &["keys 128", "factor"],
            &["keys 128", "times"],
            &["from key 128", "times"],
        ],
    ),
    bug(
        "keys-beyond-whole-fours-left-out",
        "in decode steps keys of a split beyond its last whole four are left out",
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
        "in decode steps the first four splits of 32 keys have the factors of the group's first head",
        &[
            &["factor", "of the head"],
            &["factor", "of another head"],
            &["put together", "tiles of 32"],
            &["put together", "splits of 32"],
            &["maximum", "head"],
        ],
    ),
    bug(
        "stream-read-across-a-pair",
        "in decode steps a column is added to the residual stream of the column beside, in pairs",
        &[&["column 1 apart"], &["columns 1 apart"]],
    ),
    bug(
        "odd-vectors-not-loaded",
        "in decode steps the second of every two fours of x is the first again",
        &[&["input 4 before", "4..7 mod 8"], &["input 4 before"], &["4 before", "mod 8"]],
    ),
    bug(
        "groups-added-in-half",
        "in decode steps the sums of 32 products are rounded to f16",
        &[
            &["sums", " in f16"],
            &["sums", " to f16"],
            &["sums of 32", "f16"],
            &["accumulat", "f16"],
            &["each sum of 32 inputs is rounded to f16", "decode steps"],
        ],
    ),
    bug(
        "last-lane-of-four-lost",
        "in decode steps every fourth lane is lost, and with it 32 of every 128 inputs",
        &[&["96..127 mod 128", "missing"], &["3, 7, 11, 15 of 32 ", "missing"]],
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
        "odd-rows-prefetched-from-even-ones",
        "in decode steps odd logits are made with the row of weights before",
        &[&["column 1 before", "column is odd"], &["1 apart, in pairs", "column is odd"], &["id", "1 before", "odd"]],
    ),
    bug(
        "end-of-the-vocabulary-not-written",
        "in decode steps logits from 480 on are not written, and stay what the prefill left there",
        &[&["stand", "480"], &["not written"], &["stale"], &["step before", "480"]],
    ),
    bug(
        "running-sum-not-rescaled",
        "in the prefill the sum is not rescaled when the maximum moves from one tile of 32 keys to the next",
        &[&["sum so far is not rescaled", "tiles of 32"]],
    ),
    bug(
        "fourth-column-not-rescaled",
        "in the prefill every fourth column of a head is not rescaled when the maximum moves",
        &[&["not rescaled", "mod 4 = 3"], &["not rescaled", "tiles of 32"]],
    ),
    bug(
        "value-tile-of-the-round-before",
        "in the prefill keys from 32 on are weighted with the value 32 before",
        &[&["value", "32 before"]],
    ),
    bug(
        "last-queries-from-the-last-whole-tile",
        "in the prefill the last tile of 32 queries, which is not whole, reads those of 10 tokens before",
        &[&["token 10 before"], &["row 10 before"], &["10 before", "128"]],
    ),
    bug(
        "mask-ends-with-four-queries",
        "in the prefill the sum counts keys up to the end of the query's own four",
        &[
            &["sum", "masked"],
            &["all keys up to the end of the query's own 4"],
            &["sum", "own 4"],
            &["sum", "multiple of 4"],
            &["sum", "tiles of 4"],
        ],
    ),
    bug(
        "second-row-of-a-thread-shares-the-sum",
        "in the prefill the second 16 of 32 queries are divided by the sum of the query 16 before",
        &[
            &["sum", "16 before"],
            &["mod 32 is 16 to 31"],
            &["row", "multiplied by a factor of its own"],
            &["head", "multiplied by a factor of its own"],
        ],
    ),
    bug(
        "low-part-of-weights-left-out",
        "in the prefill only the first of two TF32 parts of the weights is multiplied",
        &[&["the weights are rounded to", "tf32"]],
    ),
    bug(
        "share-begins-one-group-early",
        "in the prefill the second share of the sum begins 32 inputs early, and they count twice",
        &[&["224..255", "taken twice"], &["224..255", "2 times"]],
    ),
    bug("last-share-not-added", "in the prefill the second half of the sum is not added", &[&["256..511", "missing"]]),
];
