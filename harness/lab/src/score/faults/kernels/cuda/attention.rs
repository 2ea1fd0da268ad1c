//! Scores, softmax and context, each for itself.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "half-a-warp-for-late-keys",
        "for keys from 128 on the upper 16 lanes are not summed: dimensions 16 to 31 and 48 to 63",
    ),
    bug("pages-of-16-exchanged", "the second and the third 16 keys change places"),
    bug("group-rounded-up", "the group of a query head is rounded up: head 1 reads the second head of the keys"),
    bug("key-tail-takes-the-query-before", "keys beyond the last whole 8 meet the query of the token before"),
    bug("dot-product-in-half", "a lane adds up its products in f16"),
    bug("last-query-of-eight-misses-its-key", "of every 8 queries the last has a score of 0 for its own key"),
    bug("sum-of-the-first-four-warps", "the sum lacks the keys from 128 on"),
    bug("sum-counts-masked-keys", "the sum counts masked keys, whose scores are 0, up to the next multiple of 32"),
    bug(
        "sum-keeps-the-old-maximum",
        "when the maximum moves from one tile of 32 keys to the next, the sum is not rescaled",
    ),
    bug(
        "powers-keep-the-old-maximum",
        "when the maximum moves from one tile of 32 keys to the next, what came before is not rescaled",
    ),
    bug("power-in-half", "the exponential is rounded to f16, for the sum as well"),
    bug("odd-rows-divide-by-the-sum-before", "in odd rows of a step the sum is that of the row before"),
    bug("scale-of-wider-heads", "scores are scaled as for heads of 128 elements"),
    bug(
        "unrolled-tail-begins-four-early",
        "where the number of keys is no multiple of 4, the last whole four keys count twice",
    ),
    bug("values-through-bf16", "values are rounded to bf16 on their way into the sum"),
    bug("pairs-of-columns-crossed-in-odd-heads", "in odd heads neighbouring columns change places"),
    bug("keys-of-a-single-token-in-two-tiles", "when a single token is decoded, keys from 128 on are left out"),
    bug("value-ring-of-128-keys", "keys from 128 on are weighted with the value 128 before"),
    bug(
        "third-accumulator-lost",
        "of every whole four keys the third is not added; as the query's own, beyond the last whole four, it is",
    ),
];
