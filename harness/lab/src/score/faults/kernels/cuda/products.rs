//! Products of the tapped path: lanes, tails, addresses, number types, block formats.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "reduction-begins-at-four",
        "the sum over lanes begins at a distance of 4 and not of 16: of 512 inputs the second 256 are not summed",
    ),
    bug(
        "shuffle-eight-lanes-wide",
        "lanes are exchanged within eights: the first 256 inputs count four times, the second 256 not at all",
    ),
    bug(
        "tail-tokens-lack-last-group",
        "in a tile of fewer than 8 tokens the last 32 inputs are not summed: from token 144 on, and in every decode step",
    ),
    bug(
        "tail-tokens-of-the-last-whole-tile",
        "the last tile of a prompt, which is not whole, reads the tokens of a whole tile that ends there: two tokens early",
    ),
    bug(
        "address-in-16-bits",
        "the address of a row of x is counted in 16 bits: of 512 inputs, token 128 reads token 0, and so on",
    ),
    bug("last-token-of-a-tile-keeps-a-sum", "the last of every 8 tokens goes on from the sums of the token before"),
    bug("last-warp-takes-the-first-row", "the last of a block's 8 warps multiplies the row of weights of the first"),
    bug("halves-of-a-wide-load-exchanged", "in the second half of the inputs neighbouring fours of x change places"),
    bug("third-for-fourth", "the fourth of every four weights is multiplied with the third of the inputs"),
    bug("activations-in-tf32", "activations are rounded to TF32 before the product"),
    bug("half-accumulators", "a lane adds up its 32 products in f16"),
    bug("weights-cut-to-bf16", "weights are cut to the upper 16 bits of an f32"),
    bug("activations-in-eight-bits-by-group", "activations are quantised to 8 bits, 32 of them under one scale"),
    bug("single-token-stored-in-half", "when a single token is decoded, the logits are stored in f16"),
    bug("last-block-not-launched", "the grid is a block short: the last 8 columns are never written"),
    bug(
        "product-reads-the-gate",
        "the second product of the feed-forward network reads the gate and not what the activation made of it",
    ),
    bug("nibbles-in-turns", "Q4_0: weights are taken from the low and the high nibble of a byte in turns"),
    bug("scale-and-minimum-exchanged", "Q4_1: scale and minimum of a block change places"),
    bug("middle-of-four-bits", "Q5_0: the 8 of a four-bit format is subtracted where 16 belongs"),
    bug("fifth-bits-of-the-first-half", "Q5_1: the second 16 weights of a block have the fifth bits of the first"),
    bug(
        "scale-of-the-neighbouring-group",
        "Q4_K: groups of 32 weights have scale and minimum of the group beside them, in pairs",
    ),
    bug("upper-scale-bits-left-out", "Q4_K: scales of the second 128 weights of a block lack their upper two bits"),
    bug("minimum-of-odd-groups-left-out", "Q4_K: of every second group of 32 weights the minimum is not subtracted"),
    bug("fifth-bit-of-the-neighbouring-group", "Q5_K: fifth bits are those of the group of 32 beside, in pairs"),
    bug("second-scale-never-read", "Q6_K: the second 16 of 32 weights have the scale of the first"),
    bug(
        "upper-pairs-of-the-neighbouring-group",
        "Q6_K: the upper two bits are those of the group of 32 beside, in pairs",
    ),
    bug("scales-without-a-sign", "Q6_K: scales are read as unsigned bytes"),
    bug("one-scale-for-four-blocks", "Q8_0: four blocks have the scale of the first of them"),
];
