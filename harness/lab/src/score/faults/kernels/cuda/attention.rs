//! Scores, softmax and context, each for itself.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "half-a-warp-for-late-keys",
        "for keys from 128 on the upper 16 lanes are not summed: dimensions 16 to 31 and 48 to 63",
        &[
            &["16..31 mod 32", "missing", "128"],
            &["1, 3 of 16 ", "missing", "128"],
            &["16..31", "48..63", "missing", "128"],
        ],
    ),
    bug(
        "pages-of-16-exchanged",
        "the second and the third 16 keys change places",
        &[
            &["differs in the bits of 48"],
            &["16 apart", "exchanged"],
            &["key 16 apart"],
            &["key", "16 after", "16 to 31"],
        ],
    ),
    bug(
        "group-rounded-up",
        "the group of a query head is rounded up: head 1 reads the second head of the keys",
        &[
            &["kv head 1", "head 1"],
            &["head 1 further on", "at head 1"],
            &["key of head 1 of the cache", "at head 1"],
            &["key head", "at head 1"],
            &["cache's head", "at head 1"],
        ],
    ),
    bug(
        "key-tail-takes-the-query-before",
        "keys beyond the last whole 8 meet the query of the token before",
        &[
            &["query", "before in the part", "144"],
            &["query", "token before", "144", "prefill only"],
            &["query", "token 1 before", "144", "prefill only"],
            &["query", "row before", "144"],
        ],
    ),
    bug(
        "dot-product-in-half",
        "a lane adds up its products in f16",
        &[
            &["sums", " in f16"],
            &["sums", " to f16"],
            &["partial sum", "f16"],
            &["accumulat", "f16"],
            &["products", "f16"],
        ],
    ),
    bug(
        "last-query-of-eight-misses-its-key",
        "of every 8 queries the last has a score of 0 for its own key",
        &[&["zeros stand there", "the query's own key", "mod 8 = 7"], &["own key", "mod 8 = 7"]],
    ),
    bug(
        "sum-of-the-first-four-warps",
        "the sum lacks the keys from 128 on",
        &[
            &["sum that weights are divided by", "before the query's own 32", "from position 128"],
            &["sum that weights are divided by", "keys 0..127"],
            &["sum", "keys 128"],
            &["sum", "from key 128"],
            &["sum", "first 128"],
        ],
    ),
    bug(
        "sum-counts-masked-keys",
        "the sum counts masked keys, whose scores are 0, up to the next multiple of 32",
        &[
            &["sum", "masked"],
            &["sum", "multiple of 32"],
            &["sum", "padded"],
            &["sum", "not seen"],
            &["sum", "end of", "32"],
        ],
    ),
    bug(
        "sum-keeps-the-old-maximum",
        "when the maximum moves from one tile of 32 keys to the next, the sum is not rescaled",
        &[&["sum so far is not rescaled", "tiles of 32"]],
    ),
    bug(
        "powers-keep-the-old-maximum",
        "when the maximum moves from one tile of 32 keys to the next, what came before is not rescaled",
        &[
            &["weights", "not rescaled", "tiles of 32"],
            &["exponentials are of the largest score up to", "not rescaled", "as their sum is", "in tiles of 32 keys"],
        ],
    ),
    bug(
        "power-in-half",
        "the exponential is rounded to f16, for the sum as well",
        &[&["exponential", "f16"], &["power", "f16"], &["numerator", "f16"]],
    ),
    bug(
        "odd-rows-divide-by-the-sum-before",
        "in odd rows of a step the sum is that of the row before",
        &[
            &["sum", "before in the part", "odd"],
            &["sum", "token before", "odd", "prefill only"],
            &["sum", "token 1 before", "odd", "prefill only"],
            &["sum", "row before", "odd"],
        ],
    ),
    bug(
        "scale-of-wider-heads",
        "scores are scaled as for heads of 128 elements",
        &[&["scale=0.08838"], &["scale=0.08839"], &["times 0.7071"]],
    ),
    bug(
        "unrolled-tail-begins-four-early",
        "where the number of keys is no multiple of 4, the last whole four keys count twice",
        &[
            &["taken twice", "mod 4"],
            &["taken twice", "tiles of 4"],
            &["taken twice", "4 keys"],
            &["taken twice", "last"],
        ],
    ),
    bug(
        "values-through-bf16",
        "values are rounded to bf16 on their way into the sum",
        &[&["values are rounded to bf16"], &["cache", "rounded to bf16"]],
    ),
    bug(
        "pairs-of-columns-crossed-in-odd-heads",
        "in odd heads neighbouring columns change places",
        &[
            &["columns 1 apart are exchanged", "head is odd"],
            &["column 1 apart", "head is odd"],
            &["1 apart, in pairs", "head is odd"],
            &["64 pairs of columns are exchanged, 64 and 65 first"],
        ],
    ),
    bug(
        "keys-of-a-single-token-in-two-tiles",
        "when a single token is decoded, keys from 128 on are left out",
        &[
            &["keys 128", "missing"],
            &["from key 128", "missing"],
            &["keys 0..127"],
            &["first 128"],
            &["128..", "missing"],
        ],
    ),
    bug(
        "value-ring-of-128-keys",
        "keys from 128 on are weighted with the value 128 before",
        &[
            &["value", "128 before"],
            &["modulo 128"],
            &["value", "key 128"],
            &["the value of the key k mod 128 for key k is taken"],
        ],
    ),
    bug(
        "third-accumulator-lost",
        "of every whole four keys the third is not added; as the query's own, beyond the last whole four, it is",
        &[
            &["2 mod 4", "missing", "before the query"],
            &["2 mod 4", "missing", "own key"],
            &["2 mod 4", "missing", "whole 4"],
            &["third", "missing", "whole 4"],
        ],
    ),
];
