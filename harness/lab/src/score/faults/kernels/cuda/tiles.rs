//! Products of the fused path's longer steps, and the sums that they go into: tiles, operands, scales, shares, block formats.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "last-tile-not-fetched",
        "in the prefill the last 64 inputs are not fetched, and the 64 before them are multiplied twice",
    ),
    bug(
        "tile-read-before-it-is-written",
        "in the prefill from the second tile of 64 inputs on, weights meet the inputs of the tile before",
    ),
    bug(
        "fragment-halves-crossed",
        "in the prefill of a fragment of 16 columns by 16 inputs the two quarters beside the diagonal change places: odd inputs of the first 8 columns, and even ones of the others",
    ),
    bug(
        "low-part-of-activations-left-out",
        "in the prefill only the first of two halves of an activation is multiplied: 11 bits",
    ),
    bug(
        "tile-sums-not-cleared",
        "in the prefill the sum of 32 inputs is not cleared before that of the next 32, in pairs: the first are added again with the scale of the second",
    ),
    bug("columns-of-a-pair-crossed", "in the prefill columns 8 apart change places when they are written"),
    bug(
        "sixteens-of-columns-in-the-order-of-warps",
        "in the prefill of 128 columns sixteens are in another order: 0, 2, 4, 6, 1, 3, 5, 7 of those that belong there",
    ),
    bug(
        "weight-tile-crossed",
        "in the prefill of 8 columns by 16 inputs the fours of weights are read by columns and not by rows",
    ),
    bug(
        "rows-of-the-first-round-fetched-again",
        "in the prefill of 128 columns those from 32 on have the quants of the column modulo 32, and their own scales",
    ),
    bug(
        "sixteens-turned-by-pairs-of-tokens",
        "in the prefill sixteen bytes of an operand stand where a narrower tile has them: of eight tokens all but the first and the last meet inputs 1, 16 or 17 apart",
    ),
    bug(
        "inverse-of-the-token-before",
        "in the prefill the sums of odd tokens are scaled back as those of the token before: they are off by powers of two",
    ),
    bug(
        "scales-of-a-piece-exchanged",
        "in the prefill groups of 32 weights have the scale of the group beside, in pairs",
    ),
    bug("upper-rows-scaled-as-the-lower", "in the prefill the second 8 of 16 columns have the scales of the first"),
    bug("scales-put-before-they-are-loaded", "in the prefill inputs 192 to 255 have the scales of the 64 before"),
    bug("groups-of-x-in-natural-order", "in the prefill Q6_K: of 128 inputs the second and the third 32 change places"),
    bug(
        "both-halves-take-the-first-scale",
        "in the prefill Q6_K: the second 16 of 32 weights have the scale of the first",
    ),
    bug(
        "upper-pairs-in-natural-order",
        "in the prefill Q6_K: of 128 weights the second and the third 32 have each other's upper two bits",
    ),
    bug(
        "fifth-bits-of-the-first-step",
        "in the prefill Q5_0: the second 16 weights of a block have the fifth bits of the first",
    ),
    bug(
        "scales-of-the-first-four-groups",
        "in the prefill Q4_K: the second 128 weights of a block have scales and minima of the first",
    ),
    bug(
        "minimum-meets-the-token-beside",
        "in the prefill Q4_1: the minimum of a group meets the sum of the inputs of the token beside, in pairs",
    ),
    bug(
        "sums-of-groups-not-scaled",
        "in the prefill Q4_K: the sums of groups of inputs are not scaled as the inputs are, so that minima count next to nothing",
    ),
    bug(
        "pairs-of-the-operand-in-natural-order",
        "in the prefill of every four inputs the two in the middle change places",
    ),
    bug("kept-elements-of-the-first-round", "in the prefill inputs from 256 on are those 256 before"),
    bug(
        "largest-of-each-warp-for-itself",
        "in the prefill of 256 inputs the second 128 have a scale of their own, and are scaled back as the first: off by a power of two in every token",
    ),
    bug(
        "shares-rounded-down",
        "in the prefill a third of 4 pieces of 64 inputs is taken to be 1: the last 64 inputs are in no share",
    ),
    bug(
        "share-begins-one-piece-early",
        "in the prefill the second share of the sum begins 64 inputs early, and they count twice",
    ),
    bug(
        "shares-stand-in-whole-tiles",
        "in the prefill the second half of the inputs is that of the token 42 before, and missing up to token 41: shares stand 192 tokens apart, and are read 150 apart",
    ),
    bug(
        "first-share-counts-twice",
        "in the prefill of two shares of the sum the first is added twice: inputs 0 to 255",
    ),
    bug("last-share-not-added", "in the prefill the second half of the sum is not added"),
    bug("shares-added-as-bf16", "in the prefill the shares of the sum are added up in bf16, the result included"),
    bug(
        "sum-launched-before-its-shares",
        "in the prefill shares are added up before they are made: zeros in the first layer, then what the layer before left",
    ),
    bug(
        "operand-prepared-after-its-product",
        "in the prefill the output projection takes the operand of the place, the norm before the attention",
    ),
    bug(
        "last-tile-of-outputs-not-launched",
        "in the prefill the last 128 columns are not written: zeros in the first layer, then what the layer before left",
    ),
    bug(
        "outputs-of-key-and-value-exchanged",
        "in the prefill keys are made with the weights of the values, and values with those of the keys",
    ),
    bug(
        "sum-starts-before-the-attention",
        "in the prefill the feed-forward network's output is added to the stream as it was before the attention",
    ),
    bug(
        "second-warpgroup-multiplies-the-first-rows",
        "in the prefill, of matrices kept as halves, the second 64 of 128 columns have the quants of the first, and their own scales",
    ),
    bug(
        "low-part-not-multiplied-with-halves",
        "in the prefill, of matrices kept as halves, only the first of two halves of an activation is multiplied: 11 bits",
    ),
    bug(
        "halves-of-both-groups-meet-the-first-of-x",
        "in the prefill, of matrices kept as halves, the second 32 of 64 weights meet the inputs of the first",
    ),
    bug(
        "upper-rows-of-halves-scaled-as-the-lower",
        "in the prefill, of matrices kept as halves, the second 8 of 16 columns have the scales of the first",
    ),
    bug(
        "second-sixteen-of-halves-takes-the-first-scale",
        "in the prefill, of matrices kept as halves, Q6_K: the second 16 of 32 weights have the scale of the first",
    ),
    bug(
        "rows-of-halves-crossed",
        "in the prefill, of matrices kept as halves, columns 8 apart change places when they are written",
    ),
    bug(
        "minima-of-halves-meet-the-token-beside",
        "in the prefill, of matrices kept as halves, Q4_1: the minimum of a group meets the sum of the inputs of the token beside, in pairs",
    ),
    bug(
        "share-of-halves-begins-one-piece-early",
        "in the prefill, of matrices kept as halves, shares of the sum begin 64 inputs early, and these count twice",
    ),
];
