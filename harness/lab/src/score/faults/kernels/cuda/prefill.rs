//! Caches and attention of the fused path's longer steps.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug("value-one-slot-late", "in the prefill values stand one slot late, and the first slot stays empty"),
    bug("values-take-the-bias-of-the-keys", "in the prefill values have the bias of the keys"),
    bug(
        "halves-of-the-keys-exchanged",
        "in the prefill the two halves of a key are exchanged, and the larger one does not meet the rest of the query: it counts as rounded to 11 bits",
    ),
    bug(
        "tile-turned-as-of-narrower-heads",
        "in the prefill eights of a key's elements stand where a narrower tile has them, and are read 8, 16 or 24 apart and more, by the key modulo 8",
    ),
    bug("keys-beyond-whole-eights-cut-off", "in the prefill keys beyond the last whole 8, from 144 on, are zeros"),
    bug("tiles-cut-without-the-last-key", "in the prefill the last key, of position 149, is a zero"),
    bug(
        "attention-launched-before-its-tiles",
        "in the prefill the caches in tiles are those of the layer before, and zeros in the first layer",
    ),
    bug("third-tile-read-before-it-has-come", "in the prefill keys from 128 on are those 128 before"),
    bug(
        "tiles-walked-by-all-heads",
        "in the prefill tokens are counted with all heads and not those of a group, and queries miss tiles of 64 keys at their end: old values stay there",
    ),
    bug(
        "last-queries-from-the-last-whole-tile",
        "in the prefill the last block of 32 queries, which is not whole, reads those of 10 tokens before",
    ),
    bug(
        "largest-of-half-a-query",
        "in the prefill the scale of a query is that of the largest of half its elements, 0 to 3 or 4 to 7 of every 8: the other half is off by a power of two",
    ),
    bug(
        "second-span-takes-the-elements-of-the-first",
        "in the prefill the second half of a query meets the first half of the key",
    ),
    bug(
        "running-sum-not-rescaled",
        "in the prefill the sum is not rescaled when the maximum moves from one tile of 64 keys to the next, each half of the tiles for itself",
    ),
    bug("mask-ends-with-four-queries", "in the prefill the sum counts keys up to the end of the query's own four"),
    bug(
        "sum-of-the-other-half-without-its-factor",
        "in the prefill the sums of two halves of every 64 keys are put together without the factor of the other",
    ),
    bug(
        "fourth-column-not-rescaled",
        "in the prefill odd columns of a head are not rescaled when the maximum moves, in the second four of eight tokens",
    ),
    bug(
        "rescaled-as-the-row-beside",
        "in the prefill odd columns in the first four of eight tokens, and even ones in the others, are rescaled as those of the token 4 apart when the maximum moves",
    ),
    bug("value-tile-of-the-round-before", "in the prefill keys from 64 on are weighted with the value 64 before"),
    bug(
        "second-row-of-a-thread-shares-the-sum",
        "in the prefill the second four of eight tokens are divided by the sum of the token 4 before",
    ),
    bug(
        "low-part-of-powers-left-out",
        "in the prefill what values are multiplied with has 11 bits: the lower half of an exponential is left out",
    ),
    bug("value-tile-not-transposed", "in the prefill tiles of 8 keys by 8 columns of the values are read transposed"),
    bug(
        "second-half-takes-the-values-of-the-first",
        "in the prefill the second 32 of 64 keys are weighted with the values of the first",
    ),
    bug(
        "values-unscaled-as-the-keys",
        "in the prefill the sums of values of every 32 keys are scaled back as the first of these keys: they are off by a power of two, in each 32 its own",
    ),
    bug("second-half-of-the-keys-not-added", "in the prefill the second 32 of every 64 keys are not added"),
    bug(
        "halves-added-without-factors",
        "in the prefill the two halves of every 64 keys are put together without their factors",
    ),
];
