//! Products of the tapped path: lanes, tails, addresses, number types, block formats.

use super::{CudaBug, bug};

pub(super) const BUGS: &[CudaBug] = &[
    bug(
        "reduction-begins-at-four",
        "the sum over lanes begins at a distance of 4 and not of 16: of 512 inputs the second 256 are not summed",
        &[&["256..511", "missing"], &["8, 9, 10", "of 32 ", "missing"]],
    ),
    bug(
        "shuffle-eight-lanes-wide",
        "lanes are exchanged within eights: the first 256 inputs count four times, the second 256 not at all",
        &[&["256..511", "missing", "4 times"], &["0..255", "4 times"], &["4 times", "8 other groups"]],
    ),
    bug(
        "tail-tokens-lack-last-group",
        "in a tile of fewer than 8 tokens the last 32 inputs are not summed: from token 144 on, and in every decode step",
        &[
            &["224..255", "missing", "144"],
            &["224..255", "missing", "decode steps"],
            &["224..255", "missing", "row of the part"],
            &["224..255", "missing", "last 6"],
        ],
    ),
    bug(
        "tail-tokens-of-the-last-whole-tile",
        "the last tile of a prompt, which is not whole, reads the tokens of a whole tile that ends there: two tokens early",
        &[&["token 2 before", "144"], &["token 2 before", "row of the part"], &["token 2 before", "last"]],
    ),
    bug(
        "address-in-16-bits",
        "the address of a row of x is counted in 16 bits: of 512 inputs, token 128 reads token 0, and so on",
        &[&["token 128 before"], &["row 128 before"]],
    ),
    bug(
        "last-token-of-a-tile-keeps-a-sum",
        "the last of every 8 tokens goes on from the sums of the token before",
        &[&["token 1 before", "added", "mod 8 = 7"], &["token before", "added", "mod 8 = 7"]],
    ),
    bug(
        "last-warp-takes-the-first-row",
        "the last of a block's 8 warps multiplies the row of weights of the first",
        &[&["7 before", "mod 8 = 7"], &["7 less", "mod 8 = 7"], &["seven less", "mod 8 = 7"]],
    ),
    bug(
        "halves-of-a-wide-load-exchanged",
        "in the second half of the inputs neighbouring fours of x change places",
        &[
            &["4 apart, in pairs", "128..255"],
            &["4 apart", "exchanged", "128..255"],
            &["differs in the bits of 4", "128..255"],
        ],
    ),
    bug(
        "third-for-fourth",
        "the fourth of every four weights is multiplied with the third of the inputs",
        &[&["input 1 before", "3 mod 4"], &["input 1 before", "mod 4 = 3"], &["1 before", "mod 4"]],
    ),
    bug(
        "activations-in-tf32",
        "activations are rounded to TF32 before the product",
        &[&["the activations are rounded to", "tf32"]],
    ),
    bug(
        "half-accumulators",
        "a lane adds up its 32 products in f16",
        &[&["sums", " in f16"], &["sums", " to f16"], &["partial sum", "f16"], &["accumulat", "f16"]],
    ),
    bug(
        "weights-cut-to-bf16",
        "weights are cut to the upper 16 bits of an f32",
        &[
            &["the weights are rounded to bf16", "cut off"],
            &["the weights are cut", "bf16"],
            &["the weights", "bf16", "towards zero"],
        ],
    ),
    bug(
        "activations-in-eight-bits-by-group",
        "activations are quantised to 8 bits, 32 of them under one scale",
        &[&["the activations are rounded to int8", "one scale for 32"], &["activations", "int8", "32"]],
    ),
    bug(
        "single-token-stored-in-half",
        "when a single token is decoded, the logits are stored in f16",
        &[&["output is rounded to f16", "decode steps"], &["output is rounded to f16", "from position 150"]],
    ),
    bug(
        "last-block-not-launched",
        "the grid is a block short: the last 8 columns are never written",
        &[&["nan"], &["not written"], &["never written"], &["no number"], &["not finite"], &["not computed"]],
    ),
    bug(
        "product-reads-the-gate",
        "the second product of the feed-forward network reads the gate and not what the activation made of it",
        &[&["_gate is multiplied in the place of"], &["_gate", "in the place of"], &["_gate", "instead of"]],
    ),
    bug(
        "nibbles-in-turns",
        "Q4_0: weights are taken from the low and the high nibble of a byte in turns",
        &[&["nibble-order:kind=1"], &["two to a byte"], &["in turns"], &["interleav"]],
    ),
    bug(
        "scale-and-minimum-exchanged",
        "Q4_1: scale and minimum of a block change places",
        &[
            &["scale", "minimum", "exchanged"],
            &["scale", "offset", "exchanged"],
            &["scale", "minimum", "swapped"],
            &["scale", "offset", "swapped"],
        ],
    ),
    bug(
        "middle-of-four-bits",
        "Q5_0: the 8 of a four-bit format is subtracted where 16 belongs",
        &[
            &["zero point", " 8"],
            &["middle", " 8"],
            &["8 is subtracted"],
            &["subtracts 8"],
            &["offset", "half"],
            &["8 scales"],
            &["8 times", "scale"],
            &["quants are more by 8"],
        ],
    ),
    bug(
        "fifth-bits-of-the-first-half",
        "Q5_1: the second 16 weights of a block have the fifth bits of the first",
        &[
            &["upper bits", "shares its byte", "16..31"],
            &["upper bits", "16 before", "16..31"],
            &["fifth bit", "16..31"],
            &["high bits", "16..31"],
            &["highest bit", "16..31"],
            &["upper bits", "the weight 16 apart, in pairs, at inputs ≡ 16..31 mod 32"],
        ],
    ),
    bug(
        "scale-of-the-neighbouring-group",
        "Q4_K: groups of 32 weights have scale and minimum of the group beside them, in pairs",
        &[&["scale", "32 weights"], &["scale", "32 apart"], &["scale", "neighbour"], &["scale", "group beside"]],
    ),
    bug(
        "upper-scale-bits-left-out",
        "Q4_K: scales of the second 128 weights of a block lack their upper two bits",
        &[
            &["scale", "bits", "128..255"],
            &["scale", "mod 16", "128..255"],
            &["scale", "modulo 16", "128..255"],
            &["scale", "upper", "128..255"],
            &["of the field scales of the stored blocks bits 6 and 7 of the bytes 0..3 are lost"],
        ],
    ),
    bug(
        "minimum-of-odd-groups-left-out",
        "Q4_K: of every second group of 32 weights the minimum is not subtracted",
        &[
            &["minimum", "left out", "32..63 mod 64"],
            &["minimum", "not subtracted", "32..63 mod 64"],
            &["offset", "left out", "32..63 mod 64"],
        ],
    ),
    bug(
        "fifth-bit-of-the-neighbouring-group",
        "Q5_K: fifth bits are those of the group of 32 beside, in pairs",
        &[
            &["upper bits", "shares its byte"],
            &["upper bits", "32 apart"],
            &["fifth bit", "32"],
            &["high bits", "32"],
            &["highest bit", "32"],
        ],
    ),
    bug(
        "second-scale-never-read",
        "Q6_K: the second 16 of 32 weights have the scale of the first",
        &[
            &["scale", "16 weights before"],
            &["scale", "16 before"],
            &["scale", "16..31 mod 32"],
            &["scale of the 16"],
            &["the scale of the first 16 of each 32 weights is taken"],
        ],
    ),
    bug(
        "upper-pairs-of-the-neighbouring-group",
        "Q6_K: the upper two bits are those of the group of 32 beside, in pairs",
        &[&["upper bits", "32 weights"], &["upper bits", "32 apart"], &["upper two bits", "32"], &["high bits", "32"]],
    ),
    bug("scales-without-a-sign", "Q6_K: scales are read as unsigned bytes", &[&["scale", "sign"], &["unsigned"]]),
    bug(
        "one-scale-for-four-blocks",
        "Q8_0: four blocks have the scale of the first of them",
        &[
            &["scale", "32..127 mod 128"],
            &["scale", "four blocks"],
            &["scale", "of each 128"],
            &["scale", "first of each 4"],
            &["scale", "mod 128"],
        ],
    ),
];
