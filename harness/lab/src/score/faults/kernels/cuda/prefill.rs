//! Caches and attention of the fused path's longer steps.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "value-one-slot-late",
        "in the prefill values stand one slot late, and the first slot stays empty",
        &[&["slot too late"], &["one slot"], &["token 1 before"], &["row 1 before"], &["token before"]],
    ),
    bug(
        "values-take-the-bias-of-the-keys",
        "in the prefill values have the bias of the keys",
        &[&["bias is wrong"], &["bias", "attn_k"], &["bias of", "k_"], &["bias", "keys"]],
    ),
    bug(
        "halves-of-the-keys-exchanged",
        "in the prefill the two halves of a key stand in each other's place, and the larger one does not meet the rest of the query: it counts as rounded to 11 bits",
        &[&["queries", "rounded to", "f16"], &["query", "rounded to", "f16"], &["quer", " 11 bits"]],
    ),
    bug(
        "tile-turned-as-of-narrower-heads",
        "in the prefill eights of a key's elements stand where a narrower tile has them, and are read 8, 16 or 24 apart and more, by the key modulo 8",
        &[
            &["8 apart", "key mod 8"],
            &["elements", "apart", "key mod 8"],
            &["key mod 8", "bits of 8"],
            &["dimension", "8", "mod 8"],
        ],
    ),
    bug(
        "keys-beyond-whole-eights-cut-off",
        "in the prefill keys beyond the last whole 8, from 144 on, are zeros",
        &[
            &["zeros stand there", "144"],
            &["key", "missing", "144"],
            &["keys 144"],
            &["key", "whole 8"],
            &["key", "tile of 8"],
        ],
    ),
    bug(
        "tiles-cut-without-the-last-key",
        "in the prefill the last key, of position 149, is a zero",
        &[
            &["zeros stand there", "149"],
            &["key 149"],
            &["last key"],
            &["zeros stand there", "own key"],
            &["own key", "missing"],
        ],
    ),
    bug(
        "attention-launched-before-its-tiles",
        "in the prefill the caches in tiles are those of the layer before, and zeros in the first layer",
        &[&["zeros stand there"], &["layer before"], &["all zero"], &["is 0"], &["cache", "in the place of"]],
    ),
    bug(
        "third-tile-read-before-it-has-come",
        "in the prefill keys from 128 on are those 128 before",
        &[&["key", "128 before"], &["key", "mod 128"], &["key", "modulo 128"]],
    ),
    bug(
        "tiles-walked-by-all-heads",
        "in the prefill tokens are counted with all heads and not those of a group, and queries miss tiles of 64 keys at their end: what stood there stays",
        &[
            &["zeros stand there"],
            &["not written"],
            &["layer before"],
            &["key", "missing", "64"],
            &["keys 128", "stand"],
        ],
    ),
    bug(
        "last-queries-from-the-last-whole-tile",
        "in the prefill the last block of 32 queries, which is not whole, reads those of 10 tokens before",
        &[&["token 10 before"], &["row 10 before"], &["10 before", "128"]],
    ),
    bug(
        "largest-of-half-a-query",
        "in the prefill the scale of a query is that of the largest of half its elements, 0 to 3 or 4 to 7 of every 8: the other half is off by a power of two",
        &[
            &["4..7 mod 8", "power"],
            &["4..7 mod 8", "scale"],
            &["4..7 mod 8", "factor"],
            &["4..7 mod 8", "times"],
            &["0..3 mod 8", "times"],
        ],
    ),
    bug(
        "second-span-takes-the-elements-of-the-first",
        "in the prefill the second half of a query meets the first half of the key",
        &[&["32 before", "32..63"], &["32 less", "32..63"], &["elements 32..63", "0..31"]],
    ),
    bug(
        "running-sum-not-rescaled",
        "in the prefill the sum is not rescaled when the maximum moves from one tile of 64 keys to the next, each half of the tiles for itself",
        &[
            &["sum so far is not rescaled", "64"],
            &["sum", "not rescaled", "tiles of 64"],
            &["sum so far is not rescaled", "tiles of 32"],
        ],
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
        "sum-of-the-other-half-without-its-factor",
        "in the prefill the sums of two halves of every 64 keys are put together without the factor of the other",
        &[&["sum", "not rescaled", "64"], &["sum", "factor", "64"], &["sum", "halves"], &["sum", "32..63 mod 64"]],
    ),
    bug(
        "fourth-column-not-rescaled",
        "in the prefill odd columns of a head are not rescaled when the maximum moves, in the second four of eight tokens",
        &[&["not rescaled", "odd"], &["not rescaled", "mod 2 = 1"], &["not rescaled", "tiles of 64"]],
    ),
    bug(
        "rescaled-as-the-row-beside",
        "in the prefill odd columns in the first four of eight tokens, and even ones in the others, are rescaled as those of the token 4 apart when the maximum moves",
        &[&["not rescaled", "tiles of 64"], &["rescaled", "4 apart"], &["factor", "token 4"], &["factor", "4 after"]],
    ),
    bug(
        "value-tile-of-the-round-before",
        "in the prefill keys from 64 on are weighted with the value 64 before",
        &[&["value", "64 before"], &["value", "64 less"]],
    ),
    bug(
        "second-row-of-a-thread-shares-the-sum",
        "in the prefill the second four of eight tokens are divided by the sum of the token 4 before",
        &[
            &["sum", "4 before"],
            &["4..7", "sum"],
            &["row", "multiplied by a factor of its own"],
            &["head", "multiplied by a factor of its own"],
        ],
    ),
    bug(
        "low-part-of-powers-left-out",
        "in the prefill what values are multiplied with has 11 bits: the lower half of an exponential is left out",
        &[
            &["weights", "rounded to f16"],
            &["exponential", "f16"],
            &["power", "f16"],
            &["weights", " 11 bits"],
            &["numerator", "f16"],
        ],
    ),
    bug(
        "value-tile-not-transposed",
        "in the prefill tiles of 8 keys by 8 columns of the values are read transposed",
        &[&["tile", "transposed"], &["8 by 8", "transposed"], &["values", "transposed"]],
    ),
    bug(
        "second-half-takes-the-values-of-the-first",
        "in the prefill the second 32 of 64 keys are weighted with the values of the first",
        &[&["value", "32 before", "32..63 mod 64"], &["value", "32 before", "mod 64"], &["value", "32 before"]],
    ),
    bug(
        "values-unscaled-as-the-keys",
        "in the prefill the sums of values of every 32 keys are scaled back as the first of these keys: they are off by a power of two, in each 32 its own",
        &[&["times 4"], &["times 8"], &["times 16"], &["power of two"], &["scale", "keys"]],
    ),
    bug(
        "second-half-of-the-keys-not-added",
        "in the prefill the second 32 of every 64 keys are not added",
        &[&["32..63 mod 64", "missing"], &["32..63", "96..127", "missing"]],
    ),
    bug(
        "halves-added-without-factors",
        "in the prefill the two halves of every 64 keys are put together without their factors",
        &[
            &["32..63 mod 64", "factor"],
            &["32..63 mod 64", "times"],
            &["halves", "factor"],
            &["not rescaled", "64"],
            &["put together", "64"],
        ],
    ),
];
